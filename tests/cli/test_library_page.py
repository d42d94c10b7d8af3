"""docs/library.md says what the recorded answers say: `python -m benchmarks.library_tables` after they change."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import moe_overlap as mo

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text()
RECORDED = json.loads((ROOT / "tests" / "golden" / "answers.json").read_text())


def rows(name: str) -> dict[str, list[str]]:
    """Cells by schedule in the scenario's table."""
    section = PAGE.partition(f"## {name}\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if "|" in line]
    return {row[0]: row[1:] for row in cells[2:]}


def test_every_scenario_has_a_table() -> None:
    assert set(re.findall(r"^## (\S+)$", PAGE, re.MULTILINE)) == set(mo.library())


@pytest.mark.parametrize("name", RECORDED)
def test_its_steps_are_the_recorded_ones(name: str) -> None:
    found = rows(name)
    assert list(found) == list(RECORDED[name]["schedules"])
    for schedule, known in RECORDED[name]["schedules"].items():
        if isinstance(known, str):
            assert found[schedule][0] == f"refused: `{known}`"
        else:
            assert float(found[schedule][0]) == pytest.approx(known / 1000, abs=0.006)
            assert sum(map(float, found[schedule][-4:])) == pytest.approx(1, abs=0.03)
