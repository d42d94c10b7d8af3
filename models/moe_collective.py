"""Experts without an all-to-all, under data-parallel attention: every rank gathers all tokens, computes
its own experts (and its slice of the shared one) for all of them, and a reduce-scatter sums the parts.

The two collectives stand as `dispatch` and `combine`, since they are where ranks meet.
"""

from __future__ import annotations

from dataclasses import replace

from models.counts import BF16, FP32, activation_bytes, elementwise, gemm, padded_rows
from models.deployment import Kernel
from models.expert_kernels import ExchangeName, Groups, expert_pair, expert_rows
from models.hyper_connections import post
from models.kernels import Assembly
from models.linear import gated_mlp
from models.routing import Routing
from models.work import work


def collective_groups(build: Assembly, routing: Routing, rank: int) -> Groups:
    """Groups Ga S G T X O Ra Z of one rank, from `x2` and `residual` to `hidden`."""
    model, hidden = build.deployment.model, build.deployment.model.hidden_size
    own, everyone = routing.tokens[rank], sum(routing.tokens)
    experts, chosen = model.n_routed_experts, everyone * routing.top_k * (FP32 + FP32)
    scores = gemm(everyone, experts, hidden, "bf16", kind="gate")
    select = elementwise("topk", everyone, experts, everyone * experts * BF16, chosen)
    logits = {"logits": everyone * experts * BF16}
    gather = _collective(build, "gather", "dispatch", own, everyone, ("x2",), {"x2.all": everyone})
    groups: Groups = {
        "Ga": (gather,),
        "G": (build.kernel("gate", scores, ("x2.all",), logits),),
        "T": (build.kernel("topk", select, ("logits",), {"topk": chosen}),),
        "X": _experts(build, routing, rank, everyone),
        "S": _shared(build, everyone),
    }
    parts = ("routed", "shared")[: 1 + bool(groups["S"])]
    nbytes = everyone * hidden * BF16
    total = elementwise("add", everyone, hidden, len(parts) * nbytes, nbytes)
    groups["O"] = (build.kernel("parts", total, parts, {"partial": nbytes}),)
    groups["Ra"] = (
        _collective(build, "scatter", "combine", own, everyone, ("partial",), {"reduced": own}),
    )
    groups["Z"] = (_into_residual(build, own),)
    return groups


def _into_residual(build: Assembly, own: int) -> Kernel:
    if build.deployment.model.hc_mult:
        return post(build, "mlp", own, "reduced", "residual", "hidden")
    nbytes = own * build.deployment.model.hidden_size * BF16
    summed = elementwise("add", own, build.deployment.model.hidden_size, 2 * nbytes, nbytes)
    return build.kernel("add", summed, ("residual", "reduced"), {"hidden": nbytes})


def _collective(
    build: Assembly,
    name: str,
    exchange: ExchangeName,
    own: int,
    everyone: int,
    reads: tuple[str, ...],
    rows: dict[str, int],
) -> Kernel:
    """The all-gather of all ranks' tokens, or the reduce-scatter back, in bf16."""
    width = build.deployment.model.hidden_size * BF16
    reduce = exchange == "combine"
    size = work(
        "collective",
        read_bytes=(everyone if reduce else own) * width,
        write_bytes=(own if reduce else everyone) * width,
        nbytes=everyone * width,
        ranks=build.deployment.ep_size,
        reduce=int(reduce),
    )
    kernel = build.kernel(name, size, reads, {key: n * width for key, n in rows.items()})
    return replace(kernel, exchange=exchange, role="whole")


def _experts(build: Assembly, routing: Routing, rank: int, everyone: int) -> tuple[Kernel, ...]:
    """The rows of this rank's experts, the GEMM pair, and their weighted sum per token."""
    hidden, weights = build.deployment.model.hidden_size, build.deployment.quantization.weights
    rows = expert_rows(routing, rank)
    padded = padded_rows(rows)
    copied = activation_bytes(sum(rows), hidden, weights)
    gathered = activation_bytes(padded, hidden, weights)
    out = everyone * hidden * BF16
    sort = elementwise("permute", sum(rows), hidden, sum(rows) * hidden * BF16, copied)
    reduce = elementwise("unpermute", everyone, hidden, sum(rows) * hidden * BF16, out)
    return (
        build.kernel("permute", sort, ("x2.all", "topk"), {"rows": gathered}),
        *expert_pair(build, "grouped_gemm_contiguous", "rows", rows, padded),
        build.kernel("unpermute", reduce, ("down", "topk"), {"routed": out}),
    )


def _shared(build: Assembly, everyone: int) -> tuple[Kernel, ...]:
    """This rank's slice of the shared expert, for all tokens; nothing when fused or without one."""
    model = build.deployment.model
    if build.deployment.fusion.slots or not model.n_shared_experts:
        return ()
    inner = -(-model.shared_intermediate_size // build.deployment.ep_size)
    return gated_mlp(build, "shared", "x2.all", "shared", everyone, inner)
