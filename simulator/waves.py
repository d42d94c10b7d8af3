"""Kernels whose CTAs come and go (rule 4: wave and static).

A *cohort* is a set of CTAs placed together; at each turnover its room is up for whoever heads the
queue. A *static* persistent kernel is the same with one long wave: CTAs that are placed late run
their full list of tiles.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from schedules.program import Op
from simulator.fluid import Fluid
from simulator.kernel import Kernel

if TYPE_CHECKING:
    from simulator.device import Device


class _Cohort(Fluid):
    """CTAs placed together; `left` counts waves, whole ones that nobody else wants included."""

    __slots__ = ("allocation", "begin", "ctas", "sms")

    allocation: int
    begin: int
    ctas: int
    sms: int


class Waves(Kernel):
    """A kernel whose SMs come back at each turnover."""

    __slots__ = ("_cohorts", "_tail", "_turnover", "_wave_ns", "_wave_sms")

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        super().__init__(op, device, sequence, launched, graph)
        self._cohorts: list[_Cohort] = []
        self._turnover = 0  # CTAs whose room this kernel gave back at this instant
        self._tail = device.machine.static_tail if op.grid.kind == "static" else 1.0
        self._wave_ns = 0.0
        self._wave_sms = 0

    def place(self, ctas: int, now: int) -> None:
        own = min(ctas, self._turnover)
        if own:
            self._cohort(own, now)
        if ctas > own:
            self._cohort(ctas - own, self._starts(now))
        self.unplaced -= ctas
        self.active = True
        if self.op.grid.kind == "static" and not self.unplaced:
            self._all_placed(self._cohorts[-1].begin)

    def _cohort(self, ctas: int, begin: int) -> None:
        device = self.device
        cohort = _Cohort(device.clock, 1.0, begin, self._turn_over)
        cohort.begin = begin
        cohort.ctas = ctas
        cohort.allocation = device.next_allocation()
        cohort.sms = device.room.take(cohort.allocation, self.footprint, ctas, packed=self.packed)
        self._cohorts.append(cohort)
        self.width += ctas
        self.sms += cohort.sms
        self.peak_sms = max(self.peak_sms, self.sms)

    def settle(self) -> None:
        """Fix the time of a wave by the SMs held. The last wave may need fewer and keeps the time of
        the waves before it; a static kernel's one wave is that of its whole grid."""
        self._turnover = 0
        held = min(self.sms, self.most_sms)
        if self.op.grid.kind == "static":
            held = self.most_sms
        if held > self._wave_sms or (self.unplaced and 0 < held < self._wave_sms):
            self._wave_sms = held
            self._wave_ns = self._unit(held) / -(-self.footprint.ctas // (held * self.per_sm))

    def recall(self, now: int) -> None:
        """Take back the waves that have not begun. A turnover at this very instant is one at which
        somebody else may come first."""
        for cohort in tuple(self._cohorts):
            cohort.advance(now)
            half_ns = 0.5 * cohort.rate
            later = ceil(cohort.left - half_ns) - 1
            turns_over = now > cohort.begin and cohort.left - later > 1.0 - half_ns
            if later > 0 or turns_over:
                later += turns_over
                cohort.left -= later
                self.unplaced += later * cohort.ctas
            if turns_over:
                cohort.stop()
                self._turn_over(cohort)

    def extend(self) -> None:
        """Let every cohort go on for as many whole rounds as there are."""
        rounds = self.unplaced // self.width if self.width else 0
        if rounds:
            for cohort in self._cohorts:
                cohort.left += rounds
            self.unplaced -= rounds * self.width

    def flow(self, now: int, slow: float) -> None:
        rate = 1.0 / (self._present_wave_ns() * slow)
        for cohort in self._cohorts:
            cohort.flow(now, rate)

    def _present_wave_ns(self) -> float:
        """The tail law: a static kernel's CTAs run faster when few are left."""
        a = self._tail
        if a == 1.0:
            return self._wave_ns
        share: float = self.width / self.footprint.ctas
        return float(self._wave_ns * (a + (1.0 - a) * share**4) ** 0.25)

    def hbm_gbps(self) -> float:
        if not self.hbm_bytes:
            return 0.0
        return self.hbm_bytes * self.width / (self.footprint.ctas * self._present_wave_ns())

    def progress(self, now: int, *, by_index: bool) -> tuple[float, float]:
        for cohort in self._cohorts:
            cohort.advance(now)
        if by_index and self.op.grid.kind == "static":
            if self.unplaced or not self._cohorts:
                return 0.0, 0.0
            last = max(self._cohorts, key=lambda cohort: cohort.left)
            return 1.0 - last.left, last.rate
        left = self.unplaced + sum(cohort.left * cohort.ctas for cohort in self._cohorts)
        rate = sum(cohort.rate * cohort.ctas for cohort in self._cohorts)
        return 1.0 - left / self.footprint.ctas, rate / self.footprint.ctas

    def _turn_over(self, cohort: Fluid) -> None:
        assert isinstance(cohort, _Cohort)
        self._cohorts.remove(cohort)
        self.width -= cohort.ctas
        self.sms -= cohort.sms
        self._turnover += cohort.ctas
        self.device.release(cohort.allocation, self)
        if not self._cohorts:
            self.active = False
            if not self.unplaced:
                self.device.finish(self)
