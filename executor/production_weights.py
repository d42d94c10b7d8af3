"""FP8 weights on the GPU, drawn there by seed, and what the plain model needs to check results."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.libraries import Scaled
from executor.small_kernels import FP8, GROUP
from executor.weights import ExpertWeights, LayerWeights
from models.deployment import Model


def block_quantised(weight: torch.Tensor) -> Scaled:
    """[n, k] as FP8 with a scale for each 128 x 128 block."""
    n, k = weight.shape
    rows, columns = -(-n // GROUP), -(-k // GROUP)
    padded = torch.zeros(rows * GROUP, columns * GROUP, dtype=torch.float32, device=weight.device)
    padded[:n, :k] = weight
    blocks = padded.view(rows, GROUP, columns, GROUP)
    scale = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-4) / 448.0
    cast = (blocks / scale[:, None, :, None]).to(FP8).view_as(padded)
    return cast[:n, :k].contiguous(), scale


def dequantised(weight: Scaled) -> torch.Tensor:
    """[n, k] in float32."""
    values, scale = weight
    n, k = values.shape
    wide = scale.repeat_interleave(GROUP, 0)[:n].repeat_interleave(GROUP, 1)[:, :k]
    return values.float() * wide


@dataclass(frozen=True)
class ProductionWeights:
    """One layer's weights on one rank; linear ones in FP8, norms, gate and the absorbed
    up-projections in bf16. `gate_up` and `down` hold all local experts, [E, n, k]."""

    model: Model
    norms: dict[str, torch.Tensor]
    linear: dict[str, Scaled]
    gate: torch.Tensor
    k_up: torch.Tensor
    v_up: torch.Tensor
    gate_up: Scaled
    down: Scaled
    seed: int

    def plain(self, device: torch.device) -> LayerWeights:
        """The same weights, dequantised to float32, for the plain model."""
        att, model = self.model.attention, self.model
        joint = dequantised(self.linear["qkv_a"])
        shared = None
        if model.n_shared_experts:
            shared = ExpertWeights(
                dequantised(self.linear["shared.gate_up"]), dequantised(self.linear["shared.down"])
            )

        def expert(physical_id: int) -> ExpertWeights:
            gate_up, down = expert_weights(model, self.seed, physical_id, device)
            return ExpertWeights(dequantised(gate_up), dequantised(down))

        return LayerWeights(
            input_norm=self.norms["norm1"].float(),
            q_a=joint[: att.q_lora_rank] if att.q_lora_rank else None,
            q_norm=self.norms["q_norm"].float() if att.q_lora_rank else None,
            q_b=dequantised(self.linear["q_b"]),
            kv_a=joint[att.q_lora_rank :],
            kv_norm=self.norms["kv_norm"].float(),
            k_up=self.k_up.float(),
            v_up=self.v_up.float(),
            o_proj=dequantised(self.linear["o_proj"]),
            post_norm=self.norms["norm2"].float(),
            gate=self.gate.float(),
            shared=shared,
            expert=expert,
            dtype=torch.float32,
            hidden_size=model.hidden_size,
        )


def _drawn(generator: torch.Generator, n: int, k: int, device: torch.device) -> torch.Tensor:
    drawn: torch.Tensor = torch.randn(n, k, generator=generator, device=device) * float(k) ** -0.5
    return drawn


def expert_weights(
    model: Model, seed: int, physical_id: int, device: torch.device
) -> tuple[Scaled, Scaled]:
    """(gate and up, down) of one physical expert, the same on every GPU of a kind."""
    generator = torch.Generator(device=device).manual_seed(seed * 100_003 + physical_id)
    hidden, inner = model.hidden_size, model.moe_intermediate_size
    gate_up = block_quantised(_drawn(generator, 2 * inner, hidden, device))
    return gate_up, block_quantised(_drawn(generator, hidden, inner, device))


def production_weights(
    model: Model, experts: range, seed: int, device: torch.device, *, fused: bool = False
) -> ProductionWeights:
    """A layer's weights with the local physical experts `experts`; with `fused` the shared expert is
    the last row of `gate_up` and `down` as well."""
    att = model.attention
    generator = torch.Generator(device=device).manual_seed(seed)

    def linear(n: int, k: int) -> Scaled:
        return block_quantised(_drawn(generator, n, k, device))

    def norm(size: int) -> torch.Tensor:
        values = 1.0 + 0.1 * torch.randn(size, generator=generator, device=device)
        return values.to(torch.bfloat16)

    hidden, heads, latent = model.hidden_size, att.num_heads, att.kv_lora_rank
    width = heads * (att.qk_nope_head_dim + att.qk_rope_head_dim)
    shared = model.shared_intermediate_size or model.n_shared_experts * model.moe_intermediate_size
    table = {
        "qkv_a": linear(att.q_lora_rank + latent + att.qk_rope_head_dim, hidden),
        "q_b": linear(width, att.q_lora_rank or hidden),
        "kv_b": linear(heads * (att.qk_nope_head_dim + att.v_head_dim), latent),
        "o_proj": linear(hidden, heads * att.v_head_dim),
    }
    if model.n_shared_experts:
        table["shared.gate_up"] = linear(2 * shared, hidden)
        table["shared.down"] = linear(hidden, shared)
    up = dequantised(table["kv_b"]).to(torch.bfloat16).unflatten(0, (heads, -1))
    gate = _drawn(generator, model.n_routed_experts, hidden, device).to(torch.bfloat16)
    local = [expert_weights(model, seed, expert, device) for expert in experts]
    if fused:
        local.append((table["shared.gate_up"], table["shared.down"]))
    return ProductionWeights(
        model,
        {
            "norm1": norm(hidden),
            "q_norm": norm(att.q_lora_rank or 1),
            "kv_norm": norm(latent),
            "norm2": norm(hidden),
        },
        table,
        gate,
        up[:, : att.qk_nope_head_dim].contiguous(),
        up[:, att.qk_nope_head_dim :].contiguous(),
        _stacked([pair[0] for pair in local]),
        _stacked([pair[1] for pair in local]),
        seed,
    )


def _stacked(weights: list[Scaled]) -> Scaled:
    return torch.stack([w for w, _ in weights]), torch.stack([s for _, s in weights])


def weight_bytes(model: Model, experts: int) -> int:
    """Bytes of one layer's weights on one rank, before anything is allocated."""
    att, hidden = model.attention, model.hidden_size
    width = att.num_heads * (att.qk_nope_head_dim + att.qk_rope_head_dim)
    values = att.num_heads * (att.qk_nope_head_dim + att.v_head_dim)
    shared = model.shared_intermediate_size or model.n_shared_experts * model.moe_intermediate_size
    linear = (
        (att.q_lora_rank + att.kv_lora_rank + att.qk_rope_head_dim) * hidden
        + width * (att.q_lora_rank or hidden)
        + 3 * values * att.kv_lora_rank
        + hidden * att.num_heads * att.v_head_dim
        + 3 * shared * hidden
    )
    return linear + 3 * experts * hidden * model.moe_intermediate_size
