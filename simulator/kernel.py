"""One launch on one rank: what `Waves` and `Held` kernels have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import simpy

from schedules.program import Op
from schedules.timeline import Cause

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
    `pieces` are what its work divides into: CTAs, or the tiles that CTAs pull.
    A kernel with more CTAs than SMs in its budget is `packed` on those SMs.
    """

    __slots__ = (
        "active",
        "alone",
        "arrival",
        "blocked_by",
        "device",
        "done",
        "end",
        "family",
        "footprint",
        "freed_by",
        "graph",
        "hbm_bytes",
        "launched",
        "most_sms",
        "op",
        "order",
        "packed",
        "peak_sms",
        "per_sm",
        "pieces",
        "queued",
        "ready",
        "sequence",
        "sms",
        "stalls",
        "start",
        "unplaced",
        "width",
    )  # fmt: skip

    def __init__(self, op: Op, device: Device, sequence: int, launched: int, graph: int) -> None:
        self.op = op
        self.device = device
        self.sequence = sequence
        self.launched = launched
        self.graph = graph
        self.family = device.family(op.exchange) if op.exchange is not None else ""
        self.done = simpy.Event(device.clock)
        launched_as = device.prices.launched(op.work, op.grid)
        self.footprint, self.per_sm, self.most_sms, self.alone = launched_as
        self.packed = self.footprint.ctas > self.most_sms < device.machine.num_sms
        self.hbm_bytes = op.work.hbm_bytes
        self.unplaced = self.pieces = self.footprint.ctas
        self.width = self.sms = self.peak_sms = 0
        self.start = self.end = -1
        self.active = False
        self.stalls: tuple[Stall, ...] = ()
        self.freed_by: Kernel | None = None
        self.blocked_by: Kernel | None = None  # what the host waited for before this launch
        self.queued = _NOTHING
        self.ready = 0
        self.order = (0, 0, 0)
        self.arrival = (0, 0)  # its stream's priority, and its place in the host's order

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

    def extend(self, *, followed: bool) -> None:
        """Nobody is ahead in the queue: promise its own room to as many CTAs as that serves. When
        others follow in the queue, the last of its CTAs are not promised, since their placement lets
        the others have a look."""

    def flow(self, now: int, slow: float) -> None:
        """Go on, `slow` times slower than alone."""
        raise NotImplementedError

    def works(self) -> bool:
        """Whether it makes progress now, rather than spin on SMs that it holds."""
        return self.active

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

    def _all_placed(self, begin: int) -> None:
        """The last CTA starts at `begin`: what the kernel has waited for room since its first one."""
        if begin > self.start:
            self.stalls += (("sm_wait", begin - self.start, self.device.freed_by),)

    def _unit(self, sms: int) -> float:
        """ns alone on `sms` SMs, never zero, with what signals cost that are not late."""
        cost = self.alone
        if sms != self.most_sms:
            cost = self.device.prices.alone(self.op.work, self.op.grid, sms)
        if self.op.polls is None and self.op.raises is None:
            return cost.ns or _LEAST_NS
        sizes = dict(self.op.work.dims)
        rows = sizes.get("rows", sizes.get("sent", 1))
        ratio = self.device.machine.signal_ratio(self.op.work.kind, rows, sms)
        return (cost.ns or _LEAST_NS) * ratio
