"""Costs from measured points over the costs of a profile's tables and forms.

A kernel's series are the points that share its fixed sizes (a GEMM's n and k, an attention's heads).
Along a series the log of measured over predicted time (by the profile below, or along the series' own
line, `models.lines`) is interpolated in the logs of what varies
(rows, sequences, copies) and, last, of the SMs held. At a point the measured time is returned; beyond
the points the nearest ratio holds and the time is *fitted*; without a series the profile below answers.
GEMMs whose tiles are known are read by their tiles (`models.tile_times`) where they are no points.
Points at one place (more SMs than CTAs) are averaged.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from models.lines import ON_ALL_SMS, Lines, Timed
from models.machine import Cost, CostLabel, Costs, Footprint
from models.measured import BY_BYTES, MeasuredPoint
from models.tables import Where
from models.tile_times import TileTimes, elements
from models.tiling import Tilings, are_one_size, tile_count
from models.wave_times import WaveTimes
from models.work import Grid, Work

Coordinates = tuple[float, ...]
_SAME = 1e-6
# Coordinates from a kernel's last size on: that size and the SMs.
LAST_SIZE = 2
# Between points the time of a round is interpolated: grouped GEMMs of contiguous rows, whole sizes left out on
# two H200s, are within 0.3 % (51,200 rows; median), 1.4 (27,008) and 5.8 (14,336), in the table's shape
# within 1.7, 1.6 and 4.2, and too fast at all three. Routing is drawn anew for each point, so that their sizes
# differ a little: those within `ONE_SIZE` are one, lest it be known on few SMs only (16,384 rows on 120
# SMs came out at 665 us from 14,336 on 66 SMs, where 14,208 take 750 on 116; they take 780).
BY_ROUNDS = ("grouped_gemm_contiguous",)
_LABELS: Mapping[Where, CostLabel] = {
    "point": "measured",
    "inside": "interpolated",
    "outside": "fitted",
}


@dataclass(frozen=True, slots=True)
class Series:
    """What makes kernels comparable (`family`) and where one lies among them (`at`)."""

    family: tuple[object, ...]
    at: Coordinates


def series_of(work: Work) -> Series:
    """The series of a work: its fixed sizes, and the sizes that vary along it."""
    sizes = dict(work.dims)
    kind, dtype = work.kind, work.flops[0][0] if work.flops else ""
    if kind in ("gemm", "gate", "head"):
        return Series((kind, dtype, sizes["n"], sizes["k"]), _logs(sizes["m"]))
    if kind == "bmm":
        return Series((kind, sizes["heads"], sizes["n"], sizes["k"]), _logs(sizes["m"]))
    if kind.startswith("grouped_gemm"):
        rows = sizes["padded"] if kind.endswith("contiguous") else sizes["rows"]
        family = (kind, dtype, sizes["n"], sizes["k"], sizes["part"])
        return Series(family, _logs(sizes["active"], rows))
    if kind.startswith("attention"):
        fixed = tuple(sizes.get(name, 0) for name in ("heads", "kv_heads", "qk_dim", "v_dim"))
        if kind == "attention_prefill":
            return Series((kind, *fixed), _logs(sizes["pairs"]))
        tokens = max(1, sizes["tokens"])
        return Series((kind, *fixed), _logs(tokens, sizes["pairs"] / tokens))
    if kind == "notify":
        fixed = tuple(sizes[name] for name in ("ep_size", "nodes", "combine"))
        return Series((kind, *fixed), _logs(sizes["tokens"]))
    if "payload" in sizes:
        fixed = tuple(sizes[name] for name in ("ep_size", "nodes", "payload", "combine"))
        return Series((kind, *fixed), _logs(sizes["copies"]))
    if kind == "silu_mul":
        return Series((kind, sizes["columns"], sizes.get("masked", -1)), _logs(sizes["rows"]))
    if kind == "collective":
        return Series((kind, sizes["ranks"], sizes["reduce"]), _logs(sizes["nbytes"]))
    rows = sizes.get("rows", sizes.get("tokens", 1))
    each = round(work.hbm_bytes / max(1, rows)) if kind in BY_BYTES else 0
    return Series((kind, sizes.get("columns", 0), each), _logs(rows))


@dataclass(frozen=True, slots=True)
class _Reading:
    value: float
    where: Where


class PointCosts:
    """`models.machine.Costs` of measured points over other costs. `grids` says how each kind is
    launched; `errors` holds the relative error of times read between points, by kind; `repeat` is what
    all points of a kind are off by together (0: not known, and all of an error is taken to be shared)."""

    def __init__(
        self,
        base: Costs,
        points: Iterable[MeasuredPoint],
        grids: Mapping[str, Grid],
        errors: Mapping[str, float],
        repeat: float = 0.0,
    ) -> None:
        self._base = base
        self._repeat = repeat
        self._grids = grids
        self._errors = errors
        self._spreads: dict[str, list[float]] = {}
        points = tuple(points)
        self._tilings = Tilings(points)
        self._tile_times = TileTimes(self._tilings, points)
        self._most_sms = max((point.sms for point in points), default=1)
        self._ratios: dict[tuple[tuple[object, ...], Coordinates], list[float]] = {}
        self._series: dict[tuple[object, ...], dict[Coordinates, float]] = {}
        self._sizes: dict[tuple[object, ...], list[Coordinates]] = {}
        self._lines = Lines(_families(points))
        self._waves = WaveTimes(base, points)
        for point in points:
            self._add(point)
        self._remembered: dict[tuple[Work, Grid, int], Cost] = {}

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """Time of `work` alone on `sms` SMs."""
        key = (work, grid, sms)
        cost = self._remembered.get(key)
        if cost is None:
            cost = self._remembered[key] = self._price(work, grid, sms)
        return cost

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """CTAs and resources of the launch; the tiles of a persistent one where a point near it has any,
        and no CTA without a tile."""
        below = self._base.footprint(work, grid)
        if grid.kind == "wave" or work.kind not in self._spreads:
            return below
        budget = grid.enforced_budget or self._most_sms
        count = tile_count(work, self._tilings.tile(work, budget))
        return replace(below, ctas=min(budget, count), tiles=count) if count else below

    def left_out(self, point: MeasuredPoint) -> float | None:
        """Relative error of a point of this table when it is read from the others; None where it lies
        beyond them."""
        work, grid = point.work, self._grids[point.work.kind]
        by_tiles = self._tile_times.ns(work, point.sms, without=point.key)
        if by_tiles is not None:
            return abs(by_tiles[0] / point.ns - 1.0)
        series = series_of(work)
        at = self._place(work, grid, point.sms)
        rest = {place: v for place, v in self._series[series.family].items() if place != at}
        if not rest:
            return None
        reading = _read(rest, at)
        ns = self._expected(work, grid, point.sms) * math.exp(reading.value)
        return None if reading.where == "outside" else abs(ns / point.ns - 1.0)

    def _price(self, work: Work, grid: Grid, sms: int) -> Cost:
        below = self._base.alone(work, grid, sms)
        if work.kind not in self._spreads:
            return below
        ns, where = self._read(work, grid, sms, below)
        if where is None:
            return below
        own = self._own_error(work.kind, where, below)
        error, shared = math.hypot(own, self._repeat), self._repeat or None
        return Cost(max(1, round(ns)), _LABELS[where], error, shared)

    def _read(self, work: Work, grid: Grid, sms: int, below: Cost) -> tuple[float, Where | None]:
        """ns at a measured point, else by tiles, else between points; no `Where`: not known here."""
        series = series_of(work)
        values = self._series.get(series.family, {})
        at = self._place(work, grid, sms)
        reading = _read(values, at) if values else None
        if reading is None or reading.where != "point":
            by_tiles = self._tile_times.ns(work, sms)
            if by_tiles is not None:
                return by_tiles
        if reading is None:
            return below.ns, None
        ns = self._expected(work, grid, sms) * math.exp(reading.value)
        another = series.at not in self._sizes.get(series.family, (series.at,))
        return ns, _not_point(reading) if another else reading.where

    def _expected(self, work: Work, grid: Grid, sms: int) -> float:
        """ns without the points' own ratios: by the elements of all rounds of tiles, along the family's
        line, or by the profile below, which also says how much longer it takes on fewer SMs than a line
        knows."""
        if work.kind in BY_ROUNDS:
            tile = self._tilings.tile(work, sms)
            if tile_count(work, tile):
                return elements(work, tile, sms)
        by_waves = self._waves.ns(work, sms)
        if by_waves is not None:
            return by_waves
        along = self._lines.ns(series_of(work).family, work, sms)
        if along is not None and (work.kind not in ON_ALL_SMS or sms == self._most_sms):
            return along
        below = float(self._base.alone(work, grid, sms).ns)
        if along is None:
            return below
        return along * below / self._base.alone(work, grid, self._most_sms).ns

    def _own_error(self, kind: str, where: Where, below: Cost) -> float:
        spread = median(self._spreads[kind])
        if where == "point":
            return spread
        between = max(spread, self._errors.get(kind, below.rel_error))
        return between if where == "inside" else max(between, 2 * self._errors.get(kind, 0.0))

    def _add(self, point: MeasuredPoint) -> None:
        work, grid = point.work, self._grids[point.work.kind]
        series = series_of(work)
        expected = self._expected(work, grid, point.sms)
        if work.kind in BY_ROUNDS:
            self._sizes.setdefault(series.family, []).append(series.at)
        at = self._place(work, grid, point.sms)
        ratios = self._ratios.setdefault((series.family, at), [])
        ratios.append(math.log(point.ns / expected))
        self._series.setdefault(series.family, {})[at] = sum(ratios) / len(ratios)
        self._spreads.setdefault(work.kind, []).append(point.spread / 2)

    def _place(self, work: Work, grid: Grid, sms: int) -> Coordinates:
        """Where a work lies in its series: at the first of the sizes that are one with its own, and SMs."""
        series = series_of(work)
        sizes = self._sizes.get(series.family, ())
        at = next((size for size in sizes if are_one_size(size, series.at)), series.at)
        return (*at, math.log(self._held(work, grid, sms)))

    def _held(self, work: Work, grid: Grid, sms: int) -> int:
        """SMs that make a difference: a launch of few CTAs is no faster on more SMs."""
        if work.kind in ("notify", "layout"):
            return 1
        if self._waves.ns(work, sms) is not None:
            return sms
        count = tile_count(work, self._tilings.tile(work, sms))
        return max(1, min(sms, count or self._base.footprint(work, Grid(kind=grid.kind)).ctas))


def _families(points: Iterable[MeasuredPoint]) -> dict[tuple[object, ...], list[Timed]]:
    families: dict[tuple[object, ...], list[Timed]] = {}
    for point in points:
        timed = (point.work, point.sms, point.ns)
        families.setdefault(series_of(point.work).family, []).append(timed)
    return families


def _read(values: Mapping[Coordinates, float], at: Coordinates) -> _Reading:
    """Interpolation coordinate by coordinate, the first one outermost: between the two places around
    `at`, or at the nearest place. SMs are the last one: sizes that were measured on fewer or on more only
    do not count where others were measured on both sides of them."""
    if not at:
        (value,) = values.values()
        return _Reading(value, "point")
    slices: dict[float, dict[Coordinates, float]] = {}
    for place, value in values.items():
        slices.setdefault(round(place[0], 9), {})[place[1:]] = value
    near = [p for p, known in slices.items() if len(at) == LAST_SIZE and _spans(known, at[1:])]
    places = sorted(near or slices)
    i = bisect_left(places, at[0] - _SAME)
    if i < len(places) and abs(places[i] - at[0]) <= _SAME:
        return _read(slices[places[i]], at[1:])
    if i in (0, len(places)):
        edge = places[min(i, len(places) - 1)]
        last = _read(slices[edge], at[1:])
        close = are_one_size((edge,), at[:1])
        return _Reading(last.value, _not_point(last) if close else "outside")
    low, high = (_read(slices[place], at[1:]) for place in places[i - 1 : i + 1])
    share = (at[0] - places[i - 1]) / (places[i] - places[i - 1])
    outside = "outside" in (low.where, high.where)
    value = low.value + share * (high.value - low.value)
    return _Reading(value, "outside" if outside else "inside")


def _spans(known: Collection[Coordinates], at: Coordinates) -> bool:
    """Whether a size was measured on both sides of so many SMs; one that holds as many as it has CTAs
    was not."""
    return len(known) > 1 and min(known)[0] - _SAME <= at[0] <= max(known)[0] + _SAME


def _not_point(reading: _Reading) -> Where:
    return "inside" if reading.where == "point" else reading.where


def _logs(*sizes: float) -> Coordinates:
    return tuple(math.log(max(1.0, size)) for size in sizes)
