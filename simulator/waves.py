"""Kernels whose CTAs come and go (rule 4: wave).

A *cohort* is a set of CTAs placed together; at each turnover its room is up for whoever heads the
queue.
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
    """CTAs placed together that start at `begin`; `left` counts waves, those included that nobody else
    wants the room of, and `whole` is how many it started with."""

    __slots__ = ("allocation", "begin", "ctas", "sms", "whole")

    allocation: int
    begin: int
    ctas: int
    sms: int
    whole: float


class Waves(Kernel):
    """A kernel whose SMs come back at each turnover."""

    __slots__ = ("_cohorts", "_turnover", "_wave_ns", "_wave_sms")

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        super().__init__(op, device, sequence, launched, graph)
        self._cohorts: list[Cohort] = []
        self._turnover = 0  # CTAs whose room this kernel gave back at this instant
        self._wave_ns = 0.0
        self._wave_sms = 0

    def place(self, ctas: int, now: int) -> None:
        own = min(ctas, self._turnover)
        if own:
            self._start(own, now)
        if ctas > own:
            self._start(ctas - own, self._starts(now))
        self.active = True

    def _start(self, ctas: int, begin: int) -> None:
        """CTAs start at `begin`."""
        self.unplaced -= ctas
        self._cohort(ctas, begin, 1.0)

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
        the waves before it."""
        self._turnover = 0
        held = self._whole_sms()
        if held > self._wave_sms or (self.unplaced and 0 < held < self._wave_sms):
            self._wave_sms = held
            self._wave_ns = self._unit(held) / -(-self.pieces // (held * self.per_sm))

    def _whole_sms(self) -> int:
        """SMs that it holds, no more than its CTAs would fill if it shared none with others: an SM that has
        room for two of sixteen CTAs is not a whole one."""
        most = min(self.footprint.ctas, self.most_sms * self.per_sm)
        return min(self.sms, self.most_sms, -(-self.most_sms * self.width // most))

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

    def extend(self, *, followed: bool) -> None:
        """Let every cohort go on for as many whole rounds as there are."""
        self.unplaced -= self._go_on(self.unplaced - followed)

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

    def hbm_gbps(self) -> float:
        if not self.hbm_bytes:
            return 0.0
        return self.hbm_bytes * self.width / (self.pieces * self._present_wave_ns())

    def progress(self, now: int, *, by_index: bool) -> tuple[float, float]:
        for cohort in self._cohorts:
            cohort.advance(now)
        left = self._not_begun() + sum(cohort.left * cohort.ctas for cohort in self._cohorts)
        rate = sum(cohort.rate * cohort.ctas for cohort in self._cohorts)
        return 1.0 - left / self.pieces, rate / self.pieces

    def _present_wave_ns(self) -> float:
        """Time of one wave alone, as the kernel stands now."""
        return self._wave_ns

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
