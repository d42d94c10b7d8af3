"""Kernels whose CTAs come and go (rule 4: wave and static).

A *cohort* is a set of CTAs placed together; at each turnover its room is up for whoever heads the
queue. A *static* persistent kernel is the same with one long wave: each CTA has its list of tiles at
launch, runs the full list when it is placed late, and leaves when it is done.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from schedules.program import Op
from simulator.fluid import Fluid
from simulator.kernel import Kernel

if TYPE_CHECKING:
    from simulator.device import Device


class Cohort(Fluid):
    """CTAs placed together; `left` counts waves, whole ones that nobody else wants included, and
    `whole` is what it was at `begin`."""

    __slots__ = ("allocation", "begin", "ctas", "sms", "whole")

    allocation: int
    begin: int
    ctas: int
    sms: int
    whole: float


class Waves(Kernel):
    """A kernel whose SMs come back at each turnover."""

    __slots__ = ("_cohorts", "_longer", "_rounds", "_tail", "_turnover", "_wave_ns", "_wave_sms")

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        super().__init__(op, device, sequence, launched, graph)
        self._cohorts: list[Cohort] = []
        self._turnover = 0  # CTAs whose room this kernel gave back at this instant
        self._tail = device.machine.static_tail if op.grid.kind == "static" else 1.0
        self._wave_ns = 0.0
        self._wave_sms = 0
        tiles, ctas = self.footprint.tiles, self.footprint.ctas
        self._rounds = max(1, -(-tiles // ctas))  # tiles on the longest list of a static kernel
        self._longer = tiles - (self._rounds - 1) * ctas if tiles else ctas  # CTAs with so many

    def place(self, ctas: int, now: int) -> None:
        own = min(ctas, self._turnover)
        if own:
            self._start(own, now)
        if ctas > own:
            self._start(ctas - own, self._starts(now))
        self.active = True
        if self.op.grid.kind == "static" and not self.unplaced:
            self._all_placed(self._cohorts[-1].begin)

    def _start(self, ctas: int, begin: int) -> None:
        """CTAs start; those of a static kernel that have a tile less than others leave first."""
        longer = ctas
        if self.op.grid.kind == "static":
            longer = max(0, min(ctas, self._longer - (self.footprint.ctas - self.unplaced)))
        self.unplaced -= ctas
        if longer:
            self._cohort(longer, begin, 1.0)
        if ctas > longer:
            self._cohort(ctas - longer, begin, (self._rounds - 1) / self._rounds)

    def _cohort(self, ctas: int, begin: int, waves: float) -> None:
        device = self.device
        cohort = Cohort(device.clock, waves, begin, self._turn_over)
        cohort.whole = waves
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
            self._wave_ns = self._unit(held) / -(-self.pieces // (held * self.per_sm))

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
        """Let every cohort go on for as many whole rounds as there are; CTAs of a static kernel have
        lists of their own."""
        if self.op.grid.kind == "wave":
            self.unplaced -= self._go_on(self.unplaced)

    def _go_on(self, pieces: int) -> int:
        """Promise whole rounds of `pieces` to the cohorts; returns how many pieces that takes. None
        while a cohort is still to start, since it will turn over later than once around."""
        if pieces < self.width or not self.width:
            return 0
        now = self.device.clock.ns
        if any(cohort.begin > now for cohort in self._cohorts):
            return 0
        rounds = pieces // self.width
        for cohort in self._cohorts:
            cohort.left += rounds
        return rounds * self.width

    def flow(self, now: int, slow: float) -> None:
        rate = 1.0 / (self._present_wave_ns() * slow)
        for cohort in self._cohorts:
            cohort.flow(now, rate)

    def _present_wave_ns(self) -> float:
        """The tail law: a static kernel's CTAs run faster when few are left because others came early.
        That its last tiles run beside few is in its time alone."""
        a = self._tail
        if a == 1.0 or not (self.unplaced or self.stalls):
            return self._wave_ns
        share: float = self.width / self.pieces
        return float(self._wave_ns * (a + (1.0 - a) * share**4) ** 0.25)

    def hbm_gbps(self) -> float:
        if not self.hbm_bytes:
            return 0.0
        return self.hbm_bytes * self.width / (self.pieces * self._present_wave_ns())

    def progress(self, now: int, *, by_index: bool) -> tuple[float, float]:
        for cohort in self._cohorts:
            cohort.advance(now)
        if by_index and self.op.grid.kind == "static":
            if self.unplaced or not self._cohorts:
                return 0.0, 0.0
            last = max(self._cohorts, key=lambda cohort: cohort.left / cohort.whole)
            return 1.0 - last.left / last.whole, last.rate / last.whole
        left = self._not_begun() + sum(cohort.left * cohort.ctas for cohort in self._cohorts)
        rate = sum(cohort.rate * cohort.ctas for cohort in self._cohorts)
        return 1.0 - left / self.pieces, rate / self.pieces

    def _not_begun(self) -> int:
        """Pieces of its work that no cohort has in hand."""
        return self.unplaced

    def _turn_over(self, cohort: Fluid) -> None:
        assert isinstance(cohort, Cohort)
        self._cohorts.remove(cohort)
        self.width -= cohort.ctas
        self.sms -= cohort.sms
        self._turnover += cohort.ctas
        self.device.release(cohort.allocation, self)
        if not self._cohorts:
            self.active = False
            if not self.unplaced:
                self.device.finish(self)
