"""Seeded weights and inputs of a small model, the same on every rank that asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from models.deployment import Model


@dataclass(frozen=True)
class ExpertWeights:
    """One gated expert: `gate_up` [2 I, H] and `down` [H, I]."""

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer with MLA attention; matrices are [out, in].

    `q_a` is None for a model without query compression, and `q_b` then takes the hidden state.
    `kv_b` is split by head into the up-projections of keys [heads, nope, kv_lora] and of values
    [heads, v, kv_lora]. `shared` is None for a model without it. `expert` gives the weights of a
    physical routed expert, drawn anew from its own seed.
    """

    input_norm: torch.Tensor
    q_a: torch.Tensor | None
    q_norm: torch.Tensor | None
    q_b: torch.Tensor
    kv_a: torch.Tensor
    kv_norm: torch.Tensor
    k_up: torch.Tensor
    v_up: torch.Tensor
    o_proj: torch.Tensor
    post_norm: torch.Tensor
    gate: torch.Tensor
    shared: ExpertWeights | None
    expert: Callable[[int], ExpertWeights]
    dtype: torch.dtype
    hidden_size: int


class Draw:
    """A source of seeded tensors, drawn in float64 on the CPU and then cast."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal values with standard deviation `scale`."""
        drawn = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return (drawn * scale).to(self._dtype)

    def matrix(self, out_size: int, in_size: int) -> torch.Tensor:
        """A matrix that keeps the size of what it multiplies."""
        return self.normal(out_size, in_size, scale=in_size**-0.5)

    def norm(self, size: int) -> torch.Tensor:
        """Norm weights around one."""
        return self.normal(size, scale=0.1) + 1.0

    def expert(self, hidden: int, intermediate: int) -> ExpertWeights:
        """One gated expert."""
        return ExpertWeights(
            self.matrix(2 * intermediate, hidden), self.matrix(hidden, intermediate)
        )


def layer_weights(
    model: Model, layer: int, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> LayerWeights:
    """Weights of layer `layer` of an MLA model; ValueError for other attention kinds."""
    a = model.attention
    if a.kind != "mla":
        raise ValueError(f"model {model.name!r}: the reference has weights for mla, not {a.kind!r}")
    draw = Draw(seed * 1009 + layer, dtype)
    hidden, heads = model.hidden_size, a.num_heads
    q_out = heads * (a.qk_nope_head_dim + a.qk_rope_head_dim)
    shared_size = model.shared_intermediate_size or (
        model.n_shared_experts * model.moe_intermediate_size
    )

    def expert(physical_id: int) -> ExpertWeights:
        own = Draw((seed * 1009 + layer) * 100_003 + physical_id + 1, dtype)
        return own.expert(hidden, model.moe_intermediate_size)

    return LayerWeights(
        input_norm=draw.norm(hidden),
        q_a=draw.matrix(a.q_lora_rank, hidden) if a.q_lora_rank else None,
        q_norm=draw.norm(a.q_lora_rank) if a.q_lora_rank else None,
        q_b=draw.matrix(q_out, a.q_lora_rank or hidden),
        kv_a=draw.matrix(a.kv_lora_rank + a.qk_rope_head_dim, hidden),
        kv_norm=draw.norm(a.kv_lora_rank),
        k_up=draw.normal(heads, a.qk_nope_head_dim, a.kv_lora_rank, scale=a.kv_lora_rank**-0.5),
        v_up=draw.normal(heads, a.v_head_dim, a.kv_lora_rank, scale=a.kv_lora_rank**-0.5),
        o_proj=draw.matrix(hidden, heads * a.v_head_dim),
        post_norm=draw.norm(hidden),
        gate=draw.matrix(model.n_routed_experts, hidden),
        shared=draw.expert(hidden, shared_size) if model.n_shared_experts else None,
        expert=expert,
        dtype=dtype,
        hidden_size=hidden,
    )
