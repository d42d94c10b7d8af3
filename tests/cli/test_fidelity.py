"""Folded ranks and extrapolated layers equal the full run within the error that is printed."""

from __future__ import annotations

from typing import Any

import pytest

import moe_overlap as mo

DECODE, PREFILL = "deepseek-v3-h100-ep72-decode", "deepseek-v3-h100-ep32-prefill"
SIXTEEN = "deepseek-v3-h200-ep16-prefill"
SMALL = ["schedules=[baseline, tbo]", "model.num_layers=8"]
STRAGGLER = "phase.decode.batch_per_rank=[" + ", ".join(["128"] * 14 + ["256", "64"]) + "]"
EP16 = [
    "parallel={ep: 16}",
    "routing.redundant_experts=0",
    "routing.eplb=false",
    "routing.alpha=1.0",
]


def _steps(name: str, sets: list[str], fidelity: Any) -> tuple[dict[str, float], dict[str, Any]]:
    document = mo.compare(mo.load(name, [*SMALL, *sets]), fidelity=fidelity).document()
    rows = {row["name"]: row["step_us"] for row in document["schedules"]}
    return rows, document["shortcuts"]["error"]


WAITS = ["phase.prefill.tokens_per_rank=1024"]
CASES = {
    "uniform": (DECODE, [*EP16, "routing.distribution=uniform"]),
    "skewed": (DECODE, EP16),
    "stragglers": (DECODE, [*EP16, STRAGGLER]),
    "eager": (DECODE, [*EP16, "runtime.launch=eager", "phase.decode.batch_per_rank=32"]),
    "host wait": (PREFILL, [*WAITS, "parallel={ep: 16}"]),
    "host wait, two nodes": (SIXTEEN, [*WAITS, "schedules=[baseline, tbo]"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_shortcuts_stay_within_their_error(case: str) -> None:
    name, sets = CASES[case]
    quick, errors = _steps(name, sets, "auto")
    whole, none = _steps(name, sets, "full")
    assert set(none.values()) == {0.0}
    for schedule, us in whole.items():
        assert abs(us / quick[schedule] - 1) <= errors[schedule] <= 0.1


def test_the_band_holds_the_error_of_the_shortcuts() -> None:
    compared = mo.compare(mo.load(DECODE, [*SMALL, *EP16]))
    for row in compared.rows:
        figures = row.figures
        assert figures is not None and row.shortcut_error is not None
        assert figures.noise_ns >= row.shortcut_error * figures.step_ns > 0
