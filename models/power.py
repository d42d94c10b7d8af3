"""A machine whose ranks are under loads: costs of kernels by how busy the schedule keeps each GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from models.machine import Cost, Costs, Footprint, Machine
from models.power_law import PowerLaw
from models.work import Grid, Work


@dataclass(frozen=True)
class LoadedCosts:
    """Costs at rest, as they are in a schedule of this `load`."""

    below: Costs
    law: PowerLaw
    load: float

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """See `models.machine.Costs`."""
        cost = self.below.alone(work, grid, sms)
        return replace(cost, ns=max(1, round(self.law.under(work, cost.ns, self.load))))

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """See `models.machine.Costs`."""
        return self.below.footprint(work, grid)


def under_loads(machine: Machine, loads: Mapping[int, float]) -> Machine:
    """The machine whose ranks are busy with arithmetic for these shares of their time; without a power
    law it stays as it is."""
    return (
        machine if machine.power is None else replace(machine, loads=tuple(sorted(loads.items())))
    )


def costs_of(machine: Machine, rank: int) -> Costs:
    """The costs of a rank: at rest where it has no load."""
    load = dict(machine.loads).get(rank)
    if machine.power is None or load is None:
        return machine.costs
    return LoadedCosts(machine.costs, machine.power, load)
