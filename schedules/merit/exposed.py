"""Exposed communication: the time in which a rank only communicates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from models.work import EXCHANGE_KINDS
from schedules.merit.intervals import Interval, minus, total, union
from schedules.timeline import Span, Timeline


def is_communication(span: Span) -> bool:
    """Whether the span is a kernel of an exchange, or a flight."""
    return span.kind in EXCHANGE_KINDS


def exposed_ns(timeline: Timeline, window: Interval | None = None) -> dict[int, int]:
    """For each rank the ns in which a kernel of an exchange or a flight is on and no other kernel of
    that rank is."""
    return {rank: total(_exposed(timeline.of_rank(rank)), window) for rank in timeline.ranks}


def exposed_intervals(timeline: Timeline, rank: int) -> list[Interval]:
    """The intervals of one rank that `exposed_ns` counts, in order."""
    return _exposed(timeline.of_rank(rank))


def exposed_by_layer_ns(timeline: Timeline, rank: int) -> dict[int, int]:
    """The same for one rank, by the layer of the communication that started first. The layers add up
    to the rank's exposed communication; -1 stands for spans outside layers."""
    spans = timeline.of_rank(rank)
    layers = dict.fromkeys(sorted({span.layer for span in spans if is_communication(span)}), 0)
    for layer, piece in _by_layer(spans):
        layers[layer] += piece[1] - piece[0]
    return layers


def _exposed(spans: Iterable[Span]) -> list[Interval]:
    spans = tuple(spans)
    compute = union((s.start_ns, s.end_ns) for s in spans if not is_communication(s))
    return minus(union((s.start_ns, s.end_ns) for s in spans if is_communication(s)), compute)


def _by_layer(spans: Iterable[Span]) -> Iterator[tuple[int, Interval]]:
    """Exposed pieces with the layer that started first among those that are on."""
    spans = tuple(spans)
    compute = union((s.start_ns, s.end_ns) for s in spans if not is_communication(s))
    ends = [end for _, end in compute]
    taken = 0
    for span in sorted(filter(is_communication, spans), key=lambda span: span.start_ns):
        start = max(span.start_ns, taken)
        taken = max(taken, span.end_ns)
        if start < span.end_ns:
            near = compute[bisect_right(ends, start) : bisect_right(ends, span.end_ns) + 1]
            for piece in minus([(start, span.end_ns)], near):
                yield span.layer, piece
