"""Two calibrations of the same points."""

from __future__ import annotations

import pytest

from models.counts import elementwise
from models.drift import drifts
from models.measured import MeasuredPoint


def point(rows: int, ns: float, *, spread: float = 0.0, launches: int = 1) -> MeasuredPoint:
    work = elementwise("quantise", rows, 7168, rows * 14336, rows * 7168)
    return MeasuredPoint(work, 132, ns, spread, launches=launches)


def test_points_of_both_are_compared() -> None:
    first = [point(rows, 100.0, spread=0.045) for rows in range(1, 12)]
    second = [point(rows, 100.0 + rows, spread=0.045) for rows in range(1, 12)]
    kind, every = drifts(first, [*second, point(50, 1.0)])
    assert (kind.kind, every.kind, every.count) == ("quantise", "all", 11)
    assert every.ratio == pytest.approx(1.06)
    assert every.median == pytest.approx(0.06)
    assert every.p90 == pytest.approx(0.10)
    assert every.covered == pytest.approx(4 / 11)


def test_what_launches_other_kernels_is_another_point() -> None:
    first, second = [point(8, 100.0, launches=13)], [point(8, 25.0, launches=1)]
    assert drifts(first, second) == []
    unknown = [point(8, 100.0, launches=0)]
    assert drifts(unknown, second)[-1].p90 == pytest.approx(0.75)
