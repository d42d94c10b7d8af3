"""The architecture, as tests: imports go down, cycles do not exist, files and functions stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {
    "models": 0,
    "schedules": 1,
    "scenarios": 2,
    "simulator": 3,
    "executor": 3,
    "viz": 4,
    "moe_overlap": 5,
}
SMALL_CORE = {"torch", "triton", "scipy", "deep_ep", "deep_gemm", "perfetto", "playwright"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
SOURCES = sorted(path for name in FLOORS for path in (ROOT / name).rglob("*.py"))
SIZED = (
    SOURCES + sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "benchmarks").rglob("*.py"))
)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere in it, except for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


MODULES = {_name(path): path for path in SOURCES}


@cache
def _imports_of(name: str) -> tuple[str, ...]:
    return tuple(_imports(MODULES[name]))


def test_imports_go_down() -> None:
    for name in MODULES:
        package = name.partition(".")[0]
        for imported in _imports_of(name):
            other = imported.partition(".")[0]
            if other in FLOORS and other != package:
                assert FLOORS[other] < FLOORS[package], f"{name} imports {imported}"


def test_there_are_no_import_cycles() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name in MODULES:
        for imported in _imports_of(name):
            module = imported if imported in MODULES else imported.rpartition(".")[0]
            if module in MODULES and module != name:
                graph.add_edge(name, module)
    assert list(nx.simple_cycles(graph)) == []


def test_optional_libraries_stay_out_of_the_core() -> None:
    allowed = {
        "models": {"scipy"},  # the fits of a calibration
        "executor": SMALL_CORE,
        "viz": {"perfetto"},
        "moe_overlap": {"torch"},
    }
    for name in MODULES:
        package = name.partition(".")[0]
        used = {imported.partition(".")[0] for imported in _imports_of(name)} & SMALL_CORE
        assert used <= allowed.get(package, set()), f"{name} imports {sorted(used)}"


def test_files_and_functions_are_small() -> None:
    large = [fault for path in SIZED for fault in _sizes(path)]
    assert large == []


def _sizes(path: Path) -> Iterator[str]:
    """What of a file is too large."""
    name, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
    if len(text.splitlines()) > MAX_FILE_LINES:
        yield f"{name} has {len(text.splitlines())} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{name}: {node.name} has {lines} lines"


def test_packages_and_floors_agree() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert found - {"benchmarks"} == set(FLOORS)
