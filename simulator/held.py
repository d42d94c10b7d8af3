"""Kernels that keep every SM until they end (rules 4 and 6).

*Dynamic* persistent kernels pull their tiles, so that their rate follows the SMs they hold. Kernels
of exchanges and kernels that poll signals hold their SMs while they wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedules.program import Op
from simulator.fluid import Fluid
from simulator.kernel import Kernel

if TYPE_CHECKING:
    from simulator.device import Device


class Held(Kernel):
    """One such kernel. `gate` opens its work once every CTA is placed; a *dynamic* kernel has none and
    starts with its first CTA, and its later CTAs count at once."""

    __slots__ = ("_allocations", "_slow", "fluid", "gate", "poll")

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        super().__init__(op, device, sequence, launched, graph)
        self.unplaced = min(self.unplaced, self.most_sms * self.per_sm)
        self._allocations: list[int] = []
        self.fluid = Fluid(device.clock, 1.0, 0, lambda _: device.finish(self))
        self.gate = device.gate(self)
        self.poll = device.poll(self)
        self._slow = 1.0

    def place(self, ctas: int, now: int) -> None:
        begin = self._starts(now)
        allocation = self.device.next_allocation()
        self.sms += self.device.room.take(allocation, self.footprint, ctas, packed=self.packed)
        self._allocations.append(allocation)
        self.peak_sms = self.sms
        self.unplaced -= ctas
        self.width += ctas
        if not self.unplaced:
            self._all_placed(begin)
        if self.gate is None:
            if not self.active:
                self.open(begin)
        elif not self.unplaced:
            self.gate.placed(self, begin)

    def open(self, begin: int) -> None:
        """Nothing but its own work is left to wait for, from `begin` on."""
        self.fluid.since = begin
        self.active = True
        self.device.touch()

    def pace(self) -> float:
        """Share of its work per ns on its SMs, beside its neighbours."""
        return 1.0 / (self._unit(min(self.sms, self.most_sms)) * self._slow)

    def flow(self, now: int, slow: float) -> None:
        self._slow = slow
        if self.gate is None or not self.gate.on_links(self):
            self.move(now, 1.0)

    def move(self, now: int, share: float) -> None:
        """Go on at this share of its pace, as far as the signals that it polls allow."""
        if self.poll is not None:
            self.poll.flow(now, self.pace() * share)
        else:
            self.fluid.flow(now, self.pace() * share)

    def works(self) -> bool:
        return self.active and (self.poll is None or not self.poll.starved)

    def hbm_gbps(self) -> float:
        return self.hbm_bytes / self._unit(min(self.sms, self.most_sms))

    def progress(self, now: int, *, by_index: bool) -> tuple[float, float]:
        self.fluid.advance(now)
        return 1.0 - self.fluid.left, self.fluid.rate

    def release(self) -> None:
        """Give all SMs back."""
        for allocation in self._allocations:
            self.device.release(allocation, self)
