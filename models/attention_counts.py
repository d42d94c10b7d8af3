"""Operations and bytes of attention over a KV cache or over expanded keys."""

from __future__ import annotations

from models.counts import BF16
from models.sequences import SequenceSums
from models.work import Work, work


def absorbed_attention(sums: SequenceSums, heads: int, rank: int, rope: int, kv_bytes: int) -> Work:
    """Latent attention in the absorbed form: scores over `rank + rope` and values over `rank` for every
    head; the latents are read once for all heads, `kv_bytes` a value."""
    width = rank + rope
    return work(
        "attention_decode",
        flops={"bf16": 2 * heads * sums.pairs * (width + rank)},
        read_bytes=sums.kv_tokens * width * kv_bytes + heads * sums.tokens * width * BF16,
        write_bytes=heads * sums.tokens * rank * BF16,
        heads=heads,
        qk_dim=width,
        v_dim=rank,
        **_dims(sums),
    )


def plain_attention(sums: SequenceSums, heads: int, qk_dim: int, v_dim: int) -> Work:
    """Attention of prefill over keys and values expanded to every head."""
    read = heads * BF16 * (sums.tokens * qk_dim + sums.kv_tokens * (qk_dim + v_dim))
    return work(
        "attention_prefill",
        flops={"bf16": 2 * heads * sums.pairs * (qk_dim + v_dim)},
        read_bytes=read,
        write_bytes=heads * sums.tokens * v_dim * BF16,
        heads=heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        **_dims(sums),
    )


def grouped_query_attention(
    kind: str,
    sums: SequenceSums,
    heads: int,
    kv_heads: int,
    qk_dim: int,
    v_dim: int,
    kv_bytes: int,
) -> Work:
    """Attention over a cache of `kv_heads` keys and values a token, read once for their query heads."""
    cached = sums.kv_tokens * kv_heads * (qk_dim + v_dim) * kv_bytes
    return work(
        kind,
        flops={"bf16": 2 * heads * sums.pairs * (qk_dim + v_dim)},
        read_bytes=sums.tokens * heads * qk_dim * BF16 + cached,
        write_bytes=sums.tokens * heads * v_dim * BF16,
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        **_dims(sums),
    )


def shared_key_attention(
    kind: str, sums: SequenceSums, heads: int, width: int, kv_bytes: int
) -> Work:
    """Attention over keys of `width` that are the values too, read once for all heads."""
    return work(
        kind,
        flops={"bf16": 2 * heads * sums.pairs * 2 * width},
        read_bytes=sums.tokens * heads * width * BF16 + sums.kv_tokens * width * kv_bytes,
        write_bytes=sums.tokens * heads * width * BF16,
        heads=heads,
        kv_heads=1,
        qk_dim=width,
        v_dim=width,
        **_dims(sums),
    )


def index_scores(sums: SequenceSums, heads: int, dim: int, keep: int) -> Work:
    """Sparse attention's scores of every query against every key in fp8, and the ids kept."""
    return work(
        "attention_prefill",
        flops={"fp8": 2 * heads * dim * sums.pairs},
        read_bytes=sums.kv_tokens * dim,
        write_bytes=sums.tokens * keep * 4,
        heads=heads,
        qk_dim=dim,
        v_dim=0,
        **_dims(sums),
    )


def _dims(sums: SequenceSums) -> dict[str, int]:
    return {
        "tokens": sums.tokens,
        "sequences": sums.sequences,
        "kv_tokens": sums.kv_tokens,
        "pairs": sums.pairs,
    }
