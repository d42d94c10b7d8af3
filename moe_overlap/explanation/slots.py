"""Figure 2: which expert sits in which row of the grouped GEMM, and a token's ids in both layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.errors import InputError
from models.experts import Slots, append_shared, shared_weight, slot_layout
from models.waterfill import waterfill_ranks
from scenarios.resolve import Resolved

_RANKS_SHOWN = 8
_TOKENS_SHOWN = 32


def slots(resolved: Resolved) -> dict[str, Any]:
    """Rows and ids of both layouts on the first ranks and the last one, and the first tokens of rank 0.

    `shared` is the number of fused rows per rank, 0 where the model has no shared expert. `layout` is the one that the all-to-all backend uses. A token's `routed` are physical experts after
    redundancy; `global_ids` and `per_rank_ids` are what is dispatched, the shared slot last;
    `waterfill_rank` is None where Waterfill cannot run, with its reason.
    """
    deployment = resolved.deployment
    model, ep_size = deployment.model, deployment.ep_size
    per_rank, shared = deployment.experts_per_rank, min(1, model.n_shared_experts)
    layouts = {
        "global": Slots("global", ep_size, per_rank, shared),
        "per_rank": Slots("per_rank", ep_size, per_rank, shared),
    }
    shown = [*range(min(ep_size, _RANKS_SHOWN))]
    if ep_size > _RANKS_SHOWN:
        shown[-1] = ep_size - 1
    weight = shared_weight(model.routed_scaling_factor, folded=False)
    return {
        "layout": slot_layout(deployment.a2a.backend),
        "shared": shared,
        "ep_size": ep_size,
        "experts_per_rank": per_rank,
        "shared_weight": {"per_rank": weight, "global": weight / ep_size},
        "total_ids": {name: one.total_ids for name, one in layouts.items()},
        "ranks": [
            {"rank": r, "experts": _experts(r, per_rank), "ids": _ids(layouts, r)} for r in shown
        ],
        "tokens": _tokens(resolved, layouts),
        "waterfill_refused": _waterfill(resolved)[1],
    }


def _experts(rank: int, per_rank: int) -> list[int]:
    """Physical experts of a rank, in order of row."""
    return list(range(rank * per_rank, (rank + 1) * per_rank))


def _ids(layouts: dict[str, Slots], rank: int) -> dict[str, list[int]]:
    """Ids of a rank's rows in each layout, the shared one last."""
    found = {}
    for name, layout in layouts.items():
        physical = np.array(_experts(rank, layout.per_rank))
        found[name] = [*layout.widen(physical).tolist(), *layout.shared_ids(rank)]
    return found


def _tokens(resolved: Resolved, layouts: dict[str, Slots]) -> list[dict[str, Any]]:
    ids = resolved.routing.ids[0][:_TOKENS_SHOWN]
    blank = np.ones(ids.shape, dtype=np.float32)
    chosen, _ = _waterfill(resolved)
    wide = {name: append_shared(ids, blank, layout, 0, 1.0)[0] for name, layout in layouts.items()}
    return [
        {
            "token": i,
            "routed": ids[i].tolist(),
            "ranks": (ids[i] // resolved.routing.experts_per_rank).tolist(),
            "global_ids": wide["global"][i].tolist(),
            "per_rank_ids": wide["per_rank"][i].tolist(),
            "waterfill_rank": None if chosen is None else int(chosen[i]),
        }
        for i in range(len(ids))
    ]


def _waterfill(resolved: Resolved) -> tuple[Any, str | None]:
    """The rank that Waterfill gives the shared copy of each token of rank 0, or why it cannot."""
    if not resolved.deployment.model.n_shared_experts:
        return None, "the model has no shared expert"
    try:
        return waterfill_ranks(resolved.routing)[0], None
    except InputError as error:
        return None, str(error)
