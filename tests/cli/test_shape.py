"""The command line's frame: quick help, the lists, and packages that another folder would shadow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import moe_overlap
from moe_overlap.cli import COMMANDS
from scenarios import library

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "simpy", "plotly", "pydantic", "networkx", "torch", "ruamel")

OPTIONAL = ("torch", "triton", "scipy", "perfetto", "safetensors", "playwright", "pytest")


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nsys.argv = ['moe-overlap', '--help']\nfrom moe_overlap.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("HEAVY []")
    assert "compare" in done.stdout


def test_a_comparison_needs_the_core_alone(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport moe_overlap as mo, viz.report\n"
        "mo.compare(mo.load('tiny', ['schedules=[tbo]'])).document()\n"
        f"print([name for name in {OPTIONAL} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_command_has_help(run: Run) -> None:
    for command in COMMANDS:
        done = run(command.__name__, "--help")
        assert done.returncode == 0
        assert "Usage:" in done.stdout
        assert command.__doc__ and command.__doc__.split(".")[0].split()[0] in done.stdout


def test_scenarios_and_schema_are_single_documents(run: Run) -> None:
    listed = json.loads(run("scenarios", "--json").stdout)
    assert list(listed) == list(library())
    schema = json.loads(run("schema").stdout)
    assert schema["additionalProperties"] is False
    assert "phase" in schema["required"]


def test_version(run: Run) -> None:
    assert run("--version").stdout.strip() == moe_overlap.__version__


def test_a_shadowing_package_is_named(tmp_path: Path) -> None:
    other = tmp_path / "models"
    other.mkdir()
    (other / "__init__.py").write_text("")
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import moe_overlap"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"{other / '__init__.py'} shadows the package 'models'" in done.stderr


def test_a_terminal_without_all_signs_gets_the_rest(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moe_overlap", "compare", "tiny", "--fidelity", "fast"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "layer ?s" in done.stdout
