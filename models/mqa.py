"""Attention of DeepSeek V4: one shared key of a sliding window, and keys compressed over the rest.

Queries come from a low rank and the result goes back through groups of low rank. Layers differ: some
attend to their window only, some also to one key for every 4 tokens, of which an indexer picks a few,
some to one for every 128. All layers here are the mean of theirs. Source: config.json of
deepseek-ai/DeepSeek-V4-Flash; SGLang's models/deepseek_v4.py (MqaAttentionBase, Compressor, C4Indexer).
"""

from __future__ import annotations

from collections.abc import Callable

from models.attention_counts import index_scores, shared_key_attention
from models.counts import BF16, bmm, elementwise, gemm
from models.deployment import INDEXED_RATIO, Attention, Batch, Kernel
from models.kernels import Assembly
from models.kv_cache import VALUE_BYTES
from models.linear import linear
from models.sequences import SequenceSums, compressed_sums, sequence_sums


def mean_of(attention: Attention, value: Callable[[int], float]) -> int:
    """The mean over layers of what a layer of a compression ratio has (0: none)."""
    layers = attention.compression or ((0, 1),)
    total = sum(count * value(ratio) for ratio, count in layers)
    return round(total / sum(count for _, count in layers))


def compressor_columns(attention: Attention, ratio: int) -> int:
    """Columns of a layer's projections to values and gates of compressed keys, the indexer's included."""
    if not ratio:
        return 0
    if ratio == INDEXED_RATIO:
        return 2 * 2 * (attention.head_dim + attention.index_head_dim)
    return 2 * attention.head_dim


def index_columns(attention: Attention, ratio: int) -> int:
    """Columns of a layer's index queries."""
    indexed = ratio == INDEXED_RATIO
    return attention.index_heads * attention.index_head_dim if indexed else 0


def mqa_kernels(
    build: Assembly, batch: Batch, rank: int
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """(prepare, core) of one rank's attention, from `x1` to `attn_out`."""
    window = sequence_sums(build.deployment, batch, rank)
    prepare = (*_queries(build, window.tokens), *_compressed(build, batch, rank, window.tokens))
    return prepare, (_core(build, batch, rank, window), *_output(build, window.tokens))


def _queries(build: Assembly, tokens: int) -> tuple[Kernel, ...]:
    """Queries by a low rank, and the window's key into the cache."""
    deployment, att = build.deployment, build.deployment.model.attention
    hidden, size = deployment.model.hidden_size, att.head_dim
    width = att.num_heads // deployment.attention_tp * size
    rank_bytes, query_bytes = tokens * att.q_lora_rank * BF16, tokens * width * BF16
    norm = elementwise("norm", tokens, att.q_lora_rank, rank_bytes, rank_bytes)
    rope = elementwise("rope", tokens, width, query_bytes, query_bytes)
    stored = tokens * size * VALUE_BYTES[deployment.quantization.kv_cache]
    write = elementwise("kv_write", tokens, size, tokens * size * BF16, stored)
    return (
        *linear(build, "qkv_a", "x1", "qkv_a.out", tokens, att.q_lora_rank + size, hidden),
        build.kernel("q_norm", norm, ("qkv_a.out",), {"q_a": rank_bytes}),
        *linear(build, "q_b", "q_a", "q_b.out", tokens, width, att.q_lora_rank),
        build.kernel("rope", rope, ("q_b.out",), {"q": query_bytes}),
        build.kernel("kv_write", write, ("qkv_a.out",), {"kv_cache": 0}),
    )


def _compressed(build: Assembly, batch: Batch, rank: int, tokens: int) -> tuple[Kernel, ...]:
    """New compressed keys, and the indexer's choice among those of one for every 4 tokens."""
    deployment, att = build.deployment, build.deployment.model.attention
    columns = mean_of(att, lambda ratio: compressor_columns(att, ratio))
    if not columns:
        return ()
    projected = tokens * columns * BF16
    project = gemm(tokens, columns, deployment.model.hidden_size, "bf16", kind="gate")
    kept = mean_of(att, lambda ratio: tokens * att.head_dim * BF16 / ratio if ratio else 0)
    pool = elementwise("norm", tokens, columns, projected, kept)
    kernels: tuple[Kernel, ...] = (
        build.kernel("compress", project, ("x1",), {"compress.out": projected}),
        build.kernel("compress.pool", pool, ("compress.out",), {"kv_compressed": 0}),
    )
    queries = mean_of(att, lambda ratio: index_columns(att, ratio))
    if not queries:
        return kernels
    seen = _mean_sums(build, batch, rank, lambda ratio: ratio == INDEXED_RATIO, keep=False)
    scores = index_scores(seen, att.index_heads, att.index_head_dim, att.index_topk)
    return (
        *kernels,
        *linear(build, "index_q", "q_a", "index_q.out", tokens, queries, att.q_lora_rank),
        build.kernel(
            "index", scores, ("index_q.out", "kv_compressed"), {"index": scores.write_bytes}
        ),
    )


def _mean_sums(
    build: Assembly, batch: Batch, rank: int, wanted: Callable[[int], bool], *, keep: bool
) -> SequenceSums:
    """Sums over compressed keys, the mean over layers whose ratio is wanted (the others have none)."""
    att = build.deployment.model.attention
    sums = {
        ratio: compressed_sums(
            build.deployment,
            batch,
            rank,
            ratio,
            att.index_topk if keep and ratio == INDEXED_RATIO else 0,
        )
        for ratio, _ in att.compression
        if ratio and wanted(ratio)
    }

    def mean(value: Callable[[SequenceSums], int]) -> int:
        return mean_of(att, lambda ratio: value(sums[ratio]) if ratio in sums else 0)

    return SequenceSums(
        mean(lambda one: one.sequences),
        mean(lambda one: one.tokens),
        mean(lambda one: one.kv_tokens),
        mean(lambda one: one.pairs),
    )


def _core(build: Assembly, batch: Batch, rank: int, window: SequenceSums) -> Kernel:
    deployment, att = build.deployment, build.deployment.model.attention
    rest = _mean_sums(build, batch, rank, bool, keep=True)
    sums = SequenceSums(
        window.sequences,
        window.tokens,
        window.kv_tokens + rest.kv_tokens,
        window.pairs + rest.pairs,
    )
    core = shared_key_attention(
        f"attention_{batch.phase}",
        sums,
        att.num_heads // deployment.attention_tp,
        att.head_dim,
        VALUE_BYTES[deployment.quantization.kv_cache],
    )
    indexed = any(index_columns(att, ratio) for ratio, _ in att.compression)
    compressed = any(ratio for ratio, _ in att.compression)
    reads = ("q", "kv_cache", *(("kv_compressed",) * compressed), *(("index",) * indexed))
    return build.kernel("attn", core, reads, {"attn_v": core.write_bytes})


def _output(build: Assembly, tokens: int) -> tuple[Kernel, ...]:
    """Heads in groups to their low rank (bf16), and that to the hidden size."""
    deployment, att = build.deployment, build.deployment.model.attention
    groups = max(1, att.o_groups // deployment.attention_tp)
    width = att.num_heads // deployment.attention_tp * att.head_dim
    down = bmm(groups, tokens, att.o_lora_rank, width // groups)
    inner = groups * att.o_lora_rank
    hidden = deployment.model.hidden_size
    return (
        build.kernel("o_a", down, ("attn_v",), {"o_a.out": tokens * inner * BF16}),
        *linear(build, "o_proj", "o_a.out", "attn_out", tokens, hidden, inner),
    )
