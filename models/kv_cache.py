"""Bytes of the KV cache on one rank."""

from __future__ import annotations

from models.deployment import INDEXED_RATIO, Attention, Batch, Deployment
from models.sequences import attention_ranks

VALUE_BYTES = {"bf16": 2, "fp8": 1}
# Buffers of a layer that later tokens of a sequence read.
CACHES = ("kv_cache", "kv_compressed")


def kv_bytes_per_token(deployment: Deployment) -> int:
    """Bytes of one token in all layers: the latent of MLA (on every rank of an attention group) with
    the index keys of sparse attention, or the rank's keys and values of GQA; of attention with
    compressed keys, their share of a long sequence."""
    att = deployment.model.attention
    if att.kind == "mla":
        width = att.kv_lora_rank + att.qk_rope_head_dim
        index = _index_bytes(att) if att.index_topk else 0
        per_layer = width * VALUE_BYTES[deployment.quantization.kv_cache] + index
    elif att.kind == "mqa":
        return _compressed_bytes(deployment, 1 << 20) // (1 << 20)
    else:
        heads = max(1, att.num_kv_heads // deployment.attention_tp)
        width = heads * (att.head_dim + (att.v_head_dim or att.head_dim))
        per_layer = width * VALUE_BYTES[deployment.quantization.kv_cache]
    return per_layer * deployment.model.num_layers


def kv_cache_bytes(deployment: Deployment, batch: Batch, rank: int) -> int:
    """Cache of the sequences that the rank's attention group holds, new tokens included. Sliding
    attention keeps no more than its window of a sequence."""
    window = deployment.model.attention.window
    held = [
        (new + before, min(new + before, max(window, new)) if window else new + before)
        for peer in attention_ranks(deployment, rank)
        for new, before in zip(batch.new_tokens[peer], batch.prefix_tokens[peer], strict=True)
    ]
    if deployment.model.attention.kind == "mqa":
        near = sum(_window_bytes(deployment, recent) for _, recent in held)
        return near + sum(_compressed_bytes(deployment, whole) for whole, _ in held)
    return sum(recent for _, recent in held) * kv_bytes_per_token(deployment)


def _index_bytes(attention: Attention) -> int:
    """One fp8 index key and its float32 scale."""
    return attention.index_head_dim + 4


def _window_bytes(deployment: Deployment, tokens: int) -> int:
    """The window's keys of one sequence in all layers."""
    value = VALUE_BYTES[deployment.quantization.kv_cache]
    return tokens * deployment.model.attention.head_dim * value * deployment.model.num_layers


def _compressed_bytes(deployment: Deployment, tokens: int) -> int:
    """Compressed keys of one sequence of `tokens` in all layers, those that an indexer picks with their
    index keys."""
    att = deployment.model.attention
    key = att.head_dim * VALUE_BYTES[deployment.quantization.kv_cache]
    total = 0
    for ratio, layers in att.compression:
        if ratio:
            index = _index_bytes(att) if ratio == INDEXED_RATIO else 0
            total += layers * (tokens // ratio) * (key + index)
    described = sum(layers for _, layers in att.compression)
    return total * deployment.model.num_layers // max(1, described)
