"""Two loops of kernels on two streams, and how much each slows the other (figures from intervals)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

Interval = tuple[float, float]
LEAST_COVERED = 3


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """Median time of one call of each loop beside the other, over its median time alone; None where
    fewer than three calls ran wholly beside the other loop. `drift` is how much the times alone
    changed from before to after."""

    first: float | None
    second: float | None
    drift: float


def slowdowns(
    alone_first: Sequence[Sequence[Interval]],
    alone_second: Sequence[Sequence[Interval]],
    first: Sequence[Interval],
    second: Sequence[Interval],
) -> Slowdowns:
    """From the calls' intervals alone (before and after) and beside each other."""
    base_first = [median(_lengths(calls)) for calls in alone_first]
    base_second = [median(_lengths(calls)) for calls in alone_second]
    return Slowdowns(
        _ratio(covered(first, second), base_first),
        _ratio(covered(second, first), base_second),
        max(max(b) / min(b) - 1 for b in (base_first, base_second)),
    )


def covered(calls: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The calls that ran while the other loop did, from its first call's start to its last one's end,
    the loops' own first calls left out."""
    if not others:
        return []
    start, end = others[0][0], others[-1][1]
    return [call for call in calls[1:] if call[0] >= start and call[1] <= end]


def calls_for(alone_ns: float, total_ns: float, most: int) -> int:
    """Calls that fill `total_ns`, at least a few."""
    return max(LEAST_COVERED + 2, min(most, round(total_ns / alone_ns)))


def _lengths(calls: Sequence[Interval]) -> list[float]:
    return [end - start for start, end in calls[1:]]


def _ratio(calls: Sequence[Interval], alone: Sequence[float]) -> float | None:
    if len(calls) < LEAST_COVERED:
        return None
    return median(end - start for start, end in calls) / (sum(alone) / len(alone))
