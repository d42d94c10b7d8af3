"""Machines of an ensemble: every cost and slowdown off by a draw from what is stated of it.

Which pattern overlapped loops lock into can hang on less than the error of the times, so one machine does
not tell. What errs alike (a kind of kernel, the clock, the slowdown of a victim) is moved alike.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from models.machine import COVERED, Cost, Costs, Footprint, Machine
from models.work import Grid, Work

# A normal distribution holds `COVERED` of its draws within so many of its standard deviations.
_STATED = NormalDist().inv_cdf((1 + COVERED) / 2)


def slowdown_of(victim: str) -> str:
    """The name that the error of a victim's slowdown has among doubts."""
    return f"slowdown of {victim}"


def own_name(machine: Machine, work: Work, grid: Grid) -> str:
    """The name that a kernel's own error has among doubts: the same work within the same budget."""
    sizes = " ".join(f"{name}={size}" for name, size in work.dims)
    return f"{work.kind} {sizes} on {grid.enforced_budget or machine.num_sms} SMs"


@dataclass(frozen=True, slots=True)
class Draw:
    """One member: how far everything that errs is off, in its stated errors."""

    seed: int

    def off(self, name: str) -> float:
        """Normally distributed, beyond -1 to 1 in the cases that a stated error does not hold for."""
        return random.Random(f"{self.seed} {name}").gauss(0.0, 1.0) / _STATED

    def linear(self, doubts: Mapping[str, float]) -> float:
        """What these doubts, in ns, would add up to if nothing but them changed."""
        return sum(ns * self.off(name) for name, ns in doubts.items())


@dataclass(frozen=True)
class _MovedCosts:
    """The machine's costs, moved by a draw within their relative errors."""

    machine: Machine
    draw: Draw

    @property
    def _below(self) -> Costs:
        return self.machine.costs

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """See `models.machine.Costs`."""
        cost = self._below.alone(work, grid, sms)
        if not cost.rel_error:
            return cost
        shared = cost.shared * self.draw.off(self.machine.errs_with(work))
        own = cost.own * self.draw.off(own_name(self.machine, work, grid)) if cost.own else 0.0
        return replace(cost, ns=max(1, round(cost.ns * (1.0 + shared + own))))

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """See `models.machine.Costs`."""
        return self._below.footprint(work, grid)


def moved(machine: Machine, draw: Draw) -> Machine:
    """The machine with kernel times and slowdowns moved; its host, links and gaps stay."""
    near = machine.interference
    factors = tuple(
        (victim, 1.0 + error * draw.off(slowdown_of(victim))) for victim, error in near.errors
    )
    return replace(
        machine,
        costs=_MovedCosts(machine, draw),
        interference=replace(near, moved=factors),
    )
