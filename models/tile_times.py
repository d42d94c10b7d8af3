"""Times of GEMMs by their tiles: rounds of tiles on the busiest SM, each as long as a tile like it was.

The time of a tile hardly depends on the rows of the GEMM or on its columns, but on the tile's own size,
on the depth and on how many SMs compute at once (H200: 40 to 43 us for 256 x 128 at depth 7168, from 768
to 12288 rows). So points of one depth are read together, whatever their shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import dist, exp, log

from models.kernel_names import NO_TILE, Tile
from models.measured import MeasuredPoint
from models.tables import Where
from models.tiling import Tilings, rounds, tile_count
from models.work import Work

# Of these kinds every point that is left out is read closer from tiles like it than from its neighbours
# in a table; grouped GEMMs of contiguous rows are not (1.4 against 2.3 %).
KINDS = ("gemm", "grouped_gemm_masked")
# Weights fall with this power of the distance in logs.
POWER = 4
# Fewer rows than this fill the tensor cores no less.
MATH_ROWS = 64
Depth = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class _Timed:
    """A point: where it lies, its tile, and the log of its time for each element of a round."""

    key: str
    at: tuple[float, ...]
    tile: Tile
    value: float


class TileTimes:
    """Measured points of the kinds that are read by their tiles."""

    def __init__(self, tilings: Tilings) -> None:
        self._tilings = tilings
        self._points: dict[Depth, list[_Timed]] = {}

    def add(self, point: MeasuredPoint) -> None:
        """Take a point in, if its tile is known."""
        work = point.work
        if work.kind in KINDS and point.tile != NO_TILE:
            value = log(point.ns / _elements(work, point.tile, point.sms))
            at = _place(work, point.tile, point.sms)
            timed = _Timed(point.key, at, point.tile, value)
            self._points.setdefault(_depth(work), []).append(timed)

    def ns(self, work: Work, sms: int, without: str = "") -> tuple[float, Where] | None:
        """Time on so many SMs, *inside* where the same tile was measured; None where nothing is known.
        The point called `without` does not count."""
        if work.kind not in KINDS:
            return None
        known = [point for point in self._points.get(_depth(work), ()) if point.key != without]
        tile = self._tilings.tile(work, sms)
        if not known or not tile_count(work, tile):
            return None
        same = [point for point in known if point.tile == tile]
        value = _weighted(same or known, _place(work, tile, sms))
        return exp(value) * _elements(work, tile, sms), "inside" if same else "outside"


def _weighted(points: list[_Timed], at: tuple[float, ...]) -> float:
    """The mean value, weighted by distance."""
    total = weights = 0.0
    for point in points:
        weight = (dist(point.at, at) + 1e-6) ** -POWER
        total += weight * point.value
        weights += weight
    return total / weights


def _place(work: Work, tile: Tile, sms: int) -> tuple[float, ...]:
    """SMs that compute, rounds, rows and columns of the tile, in logs."""
    busy = min(sms, tile_count(work, tile))
    return log(busy), log(rounds(work, tile, sms)), log(_math_rows(tile)), log(tile[1])


def _elements(work: Work, tile: Tile, sms: int) -> float:
    return float(rounds(work, tile, sms) * _math_rows(tile) * tile[1])


def _math_rows(tile: Tile) -> int:
    return max(MATH_ROWS, tile[0])


def _depth(work: Work) -> Depth:
    sizes: Mapping[str, int] = dict(work.dims)
    return work.kind, work.flops[0][0], sizes["k"]
