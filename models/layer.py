"""The kernels of one layer on one rank, of the embedding and of the head."""

from __future__ import annotations

from typing import Literal

from models.counts import BF16, elementwise, gemm
from models.deployment import Batch, Deployment, Kernel, LayerKernels
from models.gqa import gqa_kernels
from models.kernels import Assembly
from models.linear import gated_mlp
from models.mla import mla_kernels
from models.moe import add, flights, moe_groups
from models.routing import Routing
from models.sequences import attention_ranks
from models.work import work


def layer_kernels(
    deployment: Deployment,
    batch: Batch,
    routing: Routing,
    rank: int,
    *,
    layer_kind: Literal["moe", "dense"] = "moe",
) -> LayerKernels:
    """Kernels of one layer on `rank`, from `hidden` back to `hidden`.

    Groups P Q C M, then G T Da Db X Ca Cb S of an MoE layer, or X (the MLP) of a dense one, then O. A
    dense layer's MLP is whole on every rank, as with SGLang's `moe_dense_tp_size` 1. ValueError when
    batch and routing disagree about the tokens of the rank.
    """
    tokens = batch.tokens[rank]
    if layer_kind == "moe" and routing.tokens[rank] != tokens:
        raise ValueError(
            f"rank {rank} has {tokens} tokens in the batch and {routing.tokens[rank]} in the routing"
        )
    build = Assembly(deployment)
    attention = mla_kernels if deployment.model.attention.kind == "mla" else gqa_kernels
    groups = {"P": _before_attention(build, batch, rank)}
    groups["Q"], groups["C"] = attention(build, batch, rank)
    groups["M"] = _before_mlp(build, batch, rank)
    if layer_kind == "dense":
        size = deployment.model.intermediate_size
        groups["X"] = gated_mlp(build, "mlp", "x2", "mlp", tokens, size)
        groups["O"] = (add(build, tokens, ("mlp",)),)
        return LayerKernels(groups, build.buffers)
    groups |= moe_groups(build, routing, rank)
    return LayerKernels(groups, build.buffers, flights(build, routing))


def embedding_kernels(deployment: Deployment, batch: Batch, rank: int) -> tuple[Kernel, ...]:
    """The lookup of the rank's own tokens: nothing to `hidden`."""
    build = Assembly(deployment)
    tokens, hidden = batch.tokens[rank], deployment.model.hidden_size
    nbytes = tokens * hidden * BF16
    size = elementwise("embedding", tokens, hidden, nbytes, nbytes)
    return (build.kernel("embed", size, (), {"hidden": nbytes}),)


def head_kernels(deployment: Deployment, batch: Batch, rank: int) -> tuple[Kernel, ...]:
    """Final norm and vocabulary projection (bf16), from `hidden` to `logits`: of every token in
    decode, of each sequence's last token in prefill. The projection is whole on every rank, as with
    SGLang's `enable_dp_lm_head` at attention TP 1, else split over the attention group."""
    build = Assembly(deployment)
    model, tokens = deployment.model, batch.tokens[rank]
    rows = tokens if batch.phase == "decode" else sum(1 for n in batch.new_tokens[rank] if n)
    rows *= deployment.attention_tp
    vocab = -(-model.vocab_size // deployment.attention_tp)
    nbytes = tokens * model.hidden_size * BF16
    norm = elementwise("norm", tokens, model.hidden_size, nbytes, nbytes)
    head = gemm(rows, vocab, model.hidden_size, "bf16", kind="head")
    return (
        build.kernel("norm", norm, ("hidden",), {"x": nbytes}),
        build.kernel("lm_head", head, ("x",), {"logits": rows * vocab * BF16}),
    )


def _before_attention(build: Assembly, batch: Batch, rank: int) -> tuple[Kernel, ...]:
    """`norm1`; with attention TP also the all-gather of the group's tokens."""
    own, group = _token_bytes(build, batch, rank)
    hidden = build.deployment.model.hidden_size
    norm = elementwise("norm", batch.tokens[rank], hidden, own, own)
    if build.deployment.attention_tp == 1:
        return (build.kernel("norm1", norm, ("hidden",), {"x1": own}),)
    gather = work(
        "collective",
        read_bytes=own,
        write_bytes=group,
        nbytes=group,
        ranks=build.deployment.attention_tp,
        reduce=0,
    )
    return (
        build.kernel("norm1", norm, ("hidden",), {"x1.own": own}),
        build.kernel("attn.gather", gather, ("x1.own",), {"x1": group}),
    )


def _before_mlp(build: Assembly, batch: Batch, rank: int) -> tuple[Kernel, ...]:
    """The residual add with `norm2`; with attention TP the reduce-scatter of `attn_out` first."""
    own, group = _token_bytes(build, batch, rank)
    hidden = build.deployment.model.hidden_size
    norm = elementwise("norm", batch.tokens[rank], hidden, 2 * own, 2 * own)
    result = {"residual": own, "x2": own}
    if build.deployment.attention_tp == 1:
        return (build.kernel("norm2", norm, ("hidden", "attn_out"), result),)
    scatter = work(
        "collective",
        read_bytes=group,
        write_bytes=own,
        nbytes=group,
        ranks=build.deployment.attention_tp,
        reduce=1,
    )
    return (
        build.kernel("attn.scatter", scatter, ("attn_out",), {"attn_out.own": own}),
        build.kernel("norm2", norm, ("hidden", "attn_out.own"), result),
    )


def _token_bytes(build: Assembly, batch: Batch, rank: int) -> tuple[int, int]:
    """Bytes of the rank's own hidden states and of its attention group's."""
    width = build.deployment.model.hidden_size * BF16
    tokens = batch.tokens
    group = sum(tokens[peer] for peer in attention_ranks(build.deployment, rank))
    return tokens[rank] * width, group * width
