"""What a kernel costs alone, asked once per work and SM count."""

from __future__ import annotations

from typing import NamedTuple

from models.machine import Cost, Costs, Footprint, Machine
from models.work import Grid, Work


class Launched(NamedTuple):
    """One launch before it is placed: its CTAs, how many an SM takes, the most SMs it may hold, and its
    cost alone on so many."""

    footprint: Footprint
    per_sm: int
    most_sms: int
    alone: Cost


class Prices:
    """Answers of `Costs`, those of the machine if not given, remembered.

    Layers share their works, so that a look-up by identity answers nearly always; the objects are
    kept, so that an identity stays what it was.
    """

    __slots__ = ("_alone", "_alone_by_value", "_costs", "_kept", "_launched", "_machine")

    def __init__(self, machine: Machine, costs: Costs | None = None) -> None:
        self._machine = machine
        self._costs = machine.costs if costs is None else costs
        self._alone: dict[tuple[int, int, int], Cost] = {}
        self._alone_by_value: dict[tuple[Work, Grid, int], Cost] = {}
        self._launched: dict[tuple[int, int], Launched] = {}
        self._kept: list[tuple[Work, Grid]] = []

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """`Costs.alone`; ValueError when it answers a negative time."""
        key = (id(work), id(grid), sms)
        cost = self._alone.get(key)
        if cost is None:
            value = (work, grid, sms)
            cost = self._alone_by_value.get(value)
            if cost is None:
                launched = self._machine.launched(work, grid)
                cost = self._costs.alone(work, launched, sms)
                self._alone_by_value[value] = cost
            if cost.ns < 0:
                raise ValueError(f"{work.kind} on {sms} SMs costs {cost.ns} ns")
            self._alone[key] = cost
            self._kept.append((work, grid))
        return cost

    def launched(self, work: Work, grid: Grid) -> Launched:
        """`Costs.footprint` on this machine; ValueError when the launch has no CTA, or one too large."""
        key = (id(work), id(grid))
        launched = self._launched.get(key)
        if launched is None:
            launched = self._launched[key] = self._launch(work, grid)
            self._kept.append((work, grid))
        return launched

    def _launch(self, work: Work, grid: Grid) -> Launched:
        grid = self._machine.launched(work, grid)
        footprint = self._costs.footprint(work, grid)
        if footprint.ctas < 1:
            raise ValueError(f"{work.kind} launches {footprint.ctas} CTAs")
        per_sm = self._machine.sm.ctas(footprint)
        budget = grid.enforced_budget or self._machine.num_sms
        sms = min(footprint.ctas, budget, self._machine.num_sms)
        if grid.gang and footprint.ctas > sms * per_sm:
            raise ValueError(f"a gang of {footprint.ctas} CTAs of {work.kind} never fits {sms} SMs")
        return Launched(footprint, per_sm, sms, self.alone(work, grid, sms))
