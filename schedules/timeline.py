"""What happened, or is predicted to happen: spans on lanes, with the reason for every start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.host import HostProbe

Origin = Literal["predicted", "measured", "imported"]
Cause = Literal["queued", "dependency", "sm_wait", "link_wait", "peer_wait", "host"]
CAUSES: tuple[Cause, ...] = ("queued", "dependency", "sm_wait", "link_wait", "peer_wait", "host")


@dataclass(frozen=True, slots=True)
class Waited:
    """`ns` of waiting for one reason; `culprit` is the op (on `culprit_rank`) that ended the wait.

    queued: behind its own stream's predecessor (gap included). dependency: for an event. sm_wait:
    ready, but no room. peer_wait: placed, but a peer's kernel was not. link_wait: slowed by shared
    links. host: the host had not launched it yet.
    """

    cause: Cause
    ns: int
    culprit: str | None = None
    culprit_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel, or one flight, on one rank. Times in ns from the timeline's origin.

    `ready_ns` is when nothing but SMs was missing, `start_ns` its first CTA's placement, `end_ns` its
    last CTA's end. `lane` is a stream's name, or `flight`. `waits` precede the start and partition the
    time since its stream's previous span ended (or since 0); `stalls` lie inside the span (room for late CTAs,
    peers, links, signals; interference has none). `sms` is the most SMs it held; `label` is the label of its cost.
    """

    op: str
    rank: int
    lane: str
    ready_ns: int
    start_ns: int
    end_ns: int
    kind: str = ""
    layer: int = -1
    child: str = ""
    waits: tuple[Waited, ...] = ()
    stalls: tuple[Waited, ...] = ()
    sms: int = 0
    alone_ns: int = 0
    label: str = ""

    @property
    def duration_ns(self) -> int:
        """End minus start."""
        return self.end_ns - self.start_ns

    @property
    def placed_ns(self) -> int:
        """When its last CTA was placed: the start, unless late CTAs waited for room (a stall)."""
        return self.start_ns + sum(stall.ns for stall in self.stalls if stall.cause == "sm_wait")


@dataclass(frozen=True, slots=True)
class Counter:
    """A step function of time on one rank: `points` are (ns, value), value holding until the next.

    Names: `sms_resident`, `sms_spinning`, `hbm_gbps`, `nvlink_gbps`, `nic_gbps`.
    """

    name: str
    rank: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Timeline:
    """Spans in order of (start, rank, lane, op) with counters; `clock_error_ns` bounds the
    misalignment of ranks' clocks in a measured timeline, 0 in a predicted one. `host_probes` tell the
    speed of the slowest rank's host beside the measurement, in order, where that was asked."""

    program: str
    machine: str
    origin: Origin
    spans: tuple[Span, ...]
    counters: tuple[Counter, ...] = ()
    clock_error_ns: int = 0
    host_probes: tuple[HostProbe, ...] = ()

    @property
    def makespan_ns(self) -> int:
        """From 0 to the last end; 0 when there is no span."""
        return max((span.end_ns for span in self.spans), default=0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that have spans, ascending."""
        return tuple(sorted({span.rank for span in self.spans}))

    def of_rank(self, rank: int) -> tuple[Span, ...]:
        """Spans of one rank in order of start."""
        return tuple(span for span in self.spans if span.rank == rank)
