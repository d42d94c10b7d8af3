"""The critical path: which ops the makespan is made of.

It is walked backwards from the last end. At each span the path goes on to what the span waited for
last: inside, the peer or producer that it stalled for; before its start, the culprit of its last
wait. The time from there to here belongs to the span, launch gap and reaction included. What the
host took belongs to the item `host`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schedules.merit.bubbles import FLIGHT_LANE
from schedules.merit.intervals import Interval, overlap
from schedules.timeline import Span, Timeline, Waited

HOST = "host"
START = "start"


@dataclass(frozen=True, slots=True)
class PathItem:
    """A piece of the critical path: `op` on `rank` from `start_ns` to `end_ns`. `op` is `host` for
    the host's own time and `start` for time before the first span that nothing explains."""

    op: str
    rank: int
    start_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


def critical_path(timeline: Timeline, window: Interval | None = None) -> tuple[PathItem, ...]:
    """The items of the path in order of time, without gaps: their ns add up to the makespan, or to
    the length of `window`. Empty for a timeline without spans."""
    if not timeline.spans:
        return ()
    items = _Walk(timeline).items()
    if window is None:
        return items
    start, end = window
    return tuple(
        PathItem(item.op, item.rank, max(item.start_ns, start), min(item.end_ns, end))
        for item in items
        if overlap((item.start_ns, item.end_ns), window)
    )


Handover = tuple[Span, int]


class _Walk:
    def __init__(self, timeline: Timeline) -> None:
        self.by_op = {(span.rank, span.op): span for span in timeline.spans}
        self.last = max(timeline.spans, key=lambda span: (span.end_ns, -span.rank, span.start_ns))
        self.flights: dict[tuple[int, int, str], list[Span]] = {}
        self.sends: dict[tuple[int, int, str], Span] = {}
        self.of_rank: dict[int, list[Span]] = {}
        for span in timeline.spans:
            if span.lane == FLIGHT_LANE:
                self.flights.setdefault((span.rank, span.layer, span.child), []).append(span)
                continue
            self.of_rank.setdefault(span.rank, []).append(span)
            if span.kind.endswith("_send"):
                self.sends.setdefault((span.placed_ns, span.layer, span.child), span)

    def items(self) -> tuple[PathItem, ...]:
        found: list[PathItem] = []
        span, now = self.last, self.last.end_ns
        seen: set[tuple[int, str]] = set()
        while now > 0:
            seen.add((span.rank, span.op))
            inside = self._inside(span, now)
            if inside is not None and (inside[0].rank, inside[0].op) not in seen:
                found.append(PathItem(span.op, span.rank, inside[1], now))
                span, now = inside
                continue
            before = self._before(span, seen)
            if before is None:
                found.append(PathItem(span.op, span.rank, min(span.start_ns, now), now))
                name = HOST if span.waits and span.waits[-1].cause == "host" else START
                found.append(PathItem(name, span.rank, 0, min(span.start_ns, now)))
                break
            culprit, point, by_host = before
            point = min(point, now)
            if by_host:
                start = min(span.start_ns, now)
                found.append(PathItem(span.op, span.rank, start, now))
                found.append(PathItem(HOST, span.rank, point, start))
            else:
                found.append(PathItem(span.op, span.rank, point, now))
            span, now = culprit, point
        return tuple(item for item in reversed(found) if item.ns > 0)

    def _inside(self, span: Span, now: int) -> Handover | None:
        """The latest time in the span at which somebody else let it go on."""
        found = [self._let_go(span, stall) for stall in span.stalls]
        found += [(flight, flight.end_ns) for flight in self._flights_to(span)]
        inside = [item for item in found if item and span.start_ns < item[1] <= now]
        return max(inside, key=lambda item: item[1], default=None)

    def _let_go(self, span: Span, stall: Waited) -> Handover | None:
        culprit = self._culprit(stall)
        if culprit is None or stall.ns <= 0:
            return None
        if stall.cause == "peer_wait":
            return culprit, culprit.placed_ns
        until = span.placed_ns if stall.cause == "sm_wait" else span.end_ns
        return culprit, min(culprit.end_ns, until)

    def _flights_to(self, span: Span) -> Iterable[Span]:
        if not span.kind.endswith("_recv") or not span.stalls:
            return ()
        exchange = span.op.removesuffix(".recv")
        flights = self.flights.get((span.rank, span.layer, span.child), ())
        return [flight for flight in flights if flight.op.startswith(exchange)]

    def _before(self, span: Span, seen: set[tuple[int, str]]) -> tuple[Span, int, bool] | None:
        """What the start waited for last: the span, until when, and whether the host lay between."""
        if span.lane == FLIGHT_LANE:
            send = self.sends.get((span.start_ns, span.layer, span.child))
            return None if send is None else (send, span.start_ns, False)
        for wait in reversed(span.waits):
            if wait.ns <= 0:
                continue
            culprit = self._culprit(wait)
            if culprit is None or (culprit.rank, culprit.op) in seen:
                return None
            return culprit, min(culprit.end_ns, span.start_ns), wait.cause == "host"
        previous = self._previous(span, seen)
        return None if previous is None else (previous, previous.end_ns, False)

    def _previous(self, span: Span, seen: set[tuple[int, str]]) -> Span | None:
        """Without waits (a measured timeline): the span of the rank that ended last before."""
        before = [
            other
            for other in self.of_rank.get(span.rank, ())
            if other.end_ns <= span.start_ns and (other.rank, other.op) not in seen
        ]
        return max(before, key=lambda other: (other.end_ns, other.start_ns, other.op), default=None)

    def _culprit(self, wait: Waited) -> Span | None:
        if wait.culprit is None or wait.culprit_rank is None:
            return None
        return self.by_op.get((wait.culprit_rank, wait.culprit))
