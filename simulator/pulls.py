"""Dynamic persistent kernels whose tiles are known (rule 4): CTAs pull tiles until none is left.

They keep their SMs from tile to tile, whoever waits, and leave one by one when the tiles run out. CTAs
that are placed late join in.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from schedules.program import Op
from simulator.fluid import Fluid
from simulator.waves import Cohort, Waves

if TYPE_CHECKING:
    from simulator.device import Device


class Pulls(Waves):
    """A dynamic kernel; a cohort's wave is a tile for each of its CTAs, and `_pool` is yet to be pulled."""

    __slots__ = ("_pool",)

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        super().__init__(op, device, sequence, launched, graph)
        self._pool = self.pieces = self.footprint.tiles
        self.unplaced = min(self.unplaced, self.most_sms * self.per_sm)

    def place(self, ctas: int, now: int) -> None:
        self.unplaced -= ctas
        begin = self._starts(now)
        pulling = min(ctas, self._pool)
        if pulling:
            self._pull(pulling, begin)
            self.active = True
        if pulling < ctas:  # a CTA that finds no tile leaves at once, and all that follow do
            self.unplaced = 0
        elif not self.unplaced:
            self._all_placed(begin)

    def _pull(self, ctas: int, begin: int) -> None:
        """So many CTAs take a tile each."""
        self._pool -= ctas
        self._cohort(ctas, begin, 1.0)

    def settle(self) -> None:
        super().settle()
        self._pool -= self._go_on(self._pool)

    def recall(self, now: int) -> None:
        """Put tiles back that were promised but not begun: late CTAs may pull them."""
        for cohort in self._cohorts:
            cohort.advance(now)
            later = ceil(cohort.left - 0.5 * cohort.rate) - 1
            if later > 0:
                cohort.left -= later
                self._pool += later * cohort.ctas

    def extend(self, *, followed: bool) -> None:
        """Its CTAs go on whoever is ahead; `settle` has seen to it."""

    def _not_begun(self) -> int:
        return self._pool

    def _turn_over(self, cohort: Fluid) -> None:
        assert isinstance(cohort, Cohort)
        self._cohorts.remove(cohort)
        self.width -= cohort.ctas
        self.sms -= cohort.sms
        self.device.release(cohort.allocation, self)
        if self._pool:
            self._pull(min(cohort.ctas, self._pool), self.device.clock.ns)
        elif self.unplaced:  # CTAs that come now find no tile
            self.unplaced = 0
            self.device.queue.remove(self)
        if not self._cohorts:
            self.device.finish(self)
