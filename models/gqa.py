"""Grouped-query attention as kernels, in the halves at which SGLang 0.5.23 yields."""

from __future__ import annotations

from models.attention_counts import grouped_query_attention
from models.counts import BF16, elementwise
from models.deployment import Batch, Kernel
from models.kernels import Assembly
from models.linear import linear
from models.mla import KV_BYTES, heads_of
from models.sequences import SequenceSums, sequence_sums


def gqa_kernels(
    build: Assembly, batch: Batch, rank: int
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """(prepare, core) of one rank's attention, from `x1` to `attn_out`."""
    att, hidden = build.deployment.model.attention, build.deployment.model.hidden_size
    sums = sequence_sums(build.deployment, batch, rank)
    heads, kv_heads = heads_of(build), kv_heads_of(build)
    value_dim = att.v_head_dim or att.head_dim
    keys = sums.tokens * kv_heads * att.head_dim * BF16
    values = sums.tokens * kv_heads * value_dim * BF16
    queries = sums.tokens * heads * att.head_dim * BF16
    width = heads * att.head_dim + kv_heads * (att.head_dim + value_dim)
    norm = elementwise("norm", sums.tokens, att.head_dim, queries + keys, queries + keys)
    rope = elementwise("rope", sums.tokens, att.head_dim, queries + keys, queries + keys)
    stored = (keys + values) // BF16 * KV_BYTES[build.deployment.quantization.kv_cache]
    copy = elementwise("kv_write", sums.tokens, kv_heads * att.head_dim, keys + values, stored)
    prepare = (
        *linear(build, "qkv", "x1", "qkv.out", sums.tokens, width, hidden),
        build.kernel("q_norm", norm, ("qkv.out",), {"qk": queries + keys}),
        build.kernel("rope", rope, ("qk",), {"q": queries, "k": keys}),
    )
    core = (
        build.kernel("kv_write", copy, ("k", "qkv.out"), {"kv_cache": 0}),
        _attention(build, batch, sums),
        *linear(build, "o_proj", "attn_v", "attn_out", sums.tokens, hidden, heads * value_dim),
    )
    return prepare, core


def kv_heads_of(build: Assembly) -> int:
    """Key and value heads on one rank; replicated once there are fewer than ranks."""
    kv_heads = build.deployment.model.attention.num_kv_heads
    return max(1, kv_heads // build.deployment.attention_tp)


def _attention(build: Assembly, batch: Batch, sums: SequenceSums) -> Kernel:
    att = build.deployment.model.attention
    core = grouped_query_attention(
        f"attention_{batch.phase}",
        sums,
        heads_of(build),
        kv_heads_of(build),
        att.head_dim,
        att.v_head_dim or att.head_dim,
        KV_BYTES[build.deployment.quantization.kv_cache],
    )
    return build.kernel("attn", core, ("q", "k", "kv_cache"), {"attn_v": core.write_bytes})
