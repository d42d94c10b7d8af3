"""How much of a step is simulated, and what the shortcuts may have cost.

`full`: every rank by itself through all layers. `auto`: one rank stands for many, layers that repeat
are simulated once, and what the folding changes is measured. `fast`: the same without measuring, without
the phase between ranks, and without the questions beside the comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Literal

from models.machine import Machine
from schedules.builders import Fold
from schedules.program import Program
from simulator import simulate
from simulator.load import as_loaded

Fidelity = Literal["full", "auto", "fast"]
_FEW_RANKS = 8
# Ranks that are extreme in nothing are still folded, and two layers stand for all: three times what was
# seen, and never less than this, held against full runs by the tests.
_CAUTION = 3
_LEAST = 0.002


def fold_error(build: Callable[[Fold], Program], machine: Machine, ranks: int) -> float:
    """Relative error that folding may have: a program of few layers as it is folded, beside the same
    with every extreme rank (of a few: every rank) by itself."""
    folded = build(True)
    coarse = simulate(folded, machine, counters=False)
    guess = dict(as_loaded(folded, machine, coarse).loads)
    fine_fold: Fold = "exact" if ranks <= _FEW_RANKS else "extremes"
    fine = simulate(build(fine_fold), machine, counters=False, guess=guess)
    seen = abs(fine.makespan_ns / coarse.makespan_ns - 1)
    return max(_LEAST, ceil(1000 * _CAUTION * seen) / 1000)
