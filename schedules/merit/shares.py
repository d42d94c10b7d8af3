"""Sums over spans and counters: time by kind, cost by label, SMs resident and spinning."""

from __future__ import annotations

from schedules.merit.intervals import Interval, overlap
from schedules.timeline import Counter, Timeline


def kind_ns(timeline: Timeline, rank: int) -> dict[str, int]:
    """Sum of span durations of one rank by kind of work, longest first. Spans that overlap count
    each, so the sum may exceed the makespan."""
    sums: dict[str, int] = {}
    for span in timeline.of_rank(rank):
        sums[span.kind] = sums.get(span.kind, 0) + span.duration_ns
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def cost_shares(timeline: Timeline) -> dict[str, float]:
    """Share of the kernels' time alone that each cost label has, largest first; empty when no span
    has a time alone."""
    sums: dict[str, int] = {}
    for span in timeline.spans:
        if span.alone_ns:
            sums[span.label] = sums.get(span.label, 0) + span.alone_ns
    whole = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return {label: ns / whole for label, ns in ordered}


def sm_resident_fraction(
    timeline: Timeline, num_sms: int, window: Interval | None = None
) -> float | None:
    """Mean share of SMs that hold a CTA over time and ranks; None without such a counter."""
    return _fraction(timeline, "sms_resident", num_sms, window)


def sm_spinning_fraction(
    timeline: Timeline, num_sms: int, window: Interval | None = None
) -> float | None:
    """Mean share of SMs whose CTAs only wait for peers, data or signals; None without a counter."""
    return _fraction(timeline, "sms_spinning", num_sms, window)


def _fraction(timeline: Timeline, name: str, num_sms: int, window: Interval | None) -> float | None:
    whole = (0, timeline.makespan_ns) if window is None else window
    counters = [counter for counter in timeline.counters if counter.name == name]
    if not counters or whole[1] <= whole[0]:
        return None
    area = sum(_area(counter, whole, timeline.makespan_ns) for counter in counters)
    return area / (num_sms * (whole[1] - whole[0]) * len(counters))


def _area(counter: Counter, window: Interval, end: int) -> float:
    """Value times ns inside the window; each value holds until the next point."""
    starts = [time for time, _ in counter.points]
    ends = [*starts[1:], max(end, starts[-1])] if starts else []
    return sum(
        value * overlap((start, stop), window)
        for (start, value), stop in zip(counter.points, ends, strict=True)
    )
