"""How kernels run once the host has launched them (rule 4: wave, static, dynamic).

`Waves` are kernels whose CTAs come and go: a *cohort* is a set of CTAs placed together, and at each
turnover its room is up for whoever heads the queue. A *static* persistent kernel is the same with
one long wave. `Held` kernels keep every SM until they end: *dynamic* persistent kernels, whose rate
follows the SMs they hold, and all kernels that wait for other ranks or for signals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import simpy

from schedules.program import Op
from schedules.timeline import Cause
from simulator.fluid import Fluid

if TYPE_CHECKING:
    from simulator.device import Device

Stall = tuple[Cause, int, "Kernel | None"]
_LEAST_NS = 1e-6  # stands for zero in a division


class Queued(NamedTuple):
    """What a kernel waited for in its stream: its predecessor and the end of the launch gap after it,
    the earliest start that awaited events allow, and the kernel behind the latest event."""

    previous: Kernel | None
    gap_end: int
    awaited: int
    awaited_by: Kernel | None


_NOTHING = Queued(None, 0, 0, None)


class Kernel:
    """One launch on one rank: what it asks for, and what has become of it. Times in ns. `family` is its
    exchange's, "" for compute.

    `unplaced` CTAs still want room and `sms` hold some; `active` says whether it makes progress now.
    """

    __slots__ = (
        "active", "alone", "blocked_by", "device", "done", "end", "family", "footprint", "freed_by", "graph",
        "launched", "most_sms", "op", "order", "peak_sms", "per_sm", "queued", "ready", "sequence", "sms",
        "stalls", "start", "unplaced", "width",
    )  # fmt: skip

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        self.op = op
        self.device = device
        self.sequence = sequence
        self.launched = launched
        self.graph = graph
        self.family = device.family(op.exchange) if op.exchange is not None else ""
        self.done: simpy.Event = device.clock.event()
        launched_as = device.prices.launched(op.work, op.grid)
        self.footprint, self.per_sm, self.most_sms, self.alone = launched_as
        self.unplaced = self.footprint.ctas
        self.width = self.sms = self.peak_sms = 0
        self.start = self.end = -1
        self.active = False
        self.stalls: tuple[Stall, ...] = ()
        self.freed_by: Kernel | None = None
        self.blocked_by: Kernel | None = None  # what the host waited for before this launch
        self.queued = _NOTHING
        self.ready = 0
        self.order = (0, 0, 0)

    def wants(self) -> int:
        """CTAs that it would place now if there were room."""
        room = self.most_sms * self.per_sm - self.width
        return self.unplaced if self.unplaced < room else room

    def place(self, ctas: int, now: int) -> None:
        """Take room for `ctas` CTAs; those that waited for it start after the reaction time."""
        raise NotImplementedError

    def recall(self, now: int) -> None:
        """Take back the CTAs that were promised room but have not begun; somebody may be ahead now."""

    def settle(self) -> None:
        """A round of placement is over."""

    def extend(self) -> None:
        """Nobody is ahead in the queue: promise its own room to as many CTAs as that serves."""

    def flow(self, now: int, slow: float) -> None:
        """Go on, `slow` times slower than alone."""
        raise NotImplementedError

    def hbm_gbps(self) -> float:
        """HBM bytes per ns that it would move now if nothing slowed it."""
        raise NotImplementedError

    def progress(self, now: int, *, by_index: bool) -> tuple[float, float]:
        """Share of its work done now, and how much more of it per ns; `by_index`: the share up to
        which every tile is done, in order."""
        raise NotImplementedError

    def _starts(self, now: int) -> int:
        """When CTAs placed now start: at once if the kernel never waited for room."""
        begin = now if now == self.ready else now + self.device.machine.gaps.reaction
        if self.start < 0:
            self.start = begin
            self.freed_by = self.device.freed_by if now > self.ready else None
        return begin

    def _unit(self, sms: int) -> float:
        """ns alone on `sms` SMs, never zero."""
        cost = self.alone
        if sms != self.most_sms:
            cost = self.device.prices.alone(self.op.work, self.op.grid, sms)
        return cost.ns or _LEAST_NS


class _Cohort(Fluid):
    """CTAs placed together; `left` counts waves, whole ones that nobody else wants included."""

    __slots__ = ("allocation", "ctas", "sms")

    allocation: int
    ctas: int
    sms: int


class Waves(Kernel):
    """A kernel whose SMs come back at each turnover."""

    __slots__ = ("_cohorts", "_turnover", "_wave_ns")

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        super().__init__(op, device, sequence, launched, graph)
        self._cohorts: list[_Cohort] = []
        self._turnover = 0  # CTAs whose room this kernel gave back at this instant
        self._wave_ns = 0.0

    def place(self, ctas: int, now: int) -> None:
        own = min(ctas, self._turnover)
        if own:
            self._cohort(own, now)
        if ctas > own:
            self._cohort(ctas - own, self._starts(now))
        self.unplaced -= ctas
        self.active = True

    def _cohort(self, ctas: int, begin: int) -> None:
        device = self.device
        cohort = _Cohort(device.clock, 1.0, begin, self._turn_over)
        cohort.ctas = ctas
        cohort.allocation = device.next_allocation()
        cohort.sms = device.room.take(cohort.allocation, self.footprint, ctas)
        self._cohorts.append(cohort)
        self.width += ctas
        self.sms += cohort.sms
        self.peak_sms = max(self.peak_sms, self.sms)

    def settle(self) -> None:
        """Fix the time of a wave by the SMs held."""
        self._turnover = 0
        if not self._wave_ns or self.unplaced:
            held = min(self.sms, self.most_sms)
            sms = self.most_sms if self.op.grid.kind == "static" else held
            if sms:
                self._wave_ns = self._unit(sms) / -(-self.footprint.ctas // (sms * self.per_sm))

    def recall(self, now: int) -> None:
        """Take back the waves that have not begun."""
        for cohort in self._cohorts:
            cohort.advance(now)
            margin = 0.5 / self._wave_ns  # a turnover due within half a ns has happened
            later = -int(-(cohort.left - margin) // 1) - 1
            if later > 0:
                cohort.left -= later
                self.unplaced += later * cohort.ctas

    def extend(self) -> None:
        """Let every cohort go on for as many whole rounds as there are."""
        rounds = self.unplaced // self.width if self.width else 0
        if rounds:
            for cohort in self._cohorts:
                cohort.left += rounds
            self.unplaced -= rounds * self.width

    def flow(self, now: int, slow: float) -> None:
        rate = 1.0 / (self._wave_ns * slow * self._tail())
        for cohort in self._cohorts:
            cohort.flow(now, rate)

    def _tail(self) -> float:
        """The tail law: a static kernel's CTAs run faster when few are left."""
        a = self.device.machine.static_tail
        if self.op.grid.kind != "static" or a == 1.0:
            return 1.0
        share: float = self.width / self.footprint.ctas
        return float((a + (1.0 - a) * share**4) ** 0.25)

    def hbm_gbps(self) -> float:
        share = self.width / self.footprint.ctas
        return self.op.work.hbm_bytes * share / (self._wave_ns * self._tail())

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


class Held(Kernel):
    """A kernel that keeps its SMs until it ends. `gate` opens its work once every CTA is placed; a
    *dynamic* kernel has none and starts with its first CTA, and its later CTAs count at once."""

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
        self.sms += self.device.room.take(allocation, self.footprint, ctas)
        self._allocations.append(allocation)
        self.peak_sms = self.sms
        self.unplaced -= ctas
        self.width += ctas
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
        """Whether it makes progress now, rather than spin."""
        return self.active and (self.poll is None or not self.poll.starved)

    def hbm_gbps(self) -> float:
        return self.op.work.hbm_bytes / self._unit(min(self.sms, self.most_sms))

    def progress(self, now: int, *, by_index: bool) -> tuple[float, float]:
        self.fluid.advance(now)
        return 1.0 - self.fluid.left, self.fluid.rate

    def release(self) -> None:
        """Give all SMs back."""
        for allocation in self._allocations:
            self.device.release(allocation, self)
