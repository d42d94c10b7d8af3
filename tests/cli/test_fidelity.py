"""Folded ranks and extrapolated layers equal the full run within the error that is printed."""

from __future__ import annotations

from functools import cache

import pytest

import moe_overlap as mo
from moe_overlap.fidelity import Fidelity
from moe_overlap.outcome import predict
from moe_overlap.row import Row

DECODE, PREFILL = "deepseek-v3-h100-ep72-decode", "deepseek-v3-h100-ep32-prefill"
SIXTEEN, COLLECTIVE = "deepseek-v3-h200-ep16-prefill", "deepseek-v3-h200-ep8-prefill"
SMALL = ["schedules=[baseline, tbo]", "model.num_layers=8"]
STRAGGLER = "phase.decode.batch_per_rank=[" + ", ".join(["128"] * 14 + ["256", "64"]) + "]"
PLAIN = ["parallel={ep: 16}", "routing.redundant_experts=0", "routing.eplb=false"]
EP16 = [*PLAIN, "routing.alpha=1.0"]


@cache
def _rows(case: str, fidelity: Fidelity) -> list[Row]:
    """As a comparison predicts them, without its questions about other batches."""
    name, sets = CASES[case]
    resolved = mo.resolve(mo.load(name, [*SMALL, *sets]))
    choices = resolved.schedules
    return [predict(resolved, one, allow_refused=False, fidelity=fidelity) for one in choices]


WAITS = ["phase.prefill.tokens_per_rank=1024"]
CASES = {
    "uniform": (DECODE, [*PLAIN, "routing.distribution=uniform"]),
    "skewed": (DECODE, EP16),
    "stragglers": (DECODE, [*EP16, STRAGGLER]),
    "eager": (DECODE, [*EP16, "runtime.launch=eager", "phase.decode.batch_per_rank=32"]),
    "host wait": (PREFILL, [*WAITS, "parallel={ep: 16}"]),
    "collectives": (COLLECTIVE, [*WAITS, "a2a.backend=none", "model.base=deepseek-v4-flash"]),
    "host wait, two nodes": (SIXTEEN, [*WAITS, "schedules=[baseline, tbo]"]),
}


@pytest.mark.parametrize("case", CASES)
def test_shortcuts_stay_within_their_error(case: str) -> None:
    for quick, whole in zip(_rows(case, "auto"), _rows(case, "full"), strict=True):
        assert quick.figures is not None and whole.figures is not None
        assert quick.shortcut_error is not None and whole.shortcut_error == 0.0
        ratio = whole.figures.step_ns / quick.figures.step_ns
        assert abs(ratio - 1) <= quick.shortcut_error <= 0.1


def test_the_band_holds_the_error_of_the_shortcuts() -> None:
    for row in _rows("skewed", "auto"):
        figures = row.figures
        assert figures is not None and row.shortcut_error is not None
        assert figures.noise_ns >= row.shortcut_error * figures.step_ns > 0
