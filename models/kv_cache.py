"""Bytes of the KV cache on one rank."""

from __future__ import annotations

from models.deployment import Batch, Deployment
from models.sequences import attention_ranks

VALUE_BYTES = {"bf16": 2, "fp8": 1}


def kv_bytes_per_token(deployment: Deployment) -> int:
    """Bytes of one token in all layers: the latent of MLA (on every rank of an attention group) with
    the index keys of sparse attention, or the rank's keys and values of GQA."""
    att = deployment.model.attention
    if att.kind == "mla":
        width = att.kv_lora_rank + att.qk_rope_head_dim
        index = att.index_head_dim + 4 if att.index_topk else 0  # fp8 key and its scale
        per_layer = width * VALUE_BYTES[deployment.quantization.kv_cache] + index
    else:
        heads = max(1, att.num_kv_heads // deployment.attention_tp)
        width = heads * (att.head_dim + (att.v_head_dim or att.head_dim))
        per_layer = width * VALUE_BYTES[deployment.quantization.kv_cache]
    return per_layer * deployment.model.num_layers


def kv_cache_bytes(deployment: Deployment, batch: Batch, rank: int) -> int:
    """Cache of the sequences that the rank's attention group holds, new tokens included. Sliding
    attention keeps no more than its window of a sequence."""
    window = deployment.model.attention.window
    tokens = 0
    for peer in attention_ranks(deployment, rank):
        for new, before in zip(batch.new_tokens[peer], batch.prefix_tokens[peer], strict=True):
            tokens += min(new + before, max(window, new)) if window else new + before
    return tokens * kv_bytes_per_token(deployment)
