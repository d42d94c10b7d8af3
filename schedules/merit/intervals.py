"""Intervals of time in integer ns: unions, differences, clipping."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that cover the same time; empty ones vanish."""
    merged: list[Interval] = []
    for start, end in sorted(item for item in intervals if item[0] < item[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def minus(one: Iterable[Interval], other: Iterable[Interval]) -> list[Interval]:
    """Time in `one` and not in `other`; both as `union` gives them."""
    left: list[Interval] = []
    holes = list(other)
    at = 0
    for start, end in one:
        while at < len(holes) and holes[at][1] <= start:
            at += 1
        hole = at
        while hole < len(holes) and holes[hole][0] < end:
            if start < holes[hole][0]:
                left.append((start, holes[hole][0]))
            start = max(start, holes[hole][1])
            hole += 1
        if start < end:
            left.append((start, end))
    return left


def total(intervals: Iterable[Interval], window: Interval | None = None) -> int:
    """ns covered by disjoint intervals, inside `window` when one is given."""
    if window is None:
        return sum(end - start for start, end in intervals)
    return sum(overlap(item, window) for item in intervals)


def overlap(one: Interval, other: Interval) -> int:
    """ns that two intervals share."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
