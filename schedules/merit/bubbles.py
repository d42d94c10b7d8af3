"""Bubbles: the time in which a stream runs nothing, by cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from schedules.merit.intervals import Interval, overlap
from schedules.timeline import CAUSES, Span, Timeline

FLIGHT_LANE = "flight"
DRAINED = "drained"
UNEXPLAINED = "unexplained"
BUBBLES = (*CAUSES, DRAINED, UNEXPLAINED)


@dataclass(frozen=True, slots=True)
class StreamTime:
    """One stream of one rank: `busy_ns` in kernels and `bubbles_ns` by cause; together the makespan
    (or the length of the window). Every cause of `BUBBLES` is a key."""

    rank: int
    stream: str
    busy_ns: int
    bubbles_ns: Mapping[str, int]


def stream_times(timeline: Timeline, window: Interval | None = None) -> tuple[StreamTime, ...]:
    """Busy time and bubbles of every stream that has spans, in order of rank and stream.

    A bubble's causes are those that the next span waited for, in order of time. `drained` is the time
    after a stream's last span; `unexplained` is what no wait of the timeline accounts for (all of it
    in a measured timeline without waits). Lane `flight` is no stream.
    """
    whole = (0, timeline.makespan_ns) if window is None else window
    lanes: dict[tuple[int, str], list[Span]] = {}
    for span in timeline.spans:
        if span.lane != FLIGHT_LANE:
            lanes.setdefault((span.rank, span.lane), []).append(span)
    found = []
    for (rank, stream), spans in sorted(lanes.items()):
        spans.sort(key=lambda span: (span.start_ns, span.end_ns))
        bubbles = dict.fromkeys(BUBBLES, 0)
        for cause, piece in _gaps(spans, timeline.makespan_ns):
            bubbles[cause] += overlap(piece, whole)
        busy = whole[1] - whole[0] - sum(bubbles.values())
        found.append(StreamTime(rank, stream, busy, bubbles))
    return tuple(found)


def _gaps(spans: Sequence[Span], makespan: int) -> Iterator[tuple[str, Interval]]:
    """The pieces of time between the spans of one stream, each with its cause."""
    end = 0
    for span in spans:
        yield from _causes(span, end)
        end = max(end, span.end_ns)
    yield DRAINED, (end, makespan)


def _causes(span: Span, free_from: int) -> Iterator[tuple[str, Interval]]:
    """The waits end at the span's start; what lies before the first of them is unexplained."""
    at = span.start_ns
    for wait in reversed(span.waits):
        start = max(free_from, at - wait.ns)
        if start < at:
            yield wait.cause, (start, at)
            at = start
    if free_from < at:
        yield UNEXPLAINED, (free_from, at)
