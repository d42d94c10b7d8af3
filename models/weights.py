"""Bytes of the model's weights on one rank."""

from __future__ import annotations

from models.counts import BF16, weight_bytes
from models.deployment import Deployment
from models.hyper_connections import projection_bytes
from models.mqa import compressor_columns, index_columns, mean_of


def weights_bytes(deployment: Deployment) -> int:
    """Weights of one rank: its routed experts (replicas and fused shared slots included), the shared
    expert and the dense layers' MLPs whole, its share of the attention heads, the embedding whole and
    the head split over the attention group."""
    model = deployment.model
    fmt = deployment.quantization.weights
    hidden = model.hidden_size
    expert = _mlp_bytes(hidden, model.moe_intermediate_size, fmt)
    shared = _mlp_bytes(hidden, model.shared_intermediate_size, fmt)
    if deployment.fusion.slots or not model.n_shared_experts:
        shared = 0
    gate = BF16 * hidden * model.n_routed_experts
    mixes = 2 * projection_bytes(model)
    moe = deployment.slots_per_rank * expert + shared + gate
    dense = _mlp_bytes(hidden, model.intermediate_size, fmt) if model.first_k_dense else 0
    vocabulary = BF16 * hidden * model.vocab_size
    return (
        model.num_layers * (attention_bytes(deployment) + mixes)
        + model.num_moe_layers * moe
        + model.first_k_dense * dense
        + vocabulary
        + vocabulary // deployment.attention_tp
    )


def attention_bytes(deployment: Deployment) -> int:
    """Weights of one layer's attention on one rank. MLA keeps `kv_b` twice: in the weights' format for
    prefill and in bf16 for the absorbed products (SGLang)."""
    model, att = deployment.model, deployment.model.attention
    fmt, hidden = deployment.quantization.weights, model.hidden_size
    heads = att.num_heads // deployment.attention_tp
    if att.kind == "gqa":
        kv_heads = max(1, att.num_kv_heads // deployment.attention_tp)
        value = att.v_head_dim or att.head_dim
        width = heads * att.head_dim + kv_heads * (att.head_dim + value)
        return weight_bytes(width, hidden, fmt) + weight_bytes(hidden, heads * value, fmt)
    if att.kind == "mqa":
        return _shared_key_bytes(deployment)
    latent = att.q_lora_rank + att.kv_lora_rank + att.qk_rope_head_dim
    query = heads * (att.qk_nope_head_dim + att.qk_rope_head_dim)
    expanded = heads * (att.qk_nope_head_dim + att.v_head_dim)
    index = att.index_heads * att.index_head_dim
    return (
        weight_bytes(latent, hidden, fmt)
        + weight_bytes(query, att.q_lora_rank or hidden, fmt)
        + weight_bytes(expanded, att.kv_lora_rank, fmt)
        + BF16 * expanded * att.kv_lora_rank
        + weight_bytes(hidden, heads * att.v_head_dim, fmt)
        + weight_bytes(index, att.q_lora_rank or hidden, fmt)
    )


def _shared_key_bytes(deployment: Deployment) -> int:
    """One mean layer: queries, key, groups of the output, compressor (bf16) and indexer."""
    model, att = deployment.model, deployment.model.attention
    fmt, hidden, tp = deployment.quantization.weights, model.hidden_size, deployment.attention_tp
    width, inner = att.num_heads // tp * att.head_dim, att.o_groups * att.o_lora_rank // tp
    columns = mean_of(att, lambda ratio: compressor_columns(att, ratio))
    queries = mean_of(att, lambda ratio: index_columns(att, ratio))
    return (
        weight_bytes(att.q_lora_rank + att.head_dim, hidden, fmt)
        + weight_bytes(width, att.q_lora_rank, fmt)
        + BF16 * att.o_lora_rank * width
        + weight_bytes(hidden, inner, fmt)
        + BF16 * columns * hidden
        + weight_bytes(queries, att.q_lora_rank, fmt)
    )


def _mlp_bytes(hidden: int, intermediate: int, fmt: str) -> int:
    return weight_bytes(2 * intermediate, hidden, fmt) + weight_bytes(hidden, intermediate, fmt)
