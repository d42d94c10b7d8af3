"""One rank's device: the queue of ready kernels, who gets SMs, and who runs (rule 3)."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Protocol

from models.machine import Machine
from schedules.program import Op, Signal
from simulator.clock import Clock
from simulator.held import Held
from simulator.kernel import Kernel
from simulator.lists import Lists
from simulator.placement import Room
from simulator.prices import Prices
from simulator.pulls import Pulls
from simulator.rates import slowdowns
from simulator.signals import Poll
from simulator.waves import Waves

if TYPE_CHECKING:
    from simulator.exchanges import Gate


class Wiring(Protocol):
    """What a device needs of the whole: the program's exchanges and signals, and to be looked at."""

    highest_priority: int

    def touch(self, device: Device) -> None:
        """Place and share anew on this device at this instant."""
        ...

    def family(self, exchange: str) -> str:
        """The family of an exchange."""
        ...

    def gate(self, exchange: str, role: str, rank: int) -> Gate:
        """One role of an exchange that `rank` takes part in."""
        ...

    def signal(self, name: str) -> Signal:
        """The signal called `name`."""
        ...


class Device:
    """SMs, ready queue and running kernels of one simulated rank.

    The queue is ordered by (priority, time ready, host order); a gang counts as the highest priority
    against those that wait, but not among kernels that all become ready at the same instant.
    """

    def __init__(
        self,
        rank: int,
        clock: Clock,
        machine: Machine,
        prices: Prices,
        wiring: Wiring,
    ) -> None:
        self.rank = rank
        self.clock = clock
        self.machine = machine
        self.prices = prices
        self.room = Room(machine.num_sms, machine.sm)
        self.queue: list[Kernel] = []
        self.running: list[Kernel] = []
        self.ended: list[Kernel] = []
        self.raisers: dict[str, Kernel] = {}
        self.freed_by: Kernel | None = None
        self.hbm_gbps = 0.0
        self._wiring = wiring
        self._allocations = 0

    def kernel(self, op: Op, sequence: int, launched: int, graph: int) -> Kernel:
        """A launch of `op`, not yet ready."""
        kernel = self._kind(op)(op, self, sequence, launched, graph)
        if op.raises is not None:
            self.raisers[op.raises] = kernel
        return kernel

    def _kind(self, op: Op) -> type[Kernel]:
        """How the kernel runs: what it may wait for decides, then its grid."""
        if op.exchange is not None or op.polls is not None:
            return Held
        if op.grid.kind == "wave":
            return Waves
        if op.grid.kind == "static":
            return Lists
        return Pulls if self.prices.launched(op.work, op.grid).footprint.tiles else Held

    def submit(self, kernel: Kernel, priority: int) -> None:
        """The kernel is ready now; it joins the queue."""
        kernel.arrival = (priority, kernel.sequence)
        if kernel.op.grid.gang:
            priority = self._wiring.highest_priority
        kernel.ready = self.clock.ns
        kernel.order = (priority, kernel.ready, kernel.sequence)
        if self.queue:
            insort(self.queue, kernel, key=_order)
        else:
            self.queue.append(kernel)
        self.touch()

    def place(self, now: int) -> None:
        """Freed SMs go to the head of the queue, and to the next only when it needs no more."""
        if not self.queue and not self.running:
            return
        for kernel in self.running:
            placed = not kernel.unplaced
            kernel.recall(now)
            if placed and kernel.unplaced:
                insort(self.queue, kernel, key=_order)
        for kernel in self._line(now):
            if not self._place(kernel, now):
                break
        for kernel in self.running:
            kernel.settle()
        if self.queue:
            head = self.queue[0]
            head.extend(followed=len(self.queue) > 1)
            if not head.unplaced:
                self.queue.remove(head)

    def _line(self, now: int) -> tuple[Kernel, ...]:
        """The queue as it is served. Where nobody has waited yet, a gang has nobody to pass: at equal
        time and priority the host's order decides (rule 8), else a kernel that polls could take the
        SMs of the one that it waits for."""
        line = tuple(self.queue)
        if len(line) > 1 and line[0].op.grid.gang and all(k.ready == now for k in line):
            line = tuple(sorted(line, key=_arrival))
        return line

    def _place(self, kernel: Kernel, now: int) -> bool:
        """Place what fits of the kernel; whether the next in the queue may have the rest. A kernel
        that holds every SM and still has CTAs to place keeps the others out; one that is confined to
        a part of the SMs has no use for the rest."""
        wanted = kernel.wants()
        fits = self.room.fits(kernel.footprint, wanted) if wanted else 0
        if kernel.op.grid.gang and fits < kernel.unplaced:
            return False
        if fits:
            if kernel.start < 0:
                self.running.append(kernel)
            kernel.place(fits, now)
        if not kernel.unplaced:
            self.queue.remove(kernel)
        confined = kernel.most_sms < self.machine.num_sms
        return not kernel.unplaced or (confined and fits == wanted)

    def share(self, now: int) -> None:
        """Set the pace of every running kernel beside its present neighbours."""
        self.hbm_gbps = 0.0
        active = [kernel for kernel in self.running if kernel.active]
        if len(active) == 1:
            active[0].flow(now, 1.0)
            self.hbm_gbps = active[0].hbm_gbps()
            return
        for kernel, slow in zip(active, slowdowns(active, self.machine), strict=True):
            kernel.flow(now, slow)
            self.hbm_gbps += kernel.hbm_gbps() / slow

    def release(self, allocation: int, kernel: Kernel) -> None:
        """SMs that the kernel held are free."""
        self.room.release(allocation)
        self.freed_by = kernel
        self.touch()

    def finish(self, kernel: Kernel) -> None:
        """The kernel has done its work: its stream and its exchange go on."""
        kernel.end = self.clock.ns
        kernel.active = False
        self.running.remove(kernel)
        self.ended.append(kernel)
        if isinstance(kernel, Held):
            kernel.release()
            if kernel.unplaced:  # a dynamic kernel whose tiles ran out before its last CTAs came
                self.queue.remove(kernel)
            if kernel.gate is not None:
                kernel.gate.ended(kernel)
        self.touch()
        self.clock.fire(kernel.done)

    def touch(self) -> None:
        """Somebody came, went or changed: place and share anew at this instant."""
        self._wiring.touch(self)

    def next_allocation(self) -> int:
        """A number for CTAs placed together."""
        self._allocations += 1
        return self._allocations

    def family(self, exchange: str) -> str:
        """The family of an exchange."""
        return self._wiring.family(exchange)

    def gate(self, kernel: Held) -> Gate | None:
        """What opens a kernel once it is placed: its exchange, if it has one."""
        op = kernel.op
        if op.exchange is None or op.role is None:
            return None
        return self._wiring.gate(op.exchange, op.role, self.rank)

    def poll(self, kernel: Held) -> Poll | None:
        """What bounds a polling kernel's progress."""
        name = kernel.op.polls
        if name is None:
            return None
        signal = self._wiring.signal(name)
        return Poll(kernel, signal.blocks, by_index=signal.order == "index")


def _order(kernel: Kernel) -> tuple[int, int, int]:
    return kernel.order


def _arrival(kernel: Kernel) -> tuple[int, int]:
    return kernel.arrival
