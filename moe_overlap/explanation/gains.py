"""Figure 4: fusion, Waterfill and overlap, each alone and together, and the load of every rank."""

from __future__ import annotations

from typing import Any

from models.errors import InputError
from models.waterfill import waterfill_ranks
from moe_overlap.outcome import predict
from scenarios.resolve import Resolved, ScheduleChoice

ORDERS = ("baseline", "sbo", "tbo")
KERNELS = {"": "unfused", "+fused": "fused", "+fused+waterfill": "fused, Waterfill"}


def gains(resolved: Resolved) -> dict[str, Any]:
    """Predicted layer and step times of every order with every form of the shared expert, those that
    the rules refuse included and marked, and the copies that each rank receives."""
    rows = [
        _row(resolved, order, suffix)
        for order in ORDERS
        for suffix in KERNELS
        if _has(resolved, suffix)
    ]
    return {"rows": rows, "load": _load(resolved)}


def _has(resolved: Resolved, suffix: str) -> bool:
    return not suffix or resolved.deployment.model.n_shared_experts > 0


def _row(resolved: Resolved, order: str, suffix: str) -> dict[str, Any]:
    known: dict[str, Any] = {"order": order, "kernels": KERNELS[suffix], "name": order + suffix}
    empty = {"variant": None, "layer_us": None, "step_us": None, "exposed_comm_us": None}
    try:
        row = predict(resolved, ScheduleChoice(order + suffix), allow_refused=True, fidelity="fast")
    except InputError as error:
        return {**known, **empty, "refused": {"rule": "input", "reason": str(error)}}
    refused = {"rule": row.refused.rule, "reason": row.refused.reason} if row.refused else None
    if row.figures is None:
        return {**known, **empty, "refused": refused}
    return {
        **known,
        "variant": row.variant,
        "layer_us": round(row.figures.layer_ns / 1000, 1),
        "step_us": round(row.figures.step_ns / 1000, 1),
        "exposed_comm_us": round(row.figures.exposed_ns / 1000, 1),
        "refused": refused,
    }


def _load(resolved: Resolved) -> dict[str, Any]:
    """Copies that each rank's grouped GEMM receives: routed ones, with the shared slot at home, and
    with Waterfill choosing its rank."""
    routing = resolved.routing
    found: dict[str, Any] = {
        "routed": routing.rank_copies().sum(axis=0).tolist(),
        "home": None,
        "waterfill": None,
        "refused": None,
    }
    if not resolved.deployment.model.n_shared_experts:
        return found
    found["home"] = routing.with_shared_slot().rank_copies().sum(axis=0).tolist()
    try:
        filled = routing.with_shared_slot(waterfill_ranks(routing))
    except InputError as error:
        return found | {"refused": str(error)}
    return found | {"waterfill": filled.rank_copies().sum(axis=0).tolist()}
