"""The MoE block as kernels: gate, top-k, exchange, routed experts, shared expert and the final add.

Groups carry the letters of SGLang's op lists. The two exchange modes differ in their kernels:
`models.moe_normal` and `models.moe_low_latency`.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.counts import BF16, FP32, elementwise, gemm
from models.deployment import Kernel
from models.exchanges import exchange_work
from models.expert_kernels import Groups
from models.hyper_connections import post
from models.kernels import Assembly
from models.linear import gated_mlp
from models.moe_collective import collective_groups
from models.moe_low_latency import low_latency_groups
from models.moe_normal import normal_groups
from models.routing import Routing
from models.work import Work


def moe_groups(build: Assembly, routing: Routing, rank: int) -> Groups:
    """Groups G T Da Db X Ca Cb S O Z of one rank, from `x2` and `residual` to `hidden`; without an
    all-to-all those of `models.moe_collective`."""
    if build.deployment.a2a.collective:
        return collective_groups(build, routing, rank)
    normal = build.deployment.a2a.mode == "normal"
    groups = _router(build, routing, rank)
    groups |= (normal_groups if normal else low_latency_groups)(build, routing, rank)
    groups["S"] = _shared(build, routing.tokens[rank])
    groups |= add(build, routing.tokens[rank], ("routed", "shared")[: 1 + bool(groups["S"])])
    return groups


def flights(build: Assembly, routing: Routing) -> Mapping[str, Work]:
    """The SM-free part of low-latency transfers, at the busiest rank's loads; none inside one node,
    where the send kernel copies in line (DeepEP over NVLink)."""
    deployment = build.deployment
    across = deployment.ep_size > deployment.machine.fabric.gpus_per_node
    if deployment.a2a.mode == "normal" or not across:
        return {}
    return {
        name: exchange_work(deployment, routing, None, name, "flight")
        for name in ("dispatch", "combine")
    }


def add(build: Assembly, tokens: int, parts: tuple[str, ...]) -> Groups:
    """Group O: `hidden` = `residual` plus the scaled parts; under hyper-connections O sums the parts and
    Z takes the sum into the residual streams."""
    model = build.deployment.model
    nbytes = tokens * model.hidden_size * BF16
    if model.hc_mult:
        total = elementwise("add", tokens, model.hidden_size, len(parts) * nbytes, nbytes)
        summed = build.kernel("add", total, parts, {"moe_out": nbytes})
        return {
            "O": (summed,),
            "Z": (post(build, "mlp", tokens, "moe_out", "residual", "hidden"),),
        }
    total = elementwise("add", tokens, model.hidden_size, (1 + len(parts)) * nbytes, nbytes)
    return {"O": (build.kernel("add", total, ("residual", *parts), {"hidden": nbytes}),)}


def _router(build: Assembly, routing: Routing, rank: int) -> Groups:
    """The gate runs in bf16 whatever the weights' format; top-k gives an id and a weight per slot."""
    model, tokens = build.deployment.model, routing.tokens[rank]
    experts = model.n_routed_experts
    scores = gemm(tokens, experts, model.hidden_size, "bf16", kind="gate")
    chosen = tokens * routing.top_k * (FP32 + FP32)
    select = elementwise("topk", tokens, experts, tokens * experts * BF16, chosen)
    return {
        "G": (build.kernel("gate", scores, ("x2",), {"logits": tokens * experts * BF16}),),
        "T": (build.kernel("topk", select, ("logits",), {"topk": chosen}),),
    }


def _shared(build: Assembly, tokens: int) -> tuple[Kernel, ...]:
    """The shared expert, whole on every rank; nothing when it is fused or the model has none."""
    model = build.deployment.model
    if build.deployment.fusion.slots or not model.n_shared_experts:
        return ()
    return gated_mlp(build, "shared", "x2", "shared", tokens, model.shared_intermediate_size)
