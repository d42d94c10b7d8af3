"""Waterfill: which rank computes the fused shared expert of each token.

Every rank holds a replica of the shared expert. A token's copy goes to a rank drawn in proportion to
its head-room under a target level, remote ranks discounted, so that lightly loaded ranks fill up.
The draw is a fixed function of row and rank, and everything is integer arithmetic: the result equals
the serving engine's bit for bit (SGLang 0.5.23, `layers/moe/waterfill.py`).

*static* looks at this rank's own routing only; *dynamic* at the sums over all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from models.errors import InputError
from models.routing import Routing

Ints = npt.NDArray[np.int64]
IdRows = npt.NDArray[np.integer[Any]]
Mode = Literal["static", "dynamic"]

MIN_BATCH = 64  # below this many rows on a rank, its shared copies stay at home
MAX_RANKS = 32  # the kernel keeps its candidates in a 32-bit mask
_DISCOUNT = (10, 11)  # head-room of a remote rank, and load at which one is worth the trip
_HASH = 0x9E3779B9
_LCG = (1664525, 1013904223)
_CHUNK_ROWS = 1 << 15  # keeps the [rows, ranks] tables in cache


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rank knows when it chooses: `load` per rank, the level to fill to (0: derived from the
    load), and whether every rank is a candidate or only those that the token visits anyway."""

    load: tuple[int, ...]
    target: int
    allow_all: bool


def check_ranks(ep_size: int) -> None:
    """InputError unless the kernel compiles and chooses rightly for this many ranks."""
    if ep_size < 1 or ep_size > MAX_RANKS or ep_size & (ep_size - 1):
        raise InputError("waterfill", "ep_size", ep_size, f"a power of two up to {MAX_RANKS}")


def routed_load(ids: IdRows, per_rank: int, ep_size: int) -> Ints:
    """Valid (token, expert) entries by destination rank, int64[W]."""
    return np.bincount(ids[ids >= 0] // per_rank, minlength=ep_size)


def static_plan(ids: IdRows, per_rank: int, ep_size: int) -> Plan | None:
    """The plan of a rank that counts its own rows only; None (all at home) below `MIN_BATCH` rows."""
    if len(ids) < MIN_BATCH:
        return None
    return Plan(tuple(routed_load(ids, per_rank, ep_size).tolist()), 0, True)


def dynamic_plan(
    rows: int, routed: Sequence[int], tokens: Sequence[int], top_k: int
) -> Plan | None:
    """The plan from the all-reduced counts: `routed` entries by destination, `tokens` by source rank.

    None for a rank of fewer than `MIN_BATCH` rows; the others balance all the same.
    """
    if rows < MIN_BATCH:
        return None
    load = [int(r) + int(t) for r, t in zip(routed, tokens, strict=True)]
    whole = sum(int(r) for r in routed) // top_k
    target = -(-(sum(load) + whole) // len(load))
    return Plan(tuple(load), target, max(load) <= target)


def choose_ranks(ids: IdRows, per_rank: int, source: int, plan: Plan | None) -> Ints:
    """The rank of every row's shared copy, int64[T]; -1 for a row without a valid id.

    `ids` are physical ids [T, k] of rank `source`, `per_rank` routed experts a rank.
    """
    valid = (ids >= 0).any(axis=1)
    if plan is None:
        return np.where(valid, source, -1)
    chosen = np.empty(len(ids), dtype=np.int64)
    for start in range(0, len(ids), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        chosen[rows] = _choose(ids[rows], start, per_rank, source, plan)
    return np.where(valid, chosen, -1)


def _choose(ids: IdRows, first_row: int, per_rank: int, source: int, plan: Plan) -> Ints:
    load = np.array(plan.load, dtype=np.int64)
    room = _head_room(load, source, plan.target or _level(load, ids.shape[1]))
    draws = _draw(np.arange(first_row, first_row + len(ids), dtype=np.uint64), source)
    if plan.allow_all:
        total = int(room.sum())
        if not total:
            return np.full(len(ids), _fallback(load, source))
        return np.searchsorted(np.cumsum(room), draws % total, side="right").astype(np.int64)
    ranks = np.floor_divide(ids, per_rank)
    levels = np.cumsum(np.where(_visited(ranks, source, len(load)), room, 0), axis=1)
    totals = levels[:, -1]
    u = draws % np.maximum(totals, 1)
    chosen = (levels <= u[:, None]).sum(axis=1)
    return np.where(totals > 0, chosen, _fallback_visited(ranks, load, source))


def _level(load: Ints, top_k: int) -> int:
    """The load of a rank if all routed entries and one shared copy per token were spread evenly."""
    entries = int(load.sum())
    return -(-(entries + entries // top_k) // len(load))


def _head_room(load: Ints, source: int, level: int) -> Ints:
    room = np.maximum(0, level - load)
    remote = room * _DISCOUNT[0] // _DISCOUNT[1]
    remote[source] = room[source]
    return remote


def _draw(rows: npt.NDArray[np.uint64], source: int) -> Ints:
    """One 32-bit number per row: a linear congruential step on row and rank."""
    mask = np.uint64(0xFFFFFFFF)
    mixed = (rows & mask) ^ np.uint64(source * _HASH & 0xFFFFFFFF)
    return ((mixed * np.uint64(_LCG[0]) + np.uint64(_LCG[1])) & mask).astype(np.int64)


def _visited(ranks: IdRows, source: int, ep_size: int) -> npt.NDArray[np.bool_]:
    """Candidates [T, W]: the source, and the ranks of the row's valid experts."""
    candidates = np.zeros((len(ranks), ep_size), dtype=np.bool_)
    candidates[:, source] = True
    rows, columns = np.nonzero(ranks >= 0)
    candidates[rows, ranks[rows, columns]] = True
    return candidates


def _fallback(load: Ints, source: int) -> int:
    """Without head-room anywhere: the source, unless a rank is lighter by more than the discount."""
    best = source
    for rank in range(len(load)):
        if load[rank] * _DISCOUNT[1] < load[best] * _DISCOUNT[0]:
            best = rank
    return best


def _fallback_visited(ranks: IdRows, load: Ints, source: int) -> Ints:
    """The same among the ranks of the row's experts, in the order of its columns."""
    best = np.full(len(ranks), source, dtype=np.int64)
    for column in ranks.T:
        lighter = load[np.maximum(column, 0)] * _DISCOUNT[1] < load[best] * _DISCOUNT[0]
        best = np.where((column >= 0) & lighter, column, best)
    return best


def expand(
    ids: IdRows,
    weights: npt.NDArray[np.float32],
    ranks: Ints,
    per_rank: int,
    shared_weight: float,
) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Widened ids int64[T, k+1] and weights float32[T, k+1]: the shared slot is the last row of its
    rank's block; invalid entries have id -1 and weight 0."""
    ids = ids.astype(np.int64)
    valid, chosen = ids >= 0, ranks >= 0
    routed = np.where(valid, ids + ids // per_rank, -1)
    shared = np.where(chosen, ranks * (per_rank + 1) + per_rank, -1)
    wide = np.column_stack([routed, shared]).astype(np.int64)
    gates = np.column_stack(
        [
            np.where(valid, weights, np.float32(0)),
            np.where(chosen, np.float32(shared_weight), np.float32(0)),
        ]
    )
    return wide, gates.astype(np.float32)


def waterfill_ranks(routing: Routing, mode: Mode = "static") -> tuple[Ints, ...]:
    """The shared copy's rank for every token of every source rank, as `Routing.with_shared_slot` takes
    it. Under TBO give it each child's own slice: the threshold counts the child's rows."""
    ep_size, n = routing.ep_size, routing.experts_per_rank
    check_ranks(ep_size)
    if mode == "static":
        plans = [static_plan(rows, n, ep_size) for rows in routing.ids]
    else:
        routed = routing.rank_copies().sum(axis=0).tolist()
        plans = [dynamic_plan(t, routed, routing.tokens, routing.top_k) for t in routing.tokens]
    return tuple(
        choose_ranks(rows, n, source, plan)
        for source, (rows, plan) in enumerate(zip(routing.ids, plans, strict=True))
    )
