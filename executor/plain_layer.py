"""The layer as one would write it without any schedule: what every schedule's output must equal.

It knows nothing of programs, ranks' exchanges or kernels: each rank's tokens go through attention
over their own sequences, and through all the experts that the given ids name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from executor.weights import Draw, ExpertWeights, LayerWeights
from models.deployment import Batch, Model

EPSILON = 1e-6
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class RankState:
    """What one rank brings to a step: `hidden` [T, H] of the new tokens, and for each layer and
    sequence the cached (latent [n, kv_lora], roped key [n, rope]) of its prefix."""

    hidden: torch.Tensor
    prefix: tuple[tuple[tuple[torch.Tensor, torch.Tensor], ...], ...]


def rank_state(
    model: Model, batch: Batch, rank: int, *, layers: int, seed: int, dtype: torch.dtype
) -> RankState:
    """Seeded inputs of one rank."""
    draw = Draw(seed * 7919 + rank, dtype)
    a = model.attention
    hidden = draw.normal(batch.tokens[rank], model.hidden_size)
    prefix = tuple(
        tuple(
            (draw.normal(n, a.kv_lora_rank), draw.normal(n, a.qk_rope_head_dim))
            for n in batch.prefix_tokens[rank]
        )
        for _ in range(layers)
    )
    return RankState(hidden, prefix)


def plain_model(
    model: Model,
    weights: Sequence[LayerWeights],
    batch: Batch,
    ids: Sequence[torch.Tensor],
    states: Sequence[RankState],
) -> list[torch.Tensor]:
    """The residual stream [T, H] of each rank after all layers. `ids[rank]` are the physical
    experts [T, k] of every layer, -1 for none."""
    outputs = []
    for rank, state in enumerate(states):
        x = state.hidden
        for layer, w in enumerate(weights):
            prefix = state.prefix[layer]
            x = x + attention(model, w, rms_norm(x, w.input_norm), batch.new_tokens[rank], prefix)
            x = x + moe(model, w, rms_norm(x, w.post_norm), ids[rank])
        outputs.append(x)
    return outputs


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Root-mean-square norm over the last axis."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of the last axis, halves paired; `positions` [T] broadcast over heads."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=x.dtype, device=x.device) / half
    angle = positions.to(x.dtype).unsqueeze(-1) * ROPE_BASE ** (-steps)
    while angle.dim() < x.dim():
        angle = angle.unsqueeze(1)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def attention(
    model: Model,
    w: LayerWeights,
    h: torch.Tensor,
    new_tokens: Sequence[int],
    prefix: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Causal multi-head latent attention of each sequence over its prefix and itself, [T, H]."""
    a = model.attention
    parts = []
    start = 0
    for length, (old_latent, old_rope) in zip(new_tokens, prefix, strict=True):
        x = h[start : start + length]
        start += length
        positions = torch.arange(length, device=h.device) + old_latent.shape[0]
        query = x if w.q_a is None or w.q_norm is None else rms_norm(x @ w.q_a.T, w.q_norm)
        q = (query @ w.q_b.T).view(length, a.num_heads, a.qk_nope_head_dim + a.qk_rope_head_dim)
        q_nope, q_rope = q[..., : a.qk_nope_head_dim], q[..., a.qk_nope_head_dim :]
        compressed = x @ w.kv_a.T
        latent = torch.cat((old_latent, rms_norm(compressed[:, : a.kv_lora_rank], w.kv_norm)))
        k_rope = torch.cat((old_rope, rotate(compressed[:, a.kv_lora_rank :], positions)))
        keys = torch.einsum("nc,hdc->nhd", latent, w.k_up)
        values = torch.einsum("nc,hdc->nhd", latent, w.v_up)
        scores = torch.einsum("thd,nhd->htn", q_nope, keys)
        scores = scores + torch.einsum("thd,nd->htn", rotate(q_rope, positions), k_rope)
        scores = scores * (a.qk_nope_head_dim + a.qk_rope_head_dim) ** -0.5
        visible = torch.arange(latent.shape[0], device=h.device) <= positions.unsqueeze(-1)
        chances = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        mixed = torch.einsum("htn,nhd->thd", chances, values).flatten(1)
        parts.append(mixed @ w.o_proj.T)
    return torch.cat(parts) if parts else h.new_zeros(h.shape)


def scoring(kind: str, logits: torch.Tensor) -> torch.Tensor:
    """Router scores of all experts from their logits."""
    if kind == "softmax":
        return logits.softmax(-1)
    if kind == "sqrtsoftplus":
        return functional.softplus(logits).sqrt()
    return logits.sigmoid()


def expert_scores(model: Model, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Weight [T, k] of each chosen expert, 0 for id -1; scaled by the model's routed factor."""
    scored = scoring(model.scoring, logits)
    chosen = scored.gather(-1, ids.clamp(min=0).long() % model.n_routed_experts)
    chosen = chosen * (ids >= 0)
    if model.norm_topk_prob:
        chosen = chosen / chosen.sum(-1, keepdim=True).clamp(min=1e-20)
    return chosen * model.routed_scaling_factor


def gated(x: torch.Tensor, expert: ExpertWeights) -> torch.Tensor:
    """down(silu(gate x) * up x)."""
    gate, up = (x @ expert.gate_up.T).chunk(2, dim=-1)
    return (functional.silu(gate) * up) @ expert.down.T


def moe(model: Model, w: LayerWeights, h: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Routed experts by id, weighted, plus the shared expert, [T, H]."""
    scores = expert_scores(model, h @ w.gate.T, ids)
    out = gated(h, w.shared) if w.shared is not None else torch.zeros_like(h)
    for expert_id in sorted({int(e) for e in ids.flatten().tolist() if e >= 0}):
        token, slot = (ids == expert_id).nonzero(as_tuple=True)
        out = out.index_add(
            0, token, gated(h[token], w.expert(expert_id)) * scores[token, slot].unsqueeze(-1)
        )
    return out
