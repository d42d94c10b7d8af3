"""Which ranks share one list of steps.

*exact*: ranks whose kernels are equal. *representative*: among ranks with the same batch the busiest
(most token copies received) stands alone, and the rest do the work of the one among them that is
closest to their mean. The exchanges keep the true bytes of every rank either way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from models.deployment import Batch
from models.routing import Routing
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
        return _representative(batch, routing)
    raise ValueError(f"fold {fold!r}: allowed: True, False, 'exact', 'representative'")


def _representative(batch: Batch, routing: Routing) -> tuple[Ranks, ...]:
    received = routing.rank_copies().sum(axis=0)
    classes = []
    same_batch = _grouped(
        range(routing.ep_size), lambda rank: (batch.new_tokens[rank], batch.prefix_tokens[rank])
    )
    for ranks in same_batch:
        busiest = max(ranks, key=lambda rank: (received[rank], -rank))
        rest = tuple(rank for rank in ranks if rank != busiest)
        if len({int(received[rank]) for rank in ranks}) == 1:
            classes.append(Ranks(ranks, ranks[0]))
            continue
        mean = float(np.mean([received[rank] for rank in rest]))
        typical = min(rest, key=lambda rank: (abs(received[rank] - mean), rank))
        classes += [Ranks((busiest,), busiest), Ranks(rest, typical)]
    return tuple(sorted(classes, key=lambda item: item.ranks))


def _grouped(ranks: Iterable[int], key: Callable[[int], Hashable]) -> list[tuple[int, ...]]:
    groups: dict[Hashable, list[int]] = {}
    for rank in ranks:
        groups.setdefault(key(rank), []).append(rank)
    return [tuple(members) for members in groups.values()]
