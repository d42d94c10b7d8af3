"""Times of GEMMs by their tiles: rounds of tiles on the busiest SM, each as long as a tile like it was.

The time of a tile hardly depends on the rows of the GEMM or on its columns, but on the tile's own size,
on the depth and on how many SMs compute at once (H200: 40 to 43 us for 256 x 128 at depth 7168, from 768
to 12288 rows). So points of one depth are read together, whatever their shape, but those whose time is
mostly HBM traffic (few rows, all weights) apart from those that compute.

A tile that was not measured is read along a line of its depth: a start, its elements (tensor cores), its
rows and columns (what they load) and its round's share of the traffic. Whole tiles of dense GEMMs left
out on two H200s, that is within 7 % (median; 90th percentile 15 %) of those bound by traffic and 8 %
(20 %) of those that compute; in proportion to elements, as between points of one tile, times were within
2 % (79 %) and 18 % (40 %; one four times too long).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import dist, exp, inf, log

import numpy as np

from models.kernel_names import NO_TILE, Tile
from models.lines import Vector, nonnegative
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
# A launch whose traffic alone takes this share of its time is bound by it.
BOUND = 0.5
Depth = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class _Timed:
    """A point: where it lies, its tile, the log of its time for each element of a round, whether HBM
    bounds it, and the terms of a tile's line over its time."""

    key: str
    at: tuple[float, ...]
    tile: Tile
    value: float
    streams: bool
    terms: Vector


class TileTimes:
    """Measured points of the kinds that are read by their tiles; the most that any point draws from HBM
    is what HBM can give, and the most that any draws for each of its SMs what an SM can take."""

    def __init__(self, tilings: Tilings, points: Iterable[MeasuredPoint]) -> None:
        self._tilings = tilings
        self._points: dict[Depth, list[_Timed]] = {}
        points = tuple(points)
        self._hbm_gbps = max((p.work.hbm_bytes / p.ns for p in points), default=0.0) or inf
        gemms = [p for p in points if p.work.kind in KINDS]
        self._sm_gbps = max((p.work.hbm_bytes / p.ns / p.sms for p in gemms), default=0.0) or inf
        for point in points:
            if point.work.kind in KINDS and point.tile != NO_TILE:
                self._points.setdefault(_depth(point.work), []).append(self._timed(point))

    def _timed(self, point: MeasuredPoint) -> _Timed:
        work, tile, sms = point.work, point.tile, point.sms
        value = log(point.ns / elements(work, tile, sms))
        streams = self._streams(work, point.ns)
        terms = self._terms(work, tile, sms) / point.ns
        return _Timed(point.key, _place(work, tile, sms), tile, value, streams, terms)

    def _streams(self, work: Work, ns: float) -> bool:
        return work.hbm_bytes / self._hbm_gbps >= BOUND * ns

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
        if not same and len(known) > len(known[0].terms):
            line = nonnegative([point.terms for point in known])
            return float(line @ self._terms(work, tile, sms)), "outside"
        known = same or known
        computing = _among([p for p in known if not p.streams], work, tile, sms)
        if computing is not None and not self._streams(work, computing[0]):
            return computing
        return _among([p for p in known if p.streams], work, tile, sms) or computing

    def _terms(self, work: Work, tile: Tile, sms: int) -> Vector:
        """Of all rounds of a tile: their number, elements, rows and columns, and the traffic's ns."""
        count = rounds(work, tile, sms)
        sides = count * (tile[0] + tile[1])
        gbps = min(self._hbm_gbps, self._sm_gbps * min(sms, tile_count(work, tile)))
        each = (count, elements(work, tile, sms), sides, work.hbm_bytes / gbps)
        return np.array(each, dtype=np.float64)


def _among(known: list[_Timed], work: Work, tile: Tile, sms: int) -> tuple[float, Where] | None:
    """From points that all have this tile, or none."""
    if not known:
        return None
    ns = exp(_at(known, _place(work, tile, sms))) * elements(work, tile, sms)
    return ns, "inside" if known[0].tile == tile else "outside"


def _at(points: list[_Timed], at: tuple[float, ...]) -> float:
    """Between points of the next fewer and the next more SMs: a tile takes the longer the more of them
    compute (256 x 128 at depth 16384: 92 to 95 us on 100, 98 to 100 on 132), whatever the rounds."""
    by_sms: dict[float, list[_Timed]] = {}
    for point in points:
        by_sms.setdefault(point.at[0], []).append(point)
    fewer = max((sms for sms in by_sms if sms <= at[0]), default=min(by_sms))
    more = min((sms for sms in by_sms if sms >= at[0]), default=fewer)
    low, high = _weighted(by_sms[fewer], at), _weighted(by_sms[more], at)
    return low if fewer == more else low + (high - low) * (at[0] - fewer) / (more - fewer)


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


def elements(work: Work, tile: Tile, sms: int) -> float:
    """Elements of the result that the busiest SM computes, in whole tiles."""
    return float(rounds(work, tile, sms) * _math_rows(tile) * tile[1])


def _math_rows(tile: Tile) -> int:
    return max(MATH_ROWS, tile[0])


def _depth(work: Work) -> Depth:
    sizes: Mapping[str, int] = dict(work.dims)
    return work.kind, work.flops[0][0], sizes["k"]
