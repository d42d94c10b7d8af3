"""What a kernel costs alone, asked once per work and SM count."""

from __future__ import annotations

from models.machine import Cost, Costs, Footprint
from models.work import Grid, Work


class Prices:
    """Answers of `Costs`, remembered by value; layers of a program share their works."""

    __slots__ = ("_alone", "_costs", "_footprints")

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._alone: dict[tuple[Work, Grid, int], Cost] = {}
        self._footprints: dict[tuple[Work, Grid], Footprint] = {}

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """`Costs.alone`; ValueError when it answers a negative time."""
        key = (work, grid, sms)
        cost = self._alone.get(key)
        if cost is None:
            cost = self._costs.alone(work, grid, sms)
            if cost.ns < 0:
                raise ValueError(f"{work.kind} on {sms} SMs costs {cost.ns} ns")
            self._alone[key] = cost
        return cost

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """`Costs.footprint`; ValueError when the launch has no CTA."""
        key = (work, grid)
        footprint = self._footprints.get(key)
        if footprint is None:
            footprint = self._costs.footprint(work, grid)
            if footprint.ctas < 1:
                raise ValueError(f"{work.kind} launches {footprint.ctas} CTAs")
            self._footprints[key] = footprint
        return footprint
