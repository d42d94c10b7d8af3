"""Figure 1: the MoE block of one rank as two paths, and as one grouped GEMM with one more row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from models.deployment import Deployment, Kernel
from models.errors import InputError
from models.fused_routing import fused_routing
from models.fusion_deployment import forced_fusion
from models.layer import layer_kernels
from models.routing import Routing
from scenarios.resolve import Resolved

_ROUTED = ("G", "T", "Da", "Db", "X", "Ca", "Cb")


def two_paths(resolved: Resolved) -> dict[str, Any]:
    """The kernels of the MoE block on the rank that receives most copies, each alone on all SMs that
    it may take, unfused and fused. `fused` is None with the reason where no fused form exists."""
    deployment, routing = resolved.deployment, resolved.routing
    rank = int(routing.rank_copies().sum(axis=0).argmax())
    found: dict[str, Any] = {"rank": rank, "unfused": _side(resolved, deployment, routing, rank)}
    if not deployment.model.n_shared_experts:
        return found | {"fused": None, "reason": "the model has no shared expert"}
    fusion = forced_fusion(deployment, waterfill=False)
    try:
        widened = fused_routing(routing, fusion)
    except InputError as error:
        return found | {"fused": None, "reason": str(error)}
    fused = replace(deployment, fusion=fusion)
    return found | {"fused": _side(resolved, fused, widened, rank), "reason": None}


def _side(
    resolved: Resolved, deployment: Deployment, routing: Routing, rank: int
) -> dict[str, Any]:
    groups = layer_kernels(deployment, resolved.batch, routing, rank).groups
    routed = [k for letter in _ROUTED for k in _entries(deployment, groups.get(letter, ()))]
    shared = list(_entries(deployment, groups.get("S", ())))
    join = list(_entries(deployment, groups.get("O", ())))
    kernels = [*routed, *shared, *join]
    return {
        "routed": routed,
        "shared": shared,
        "join": join,
        "launches": len(kernels),
        "us": round(sum(k["us"] for k in kernels), 1),
        "hbm_bytes": sum(k["hbm_bytes"] for k in kernels),
        "flops": sum(k["flops"] for k in kernels),
        "rows": deployment.slots_per_rank,
        "top_k": routing.top_k,
    }


def _entries(deployment: Deployment, kernels: tuple[Kernel, ...]) -> Iterator[dict[str, Any]]:
    machine = deployment.machine
    for kernel in kernels:
        sms = kernel.grid.enforced_budget or machine.num_sms
        cost = machine.costs.alone(kernel.work, kernel.grid, sms)
        yield {
            "name": kernel.name,
            "kind": kernel.work.kind,
            "us": round(cost.ns / 1000, 1),
            "label": cost.label,
            "hbm_bytes": kernel.work.hbm_bytes,
            "flops": kernel.work.total_flops,
        }
