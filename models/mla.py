"""Multi-head latent attention as kernels.

Decode uses the absorbed form: queries are taken into the latent space (`q_bmm`), attention runs over
the cached latents (kv_lora_rank + rope wide), and `v_bmm` takes the result back to heads. Prefill uses
the plain form: `kv_b` expands the latents, and attention runs over qk_nope + qk_rope and v_head_dim.
Kernels of the two halves are split where SGLang 0.5.23 yields: prepare, then core.
"""

from __future__ import annotations

from models.attention_counts import absorbed_attention, index_scores, plain_attention
from models.counts import BF16, bmm, elementwise
from models.deployment import Batch, Kernel
from models.kernels import Assembly
from models.linear import linear
from models.sequences import SequenceSums, sequence_sums

KV_BYTES = {"bf16": 2, "fp8": 1}


def mla_kernels(
    build: Assembly, batch: Batch, rank: int
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """(prepare, core) of one rank's attention, from `x1` to `attn_out`."""
    sums = sequence_sums(build.deployment, batch, rank)
    every = sequence_sums(build.deployment, batch, rank, all_keys=True)
    prepare = [*_projections(build, sums.tokens), *_indexer(build, every)]
    if batch.phase == "decode":
        prepare += [*_query_bmm(build, sums.tokens), _rope(build, sums.tokens)]
        core = [_kv_write(build, sums.tokens), *_absorbed_core(build, sums)]
    else:
        prepare += [*_expand(build, sums), _rope(build, sums.tokens), _kv_write(build, sums.tokens)]
        core = [_plain_core(build, sums)]
    return tuple(prepare), (*core, *_output(build, sums.tokens))


def heads_of(build: Assembly) -> int:
    """Query heads on one rank."""
    return build.deployment.model.attention.num_heads // build.deployment.attention_tp


def _projections(build: Assembly, tokens: int) -> tuple[Kernel, ...]:
    model, att = build.deployment.model, build.deployment.model.attention
    latent = att.kv_lora_rank + att.qk_rope_head_dim
    width = heads_of(build) * (att.qk_nope_head_dim + att.qk_rope_head_dim)
    hidden = model.hidden_size
    first = linear(build, "qkv_a", "x1", "qkv_a.out", tokens, att.q_lora_rank + latent, hidden)
    kv_norm = _norm(build, "kv_norm", "qkv_a.out", "kv_a", tokens, att.kv_lora_rank)
    if not att.q_lora_rank:
        return (*first, kv_norm, *linear(build, "q_b", "x1", "q", tokens, width, hidden))
    q_norm = _norm(build, "q_norm", "qkv_a.out", "q_a", tokens, att.q_lora_rank)
    query = linear(build, "q_b", "q_a", "q", tokens, width, att.q_lora_rank)
    return (*first, q_norm, kv_norm, *query)


def _norm(build: Assembly, name: str, source: str, target: str, tokens: int, width: int) -> Kernel:
    nbytes = tokens * width * BF16
    return build.kernel(
        name, elementwise("norm", tokens, width, nbytes, nbytes), (source,), {target: nbytes}
    )


def _indexer(build: Assembly, sums: SequenceSums) -> tuple[Kernel, ...]:
    """Sparse attention's choice of keys: index queries, one score per query and key, and the cut."""
    att = build.deployment.model.attention
    if not att.index_topk:
        return ()
    width = att.index_heads * att.index_head_dim
    hidden = build.deployment.model.hidden_size
    source, k = ("q_a", att.q_lora_rank) if att.q_lora_rank else ("x1", hidden)
    query = linear(build, "index_q", source, "index_q.out", sums.tokens, width, k)
    score = index_scores(sums, att.index_heads, att.index_head_dim, att.index_topk)
    chosen = {"index": sums.tokens * att.index_topk * 4}
    return (*query, build.kernel("index", score, ("index_q.out",), chosen))


def _query_bmm(build: Assembly, tokens: int) -> tuple[Kernel, ...]:
    att, heads = build.deployment.model.attention, heads_of(build)
    product = bmm(heads, tokens, att.kv_lora_rank, att.qk_nope_head_dim)
    target = {"q_latent": heads * tokens * att.kv_lora_rank * BF16}
    return (build.kernel("q_bmm", product, ("q",), target),)


def _expand(build: Assembly, sums: SequenceSums) -> tuple[Kernel, ...]:
    """`kv_b` over every key that this step attends to, cached ones too."""
    att = build.deployment.model.attention
    width = heads_of(build) * (att.qk_nope_head_dim + att.v_head_dim)
    return linear(build, "kv_b", "kv_a", "kv", sums.kv_tokens, width, att.kv_lora_rank)


def _rope(build: Assembly, tokens: int) -> Kernel:
    att = build.deployment.model.attention
    queries = heads_of(build) * tokens * att.qk_rope_head_dim * BF16
    keys = tokens * att.qk_rope_head_dim * BF16
    rotation = elementwise("rope", tokens, att.qk_rope_head_dim, queries + keys, queries + keys)
    return build.kernel("rope", rotation, ("q", "qkv_a.out"), {"q_rope": queries, "k_rope": keys})


def _kv_write(build: Assembly, tokens: int) -> Kernel:
    att = build.deployment.model.attention
    latent = att.kv_lora_rank + att.qk_rope_head_dim
    stored = tokens * latent * KV_BYTES[build.deployment.quantization.kv_cache]
    copy = elementwise("kv_write", tokens, latent, tokens * latent * BF16, stored)
    return build.kernel("kv_write", copy, ("kv_a", "k_rope"), {"kv_cache": 0})


def _absorbed_core(build: Assembly, sums: SequenceSums) -> tuple[Kernel, ...]:
    att, heads = build.deployment.model.attention, heads_of(build)
    stored = KV_BYTES[build.deployment.quantization.kv_cache]
    core = absorbed_attention(sums, heads, att.kv_lora_rank, att.qk_rope_head_dim, stored)
    reads = ("q_latent", "q_rope", "kv_cache", *(("index",) if att.index_topk else ()))
    back = bmm(heads, sums.tokens, att.v_head_dim, att.kv_lora_rank)
    values = {"attn_v": heads * sums.tokens * att.v_head_dim * BF16}
    return (
        build.kernel("attn", core, reads, {"attn_latent": core.write_bytes}),
        build.kernel("v_bmm", back, ("attn_latent",), values),
    )


def _plain_core(build: Assembly, sums: SequenceSums) -> Kernel:
    att, heads = build.deployment.model.attention, heads_of(build)
    qk_dim = att.qk_nope_head_dim + att.qk_rope_head_dim
    core = plain_attention(sums, heads, qk_dim, att.v_head_dim)
    reads = ("q", "q_rope", "kv", "k_rope", "kv_cache", *(("index",) if att.index_topk else ()))
    return build.kernel("attn", core, reads, {"attn_v": core.write_bytes})


def _output(build: Assembly, tokens: int) -> tuple[Kernel, ...]:
    att = build.deployment.model.attention
    width = heads_of(build) * att.v_head_dim
    hidden = build.deployment.model.hidden_size
    return linear(build, "o_proj", "attn_v", "attn_out", tokens, hidden, width)
