"""A machine under a load: costs of kernels by how busy the schedule keeps the tensor cores."""

from __future__ import annotations

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


def under_load(machine: Machine, load: float) -> Machine:
    """The machine in a schedule that is busy with arithmetic for this share of its time; without a power
    law it stays as it is."""
    if machine.power is None:
        return machine
    return replace(machine, costs=LoadedCosts(machine.costs, machine.power, load), power=None)
