"""Two calibrations of machines of one kind against each other: how far apart are the same points?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from models.measured import MeasuredPoint, percentile

# The difference that so many points stay below is what a calibration repeats within.
MOST = 0.9
Both = tuple[MeasuredPoint, MeasuredPoint]


@dataclass(frozen=True, slots=True)
class Drift:
    """One kind of work: points in both, median of second over first, median and 90th percentile of
    the relative difference, and the share of points whose two times differ by no more than half of both
    spreads (10th to 90th percentile of the runs) together."""

    kind: str
    count: int
    ratio: float
    median: float
    p90: float
    covered: float


def in_both(first: Sequence[MeasuredPoint], second: Sequence[MeasuredPoint]) -> list[Both]:
    """Points of the same work on as many SMs. Where both tell how many kernels they launched, these must
    be as many: another number is another kernel."""
    others = {point.key: point for point in second}
    found = [(point, others[point.key]) for point in first if point.key in others]
    return [(a, b) for a, b in found if not (a.launches and b.launches) or a.launches == b.launches]


def drifts(first: Sequence[MeasuredPoint], second: Sequence[MeasuredPoint]) -> list[Drift]:
    """A row a kind, and one for all; none where no point is in both."""
    pairs = in_both(first, second)
    kinds = sorted({a.work.kind for a, _ in pairs})
    rows = [_drift(kind, [p for p in pairs if p[0].work.kind == kind]) for kind in kinds]
    return [*rows, _drift("all", pairs)] if pairs else []


def _drift(kind: str, pairs: Sequence[Both]) -> Drift:
    ratios = [b.ns / a.ns for a, b in pairs]
    off = [abs(ratio - 1) for ratio in ratios]
    inside = sum(abs(b.ns / a.ns - 1) <= (a.spread + b.spread) / 2 for a, b in pairs)
    p90 = percentile(off, MOST)
    return Drift(kind, len(pairs), median(ratios), median(off), p90, inside / len(pairs))
