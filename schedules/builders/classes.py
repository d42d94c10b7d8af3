"""Which ranks share one list of steps.

*exact*: ranks whose kernels are equal. *representative*: among ranks with the same batch the busiest
(most token copies received) stands alone, and the rest do the work of the one among them that is
closest to their mean. *extremes*: the same, with every rank alone that is the busiest in anything that
decides a time. The exchanges keep the true bytes of every rank either way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from models.counts import BLOCK_M
from models.deployment import Batch
from models.routing import Counts, Routing
from schedules.builders.request import Fold


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of one class, and the one whose kernels stand for all of them."""

    ranks: tuple[int, ...]
    example: int


def rank_classes(
    fold: Fold, batch: Batch, routing: Routing, kernels_of: Callable[[int], Hashable]
) -> tuple[Ranks, ...]:
    """The classes under `fold`: False is one class a rank; True is *representative*.

    `kernels_of(rank)` is a key that is equal for ranks with equal kernels; only *exact* asks for it.
    """
    if fold is False:
        return tuple(Ranks((rank,), rank) for rank in range(routing.ep_size))
    if fold == "exact":
        groups = _grouped(range(routing.ep_size), kernels_of)
        return tuple(Ranks(ranks, ranks[0]) for ranks in groups)
    if fold is True or fold == "representative":
        return _representative(batch, routing, extremes=False)
    if fold == "extremes":
        return _representative(batch, routing, extremes=True)
    allowed = "True, False, 'exact', 'representative', 'extremes'"
    raise ValueError(f"fold {fold!r}: allowed: {allowed}")


def _representative(batch: Batch, routing: Routing, *, extremes: bool) -> tuple[Ranks, ...]:
    received = routing.rank_copies().sum(axis=0)
    loads = _loads(routing) if extremes else (received,)
    classes = []
    same_batch = _grouped(
        range(routing.ep_size), lambda rank: (batch.new_tokens[rank], batch.prefix_tokens[rank])
    )
    for ranks in same_batch:
        if len({int(received[rank]) for rank in ranks}) == 1:
            classes.append(Ranks(ranks, ranks[0]))
            continue
        alone = {_busiest(ranks, load) for load in loads}
        classes += [Ranks((rank,), rank) for rank in alone]
        rest = [rank for rank in ranks if rank not in alone]
        if rest:
            classes.append(_typical(rest, received))
    return tuple(sorted(classes, key=lambda item: item.ranks))


def _busiest(ranks: Iterable[int], load: Counts) -> int:
    return max(ranks, key=lambda rank: (load[rank], -rank))


def _loads(routing: Routing) -> tuple[Counts, ...]:
    """What a rank can be the busiest in, int64[W] each: copies and tokens received and sent, tiles of
    its experts' GEMMs and experts that have any, by the whole batch and by either half of every rank's
    tokens."""
    stops = np.array(routing.tokens)
    halves = (np.zeros_like(stops), stops // 2), (stops // 2, stops)
    parts = [routing, *(routing.slice(list(a), list(b)) for a, b in halves)]
    counts = [c for part in parts for c in (part.rank_copies(), part.distinct_tokens())]
    moved = tuple(c.sum(axis=axis) for c in counts for axis in (0, 1))
    active = tuple((part.local_expert_tokens() > 0).sum(axis=1) for part in parts)
    return (*moved, *(_tiles(part) for part in parts), *active)


def _tiles(routing: Routing) -> Counts:
    """Tiles of rows in the grouped GEMMs of every rank, int64[W]: an expert's weights are read for each."""
    tiles: Counts = (-(-routing.local_expert_tokens() // BLOCK_M)).sum(axis=1)
    return tiles


def _typical(ranks: Iterable[int], received: Counts) -> Ranks:
    """One class of ranks; the one whose load is closest to their mean stands for it."""
    members = tuple(sorted(ranks))
    mean = float(np.mean([received[rank] for rank in members]))
    return Ranks(members, min(members, key=lambda rank: (abs(received[rank] - mean), rank)))


def _grouped(ranks: Iterable[int], key: Callable[[int], Hashable]) -> list[tuple[int, ...]]:
    groups: dict[Hashable, list[int]] = {}
    for rank in ranks:
        groups.setdefault(key(rank), []).append(rank)
    return [tuple(members) for members in groups.values()]
