"""Recorded answers of SGLang's own functions against ours, file by file.

Each file kind has a module `tests/golden_kinds/<file stem>.py` with

* `GROUP`: the case's key that names its group (`kind`, `mode`, ...), one test a group;
* `INPUTS`: the keys of a case that are not answers;
* `answer(case, document)`: the answers, by the file's own keys; `document` is the whole file;
* optionally `same(key, expected, got)`, where equality is not the criterion.

Every key of a case that is not an input is compared, so no answer is left out by oversight; answers
that a case does not record are ignored. The folder is `tests/golden`, or the one that the environment variable MOE_OVERLAP_GOLDEN names; a file
that is absent and a file without a module are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Case = dict[str, Any]
FOLDER = Path(os.environ.get("MOE_OVERLAP_GOLDEN") or Path(__file__).parent / "golden")
KINDS = Path(__file__).parent / "golden_kinds"
FILES = (
    "waterfill",
    "fused_slots",
    "tbo_split",
    "tbo_can_run",
    "tbo_ops",
    "sbo",
    "fusion_decision",
)


@lru_cache
def load_kind(stem: str) -> ModuleType | None:
    path = KINDS / f"{stem}.py"
    spec = importlib.util.spec_from_file_location(f"golden_kind_{stem}", path)
    if not path.exists() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache
def load_file(stem: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / f"{stem}.json").read_text())
    return document


def groups() -> list[Any]:
    """One parameter for each file and group; a skipped one for a file that cannot be checked."""
    params = []
    for stem in FILES:
        kind = load_kind(stem)
        if kind is None or not (FOLDER / f"{stem}.json").exists():
            why = f"no {stem}.json in {FOLDER}" if kind else f"{stem}: not built yet"
            params.append(pytest.param(stem, "", marks=pytest.mark.skip(reason=why), id=stem))
            continue
        names = sorted({str(case.get(kind.GROUP, "")) for case in load_file(stem)["cases"]})
        params.extend(pytest.param(stem, name, id=f"{stem}-{name}") for name in names)
    return params


def difference(kind: ModuleType, case: Case, document: dict[str, Any]) -> str | None:
    expected = {key: value for key, value in case.items() if key not in kind.INPUTS}
    got = kind.answer(case, document)
    same = getattr(kind, "same", lambda key, left, right: left == right)
    wrong = [
        f"{key}: expected {expected[key]}, got {got.get(key, 'nothing')}"
        for key in sorted(expected)
        if key not in got or not same(key, expected[key], got[key])
    ]
    return f"case {case.get('id')}: " + "; ".join(wrong) if wrong else None


@pytest.mark.parametrize(("stem", "group"), groups())
def test_golden(stem: str, group: str) -> None:
    kind, document = load_kind(stem), load_file(stem)
    assert kind is not None
    cases = [case for case in document["cases"] if str(case.get(kind.GROUP, "")) == group]
    assert cases
    wrong = [text for case in cases if (text := difference(kind, case, document))]
    assert not wrong, f"{len(wrong)} of {len(cases)} differ\n" + "\n".join(wrong[:5])


def test_the_repository_holds_every_file() -> None:
    stored = {path.stem for path in (Path(__file__).parent / "golden").glob("*.json")}
    assert stored >= set(FILES)
