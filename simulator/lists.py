"""Static persistent kernels (rule 4): each CTA has its list of tiles at launch.

A CTA that is placed late runs its full list, and each leaves after its own last tile. That is a kernel
of one long wave, whose time is that of the whole grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.forms import tail_law
from schedules.program import Op
from simulator.waves import Waves

if TYPE_CHECKING:
    from simulator.device import Device


class Lists(Waves):
    """A static kernel. With known tiles, `_count` in all, the first `_longer` CTAs have `_tiles` each, the
    others one less."""

    __slots__ = ("_count", "_longer", "_tail", "_tiles")

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        super().__init__(op, device, sequence, launched, graph)
        self._count = self.footprint.tiles or self.pieces
        self._tiles = -(-self._count // self.pieces)
        self._longer = self._count - (self._tiles - 1) * self.pieces
        self._tail = device.machine.tail(op.work.kind)

    def place(self, ctas: int, now: int) -> None:
        super().place(ctas, now)
        if not self.unplaced:
            self._all_placed(self._cohorts[-1].begin)

    def _start(self, ctas: int, begin: int) -> None:
        placed = self.pieces - self.unplaced
        self.unplaced -= ctas
        longer = max(0, min(ctas, self._longer - placed))
        if longer:
            self._cohort(longer, begin, 1.0)
        if ctas > longer:
            self._cohort(ctas - longer, begin, (self._tiles - 1) / self._tiles)

    def settle(self) -> None:
        self._turnover = 0
        if not self._wave_ns:
            self._wave_ns = self._unit(self.most_sms) / -(
                -self.pieces // (self.most_sms * self.per_sm)
            )

    def recall(self, now: int) -> None:
        """Nothing: a CTA's list is its own."""

    def extend(self, *, followed: bool) -> None:
        """Nothing: a CTA's list is its own."""

    def hbm_gbps(self) -> float:
        """The bytes of as many tiles as it has CTAs, over the time of one: alone, all its bytes in all."""
        if not self.hbm_bytes:
            return 0.0
        return self.hbm_bytes * self.width * self._tiles / (self._count * self._present_wave_ns())

    def _present_wave_ns(self) -> float:
        """The tail law: CTAs run faster when few are left because the others came early. That the last
        tiles of any launch run beside few is in its time alone."""
        if self._tail == 1.0 or not (self.unplaced or self.stalls):
            return self._wave_ns
        return self._wave_ns * tail_law(self._tail, self.width / self.pieces)

    def progress(self, now: int, *, by_index: bool) -> tuple[float, float]:
        """By index, a tile of every CTA lies before each later tile: the last CTA decides."""
        if not by_index:
            return super().progress(now, by_index=by_index)
        if self.unplaced or not self._cohorts:
            return 0.0, 0.0
        for cohort in self._cohorts:
            cohort.advance(now)
        last = max(self._cohorts, key=lambda cohort: cohort.left / cohort.whole)
        return 1.0 - last.left / last.whole, last.rate / last.whole
