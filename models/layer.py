"""The kernels of one layer on one rank, of the embedding and of the head."""

from __future__ import annotations

from typing import Literal

from models.counts import BF16, elementwise, gemm
from models.deployment import Batch, Deployment, Kernel, LayerKernels
from models.gqa import gqa_kernels
from models.hyper_connections import head_mix_bytes, mix, post, residual_bytes, weighted_norm
from models.kernels import Assembly
from models.linear import gated_mlp
from models.mla import mla_kernels
from models.moe import add, flights, moe_groups
from models.mqa import mqa_kernels
from models.routing import Routing
from models.sequences import attention_ranks
from models.work import work

_ATTENTION = {"mla": mla_kernels, "gqa": gqa_kernels, "mqa": mqa_kernels}


def layer_kernels(
    deployment: Deployment,
    batch: Batch,
    routing: Routing,
    rank: int,
    *,
    layer_kind: Literal["moe", "dense"] = "moe",
) -> LayerKernels:
    """Kernels of one layer on `rank`, from `hidden` back to `hidden`.

    Groups P Q C M, then those of the MoE block, or X (the MLP) and O of a dense layer, and Z where
    hyper-connections follow. A dense layer's MLP is whole on every rank, as with SGLang's
    `moe_dense_tp_size` 1. ValueError when batch and routing disagree about the tokens of the rank.
    """
    tokens = batch.tokens[rank]
    if layer_kind == "moe" and routing.tokens[rank] != tokens:
        raise ValueError(
            f"rank {rank} has {tokens} tokens in the batch and {routing.tokens[rank]} in the routing"
        )
    build = Assembly(deployment)
    attention = _ATTENTION[deployment.model.attention.kind]
    groups = {"P": _before_attention(build, batch, rank)}
    groups["Q"], groups["C"] = attention(build, batch, rank)
    groups["M"] = _before_mlp(build, batch, rank)
    if layer_kind == "dense":
        size = deployment.model.intermediate_size
        groups["X"] = gated_mlp(build, "mlp", "x2", "mlp", tokens, size)
        groups |= add(build, tokens, ("mlp",))
        return LayerKernels(groups, build.buffers)
    groups |= moe_groups(build, routing, rank)
    return LayerKernels(groups, build.buffers, flights(build, routing))


def embedding_kernels(deployment: Deployment, batch: Batch, rank: int) -> tuple[Kernel, ...]:
    """The lookup of the rank's own tokens: nothing to `hidden`."""
    build = Assembly(deployment)
    model, tokens = deployment.model, batch.tokens[rank]
    nbytes = residual_bytes(model, tokens)
    read = tokens * model.hidden_size * BF16
    size = elementwise("embedding", tokens, model.hidden_size, read, nbytes)
    return (build.kernel("embed", size, (), {"hidden": nbytes}),)


def head_kernels(deployment: Deployment, batch: Batch, rank: int) -> tuple[Kernel, ...]:
    """Final norm (of the weighted sum of the residual streams) and vocabulary projection (bf16), from
    `hidden` to `logits`: of every token in decode, of each sequence's last token in prefill. The
    projection is whole on every rank, as with SGLang's `enable_dp_lm_head` at attention TP 1, else split
    over the attention group."""
    build = Assembly(deployment)
    model, tokens = deployment.model, batch.tokens[rank]
    group = attention_ranks(deployment, rank)
    if batch.phase == "decode":
        rows = sum(batch.tokens[peer] for peer in group)
    else:
        rows = sum(1 for peer in group for added in batch.new_tokens[peer] if added)
    vocab = -(-model.vocab_size // deployment.attention_tp)
    nbytes = tokens * model.hidden_size * BF16
    streams = residual_bytes(model, tokens) + head_mix_bytes(model)
    norm = elementwise("norm", tokens, model.hidden_size, streams, nbytes)
    head = gemm(rows, vocab, model.hidden_size, "bf16", kind="head")
    return (
        build.kernel("norm", norm, ("hidden",), {"x": nbytes}),
        build.kernel("lm_head", head, ("x",), {"logits": rows * vocab * BF16}),
    )


def _before_attention(build: Assembly, batch: Batch, rank: int) -> tuple[Kernel, ...]:
    """`norm1`; with attention TP also the all-gather of the group's tokens."""
    own, group = _token_bytes(build, batch, rank)
    model, tokens = build.deployment.model, batch.tokens[rank]
    alone = build.deployment.attention_tp == 1
    out = "x1" if alone else "x1.own"
    kernels: tuple[Kernel, ...]
    if model.hc_mult:
        kernels = (
            mix(build, "attn", tokens, "hidden"),
            weighted_norm(build, "norm1", "attn", tokens, "hidden", out),
        )
    else:
        norm = elementwise("norm", tokens, model.hidden_size, own, own)
        kernels = (build.kernel("norm1", norm, ("hidden",), {out: own}),)
    if alone:
        return kernels
    gather = work(
        "collective",
        read_bytes=own,
        write_bytes=group,
        nbytes=group,
        ranks=build.deployment.attention_tp,
        reduce=0,
    )
    return (*kernels, build.kernel("attn.gather", gather, (out,), {"x1": group}))


def _before_mlp(build: Assembly, batch: Batch, rank: int) -> tuple[Kernel, ...]:
    """What brings `attn_out` into the residual, with `norm2`; with attention TP its reduce-scatter first."""
    own, group = _token_bytes(build, batch, rank)
    if build.deployment.attention_tp == 1:
        return _into_residual(build, batch.tokens[rank], "attn_out")
    scatter = work(
        "collective",
        read_bytes=group,
        write_bytes=own,
        nbytes=group,
        ranks=build.deployment.attention_tp,
        reduce=1,
    )
    kernel = build.kernel("attn.scatter", scatter, ("attn_out",), {"attn_out.own": own})
    return (kernel, *_into_residual(build, batch.tokens[rank], "attn_out.own"))


def _into_residual(build: Assembly, tokens: int, result: str) -> tuple[Kernel, ...]:
    """`residual` from attention's result, and `x2` from it."""
    model = build.deployment.model
    if model.hc_mult:
        return (
            post(build, "attn", tokens, result, "hidden", "residual"),
            mix(build, "mlp", tokens, "residual"),
            weighted_norm(build, "norm2", "mlp", tokens, "residual", "x2"),
        )
    own = tokens * model.hidden_size * BF16
    norm = elementwise("norm", tokens, model.hidden_size, 2 * own, 2 * own)
    return (build.kernel("norm2", norm, ("hidden", result), {"residual": own, "x2": own}),)


def _token_bytes(build: Assembly, batch: Batch, rank: int) -> tuple[int, int]:
    """Bytes of the rank's own hidden states and of its attention group's."""
    width = build.deployment.model.hidden_size * BF16
    tokens = batch.tokens
    group = sum(tokens[peer] for peer in attention_ranks(build.deployment, rank))
    return tokens[rank] * width, group * width
