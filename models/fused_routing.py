"""The routing that is dispatched: routed experts, and the fused shared slot where there is one."""

from __future__ import annotations

from models.deployment import Fusion
from models.errors import InputError
from models.routing import Routing
from models.waterfill import Mode, waterfill_ranks


def fused_routing(routing: Routing, fusion: Fusion, *, mode: Mode = "static") -> Routing:
    """`routing` with one more column and one more row a rank for the fused shared expert, or as it is.

    `routing` holds routed experts only. Give the routing of one child batch at a time: Waterfill
    decides on a child's own rows. InputError for a layout that no all-to-all carries.
    """
    if not fusion.slots:
        return routing
    if fusion.layout != "per_rank" and routing.ep_size > 1:
        raise InputError(
            "fusion",
            "layout",
            fusion.layout,
            "per_rank, where tokens travel to expert-parallel ranks",
        )
    if fusion.slots != 1:
        raise InputError("fusion", "slots", fusion.slots, "1 private slot per rank")
    return routing.with_shared_slot(waterfill_ranks(routing, mode) if fusion.waterfill else None)
