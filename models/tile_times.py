"""Times of GEMMs by their tiles: the larger of two laws, and what points of the same tile differ from them by.

    waits     t0 + bytes w                                           what is read, once
    computes  t0 + rounds (t1 + depth (elements a + sides b))        tiles of the busiest SM, one by one

HBM brings weights and rows once, so that of few rows further rounds of tiles, whose weights are on their
way already, take what they compute. A tile's elements are what tensor cores do for each step of its depth,
its sides what it loads. Every point tells of the law that is the larger there, and both are fitted to all
shapes and depths at once. Whole tiles of dense GEMMs left out on two H200s, that is within 7 % (median;
90th percentile 18 %), 5 % (16 %) where other depths have the tile; a line of each depth, with the traffic
added to what computes, was within 8 % (20 %). A ratio to the laws taken from other tiles does not help.

Between points of one tile that the same law decides their ratio to it is read: a tile takes the longer the
more of them compute (H200: 256 x 128 at depth 16384 92 to 95 us on 100 SMs, 98 to 100 on 132).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import dist, exp, inf, log

import numpy as np
import numpy.typing as npt

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
# A launch that reads at this share of the highest rate is first taken to wait.
BOUND = 0.5
Family = tuple[str, str]
Place = tuple[float, ...]
# A point's place, and the log of its time over the laws'.
Ratio = tuple[Place, float]


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the two laws count of a launch."""

    waits: Vector
    computes: Vector


@dataclass(frozen=True, slots=True)
class _Timed:
    """A point, the depth of its tiles, where it lies among those, and what the laws count."""

    point: MeasuredPoint
    depth: int
    at: Place
    terms: _Terms


@dataclass(frozen=True, slots=True)
class _Laws:
    """ns for each term."""

    waits: Vector
    computes: Vector

    def ns(self, terms: _Terms) -> float:
        """The larger of the two."""
        return float(max(self.waits @ terms.waits, self.computes @ terms.computes))

    def streams(self, terms: _Terms) -> bool:
        """Whether the launch waits longer than it computes."""
        return bool(self.waits @ terms.waits > self.computes @ terms.computes)


class TileTimes:
    """Measured points of the kinds that are read by their tiles, and the laws of each kind and format."""

    def __init__(self, tilings: Tilings, points: Iterable[MeasuredPoint]) -> None:
        self._tilings = tilings
        self._points: dict[Family, list[_Timed]] = {}
        for point in points:
            work, tile, sms = point.work, point.tile, point.sms
            if work.kind in KINDS and tile != NO_TILE:
                place, terms = _place(work, tile, sms), _terms(work, tile, sms)
                timed = _Timed(point, work.dim("k"), place, terms)
                self._points.setdefault(_family(work), []).append(timed)
        self._laws = {family: _fitted(known) for family, known in self._points.items()}

    def ns(self, work: Work, sms: int, without: str = "") -> tuple[float, Where] | None:
        """Time on so many SMs, *inside* where the same tile was measured at that depth under the same law;
        None for a depth that was not measured. The point called `without` does not count."""
        if work.kind not in KINDS:
            return None
        family, depth = _family(work), work.dim("k")
        every = self._points.get(family, [])
        known = [timed for timed in every if timed.point.key != without]
        tile = self._tilings.tile(work, sms)
        if not any(timed.depth == depth for timed in known) or not tile_count(work, tile):
            return None
        laws = self._laws[family] if len(known) == len(every) else _fitted(known)
        terms = _terms(work, tile, sms)
        alike = [
            (timed.at, log(timed.point.ns / laws.ns(timed.terms)))
            for timed in known
            if (timed.depth, timed.point.tile) == (depth, tile)
            and laws.streams(timed.terms) == laws.streams(terms)
        ]
        if not alike:
            return laws.ns(terms), "outside"
        return laws.ns(terms) * exp(_at(alike, _place(work, tile, sms))), "inside"


def _fitted(known: Sequence[_Timed]) -> _Laws:
    """The laws of the least relative error, each fitted to the points where it was the larger before, until
    that helps no more; times in proportion to elements where points are too few or all of one law."""
    ns = np.array([timed.point.ns for timed in known])[:, None]
    waits = np.array([timed.terms.waits for timed in known]) / ns
    computes = np.array([timed.terms.computes for timed in known]) / ns
    each = 1.0 / float(np.median(computes[:, -2]))
    laws, least = _Laws(np.zeros(waits.shape[1]), np.array((0.0, 0.0, each, 0.0))), inf
    streams = waits[:, -1] >= BOUND * waits[:, -1].max()
    while _enough(waits[streams]) and _enough(computes[~streams]):
        found = _Laws(nonnegative(list(waits[streams])), nonnegative(list(computes[~streams])))
        both = waits @ found.waits, computes @ found.computes
        error = float(np.sum((np.maximum(*both) - 1.0) ** 2))
        if error >= least:
            break
        laws, least, streams = found, error, both[0] > both[1]
    return laws


def _enough(rows: npt.NDArray[np.float64]) -> bool:
    """More points than coefficients."""
    return bool(len(rows) > rows.shape[1])


def _terms(work: Work, tile: Tile, sms: int) -> _Terms:
    """One and the bytes read; one and, of all rounds, their number, elements and sides, the latter two
    times the depth."""
    count, depth = rounds(work, tile, sms), work.dim("k")
    sides = count * (_math_rows(tile) + tile[1])
    computes = (1.0, count, depth * elements(work, tile, sms), depth * sides)
    return _Terms(
        np.array((1.0, work.read_bytes), dtype=np.float64), np.array(computes, dtype=np.float64)
    )


def _at(ratios: Sequence[Ratio], at: Place) -> float:
    """Between points of the next fewer and the next more SMs, whatever the rounds."""
    by_sms: dict[float, list[Ratio]] = {}
    for place, value in ratios:
        by_sms.setdefault(place[0], []).append((place, value))
    fewer = max((sms for sms in by_sms if sms <= at[0]), default=min(by_sms))
    more = min((sms for sms in by_sms if sms >= at[0]), default=fewer)
    low, high = _weighted(by_sms[fewer], at), _weighted(by_sms[more], at)
    return low if fewer == more else low + (high - low) * (at[0] - fewer) / (more - fewer)


def _weighted(ratios: Sequence[Ratio], at: Place) -> float:
    """The mean value, weighted by distance."""
    weights = [(dist(place, at) + 1e-6) ** -POWER for place, _ in ratios]
    total = sum(weight * value for weight, (_, value) in zip(weights, ratios, strict=True))
    return total / sum(weights)


def _place(work: Work, tile: Tile, sms: int) -> Place:
    """SMs that compute, and rounds of tiles, in logs."""
    return log(min(sms, tile_count(work, tile))), log(rounds(work, tile, sms))


def elements(work: Work, tile: Tile, sms: int) -> float:
    """Elements of the result that the busiest SM computes, in whole tiles."""
    return float(rounds(work, tile, sms) * _math_rows(tile) * tile[1])


def _math_rows(tile: Tile) -> int:
    return max(MATH_ROWS, tile[0])


def _family(work: Work) -> Family:
    return work.kind, work.flops[0][0]
