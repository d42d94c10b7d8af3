"""What launches cost at best: the least time and the least SM-time over the SMs that they may hold."""

from __future__ import annotations

from models.forms import tail_law
from models.machine import Machine
from models.work import Grid, Work

_SM_STEPS = 32  # SM counts tried per launch: even steps up to its budget, both ends included


class Fastest:
    """What a launch costs at best, remembered by work and grid; at a power limit that is at rest."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._points: dict[tuple[Work, Grid], list[tuple[int, int]]] = {}
        self._least: dict[tuple[Work, Grid], int] = {}
        self._shares: dict[tuple[Work, Grid], tuple[float, ...]] = {}

    def ns(self, work: Work, grid: Grid) -> int:
        """Time alone on the number of SMs, within the budget, at which it is shortest."""
        key = (work, grid)
        least = self._least.get(key)
        if least is None:
            least = self._least[key] = min(ns for _, ns in self._curve(work, grid))
        return least

    def flight_ns(self, work: Work) -> int:
        """Time of a flight alone."""
        machine = self.machine
        return machine.costs.alone(work, Grid(), machine.num_sms).ns

    def sm_ns(self, work: Work, grid: Grid) -> tuple[float, ...]:
        """Least occupied ns of the whole machine's threads, registers, shared memory and CTA slots."""
        key = (work, grid)
        if key not in self._shares:
            self._shares[key] = self._sm_ns(work, grid)
        return self._shares[key]

    def _sm_ns(self, work: Work, grid: Grid) -> tuple[float, ...]:
        machine = self.machine
        footprint = machine.costs.footprint(work, machine.launched(work, grid))
        per_sm = machine.sm.ctas(footprint)
        pieces = footprint.tiles or footprint.ctas
        cta_ns = min(ns / -(-pieces // (sms * per_sm)) for sms, ns in self._curve(work, grid))
        if grid.kind == "static":
            cta_ns *= tail_law(machine.tail(work.kind), 0.0)
        taken = (footprint.threads, footprint.registers, footprint.smem_bytes, 1)
        offered = (
            machine.sm.threads,
            machine.sm.registers,
            machine.sm.smem_bytes,
            machine.sm.cta_slots,
        )
        return tuple(
            pieces * cta_ns * part / (whole * machine.num_sms)
            for part, whole in zip(taken, offered, strict=True)
        )

    def _curve(self, work: Work, grid: Grid) -> list[tuple[int, int]]:
        """(SMs, ns) at some SM counts up to the most that the launch may hold."""
        key = (work, grid)
        if key not in self._points:
            machine = self.machine
            grid = machine.launched(work, grid)
            budget = grid.enforced_budget or machine.num_sms
            most = max(1, min(budget, machine.num_sms, machine.costs.footprint(work, grid).ctas))
            counts = {*range(1, most + 1, max(1, most // _SM_STEPS)), most}
            curve = [(sms, machine.costs.alone(work, grid, sms).ns) for sms in sorted(counts)]
            self._points[key] = curve
        return self._points[key]
