"""Tiles of a kernel's result: how many there are, and which size its library takes, from measured points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, dist, log

from models.deep_gemm import deep_gemm_tile
from models.kernel_names import NO_TILE, Tile
from models.measured import MeasuredPoint
from models.work import Work

Place = tuple[float, ...]
LEAST_ROUNDS = 2
# How far apart (in log) the rows of one size may be: draws of a routing differ by 5 % at most, sizes of a
# calibration by a quarter or more.
ROWS, ONE_SIZE = ("m", "padded", "rows"), 0.07
# A causal kernel's longest tiles take twice the mean, and SMs are free for as long before its end (H200:
# another kernel gets in 27 us before the end of 387, where the mean tile takes 17).
UNEVEN = 2


def tile_count(work: Work, tile: Tile) -> int:
    """Tiles of `tile` rows and columns of a GEMM's result, each expert's rows apart, or of `tile` rows
    of queries of an attention head, in tiles as long as the longest where causal ones differ; 0 where the
    tile is not known or the work has none."""
    sizes: Mapping[str, int] = dict(work.dims)
    rows, columns = tile
    if tile == NO_TILE:
        return 0
    if work.kind.startswith("attention"):
        sequences = max(1, sizes["sequences"])
        count = sizes["heads"] * sequences * ceil(sizes["tokens"] / sequences / rows)
        return ceil(count / UNEVEN) if work.kind == "attention_prefill" else count
    if "n" not in sizes:
        return 0
    across = ceil(sizes["n"] / columns) * sizes.get("heads", 1)
    if "active" in sizes and "padded" not in sizes:
        active = max(1, sizes["active"])
        return across * active * ceil(sizes["rows"] / active / rows)
    return across * ceil(sizes.get("padded", sizes.get("m", 0)) / rows)


class Tilings:
    """The tile that a library takes for a kernel on so many SMs: by DeepGEMM's rule for a kind of which
    the rule gives every measured tile, else that of the nearest measured point, SMs and sizes in logs."""

    def __init__(self, points: Iterable[MeasuredPoint]) -> None:
        self._known: dict[str, dict[Place, Tile]] = {}
        self._ruled: dict[str, bool] = {}
        for point in points:
            kind = point.work.kind
            if point.tile != NO_TILE:
                self._known.setdefault(kind, {})[_place(point.work, point.sms)] = point.tile
                ruled = deep_gemm_tile(point.work, point.sms) == point.tile
                self._ruled[kind] = ruled and self._ruled.get(kind, True)

    def tile(self, work: Work, sms: int) -> Tile:
        """(0, 0) where no tile of the kind is known."""
        known = self._known.get(work.kind)
        if not known:
            return NO_TILE
        if self._ruled[work.kind]:
            return deep_gemm_tile(work, sms)
        where = _place(work, sms)
        return known[min(known, key=lambda place: (dist(place, where), place))]


def _place(work: Work, sms: int) -> Place:
    sizes: Mapping[str, int] = dict(work.dims)
    names = ("m", "padded", "rows", "active", "tokens", "n", "k")
    return (log(sms), *(log(max(1, sizes.get(name, 1))) for name in names))


def tile_ratios(points: Iterable[MeasuredPoint]) -> dict[str, list[tuple[float, float]]]:
    """By kind of work: (share of the SMs, time of a tile over that on all of them) of the points of the
    same work on fewer SMs, or of one that has nearly as many rows, as another draw of the routing gives;
    tiles of other sizes are compared by their area. Only launches of several rounds tell, since they keep
    all their SMs busy."""
    by_work: dict[Work, list[MeasuredPoint]] = {}
    for point in points:
        if point.tile != NO_TILE:
            alike = (work for work in by_work if _of_one_size(work, point.work))
            by_work.setdefault(next(alike, point.work), []).append(point)
    ratios: dict[str, list[tuple[float, float]]] = {}
    for work, same in by_work.items():
        whole = max(same, key=lambda point: point.sms)
        if rounds(work, whole.tile, whole.sms) < LEAST_ROUNDS:
            continue
        for point in same:
            if point.sms < whole.sms:
                ratio = area_ns(point) / area_ns(whole)
                ratios.setdefault(work.kind, []).append((point.sms / whole.sms, ratio))
    return ratios


def _of_one_size(one: Work, other: Work) -> bool:
    first, second = dict(one.dims), dict(other.dims)
    if (
        one.kind != other.kind
        or one.flops[0][0] != other.flops[0][0]
        or first.keys() != second.keys()
        or any(first[name] != second[name] for name in first if name not in ROWS)
    ):
        return False
    rows = [name for name in ROWS if name in first]
    return are_one_size([log(first[name]) for name in rows], [log(second[name]) for name in rows])


def are_one_size(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two works, whose sizes that vary are given as logs, are taken to be of one size."""
    return all(abs(a - b) <= ONE_SIZE for a, b in zip(one, other, strict=True))


def rounds(work: Work, tile: Tile, sms: int) -> int:
    """Tiles that the busiest of so many SMs computes, one at a time."""
    return -(-tile_count(work, tile) // sms)


def area_ns(point: MeasuredPoint) -> float:
    """Time of a point for each element of a tile in each round."""
    rows, columns = point.tile
    return point.ns / (rounds(point.work, point.tile, point.sms) * rows * columns)
