"""Two calibrations of one machine against each other: how far apart are the same points?

    python -m benchmarks.calibration_drift first.points.csv second.points.csv

`covered` is the share of points whose two times differ by no more than half of both spreads (10th to 90th
percentile of the runs) together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from models.measured import MeasuredPoint, read_points


@dataclass(frozen=True)
class Drift:
    """One kind of work: points in both, median of second over first, median and 90th percentile of
    the relative difference, and the share that the stated spreads cover."""

    kind: str
    count: int
    ratio: float
    median: float
    p90: float
    covered: float


def drifts(first: Sequence[MeasuredPoint], second: Sequence[MeasuredPoint]) -> list[Drift]:
    """A row a kind, and one for all."""
    others = {point.key: point for point in second}
    pairs = [(point, others[point.key]) for point in first if point.key in others]
    kinds = sorted({a.work.kind for a, _ in pairs})
    rows = [_drift(kind, [p for p in pairs if p[0].work.kind == kind]) for kind in kinds]
    return [*rows, _drift("all", pairs)]


def _drift(kind: str, pairs: Sequence[tuple[MeasuredPoint, MeasuredPoint]]) -> Drift:
    ratios = [b.ns / a.ns for a, b in pairs]
    off = sorted(abs(ratio - 1) for ratio in ratios)
    inside = sum(abs(b.ns / a.ns - 1) <= (a.spread + b.spread) / 2 for a, b in pairs)
    return Drift(
        kind,
        len(pairs),
        median(ratios),
        median(off),
        off[round(0.9 * (len(off) - 1))],
        inside / len(pairs),
    )


def main() -> None:
    """Print the table."""
    first, second = (read_points(Path(name)) for name in sys.argv[1:3])
    print(f"{'kind':<26}{'points':>7}{'ratio':>8}{'median':>9}{'p90':>9}{'covered':>9}")
    for row in drifts(first, second):
        print(
            f"{row.kind:<26}{row.count:>7}{row.ratio:>8.3f}{row.median:>9.1%}{row.p90:>9.1%}"
            f"{row.covered:>9.0%}"
        )


if __name__ == "__main__":
    main()
