"""The examples have recorded output: README's demo, and the answer for every library scenario."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import moe_overlap as mo

ROOT = Path(__file__).resolve().parents[2]
RECORDED = json.loads((ROOT / "tests" / "golden" / "answers.json").read_text())


@pytest.fixture(scope="module")
def record() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", ROOT / "docs" / "record.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_shows_what_the_demo_prints(record: ModuleType) -> None:
    shown = (ROOT / "README.md").read_text().partition(record.COMMAND)[2]
    assert shown.partition(record.FENCE)[0] == record.demo_text()


def test_every_library_scenario_has_a_recorded_answer() -> None:
    assert set(RECORDED) == set(mo.library())


@pytest.mark.parametrize("name", RECORDED)
def test_the_answer_is_the_recorded_one(record: ModuleType, name: str) -> None:
    found: dict[str, Any] = record.answer(name)
    expected = RECORDED[name]
    assert found["schedules"] == {
        row: known if isinstance(known, str) else pytest.approx(known, rel=1e-4)
        for row, known in expected["schedules"].items()
    }
    assert {**found, "schedules": None} == {**expected, "schedules": None}
