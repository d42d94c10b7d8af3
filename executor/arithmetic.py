"""What each kernel of a layer computes, by the kernel names of `models.layer`, in plain torch.

Kernels find their inputs and outputs by position in the op's reads and writes. Quantising is the
identity here: formats change times and bytes, not what a schedule must order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from executor.layer_state import Attended, LayerState
from executor.plain_layer import expert_scores, rms_norm, rotate
from executor.reference import Call, Kernel
from executor.weights import LayerWeights

Plain = Callable[[Call], None]


def state_of(call: Call) -> tuple[LayerState, LayerWeights]:
    """The rank's state and the weights of the op's layer."""
    state: LayerState = call.state
    return state, state.weights[call.op.layer]


def inputs(call: Call) -> list[Any]:
    """Contents of the op's reads."""
    return [call.read(name) for name in call.op.reads]


def output(call: Call, *values: Any) -> None:
    """Fill the op's writes, in order."""
    for name, value in zip(call.op.writes, values, strict=True):
        call.write(name, value)


def copy(call: Call) -> None:
    """Quantise: the same values."""
    output(call, inputs(call)[0])


def norm(weight: Callable[[LayerWeights], torch.Tensor | None]) -> Plain:
    """A norm by one of the layer's weights."""

    def compute(call: Call) -> None:
        w = weight(state_of(call)[1])
        assert w is not None
        output(call, rms_norm(inputs(call)[0], w))

    return compute


def linear(weight: Callable[[LayerWeights], torch.Tensor]) -> Plain:
    """A product with one of the layer's matrices [out, in]."""

    def compute(call: Call) -> None:
        output(call, inputs(call)[0] @ weight(state_of(call)[1]).T)

    return compute


def _qkv_weight(w: LayerWeights) -> torch.Tensor:
    return w.kv_a if w.q_a is None else torch.cat((w.q_a, w.kv_a))


def _shared_gate_up(w: LayerWeights) -> torch.Tensor:
    assert w.shared is not None
    return w.shared.gate_up


def _shared_down(w: LayerWeights) -> torch.Tensor:
    assert w.shared is not None
    return w.shared.down


def q_norm(call: Call) -> None:
    """The query part of the joint projection, normed."""
    state, w = state_of(call)
    assert w.q_norm is not None
    output(call, rms_norm(inputs(call)[0][:, : state.model.attention.q_lora_rank], w.q_norm))


def kv_norm(call: Call) -> None:
    """The latent part of the joint projection, normed."""
    state, w = state_of(call)
    att = state.model.attention
    latent = inputs(call)[0][:, att.q_lora_rank : att.q_lora_rank + att.kv_lora_rank]
    output(call, rms_norm(latent, w.kv_norm))


def _heads(state: LayerState, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    att = state.model.attention
    by_head = q.unflatten(1, (att.num_heads, att.qk_nope_head_dim + att.qk_rope_head_dim))
    return by_head[..., : att.qk_nope_head_dim], by_head[..., att.qk_nope_head_dim :]


def rope(call: Call) -> None:
    """Rotated query and key parts, [T, heads, rope] and [T, rope]."""
    state, _ = state_of(call)
    q, joint = inputs(call)
    positions = state.part(call.op.child).positions
    keys = joint[:, -state.model.attention.qk_rope_head_dim :]
    output(call, rotate(_heads(state, q)[1], positions), rotate(keys, positions))


def q_bmm(call: Call) -> None:
    """Queries in the latent space, [T, heads, kv_lora]."""
    state, w = state_of(call)
    output(call, torch.einsum("thd,hdc->thc", _heads(state, inputs(call)[0])[0], w.k_up))


def kv_b(call: Call) -> None:
    """Keys and values of the new tokens, ([T, heads, nope], [T, heads, v])."""
    _, w = state_of(call)
    output(call, _expanded(w, inputs(call)[0]))


def _expanded(w: LayerWeights, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.einsum("nc,hdc->nhd", latent, w.k_up)
    return keys, torch.einsum("nc,hdc->nhd", latent, w.v_up)


def kv_write(call: Call) -> None:
    """Latents and rotated keys of the new tokens into the cache."""
    state, _ = state_of(call)
    latent, keys = inputs(call)
    for piece in state.part(call.op.child).pieces:
        state.cache(call.op.layer, piece.sequence).store(piece, latent, keys)
    output(call, "stored")


def attn(call: Call) -> None:
    """Causal attention: absorbed with latents (decode), else plain with expanded keys."""
    state, w = state_of(call)
    named = {
        name.rpartition(".")[2]: value
        for name, value in zip(call.op.reads, inputs(call), strict=True)
    }
    parts = [
        _absorbed(state, named, seen) if "q_latent" in named else _plain(state, w, named, seen)
        for seen in state.attended(call.op.layer, call.op.child)
    ]
    att = state.model.attention
    width = att.kv_lora_rank if "q_latent" in named else att.v_head_dim
    empty = named["q_rope"].new_zeros(0, att.num_heads, width)
    output(call, torch.cat([empty, *parts]))


def _chances(state: LayerState, scores: torch.Tensor, seen: Attended) -> torch.Tensor:
    att = state.model.attention
    scores = scores * (att.qk_nope_head_dim + att.qk_rope_head_dim) ** -0.5
    hidden = ~(torch.arange(seen.stop) <= seen.positions.unsqueeze(-1))
    return scores.masked_fill(hidden, float("-inf")).softmax(-1)


def _absorbed(state: LayerState, named: dict[str, Any], seen: Attended) -> torch.Tensor:
    latent, keys = seen.cache.latent[: seen.stop], seen.cache.rope[: seen.stop]
    scores = torch.einsum("thc,nc->htn", named["q_latent"][seen.rows], latent)
    scores = scores + torch.einsum("thd,nd->htn", named["q_rope"][seen.rows], keys)
    return torch.einsum("htn,nc->thc", _chances(state, scores, seen), latent)


def _plain(
    state: LayerState, w: LayerWeights, named: dict[str, Any], seen: Attended
) -> torch.Tensor:
    old_keys, old_values = _expanded(w, seen.cache.latent[: seen.start])
    new_keys, new_values = named["kv"]
    keys = torch.cat((old_keys, new_keys[seen.rows]))
    values = torch.cat((old_values, new_values[seen.rows]))
    roped = torch.cat((seen.cache.rope[: seen.start], named["k_rope"][seen.rows]))
    scores = torch.einsum("thd,nhd->htn", _heads(state, named["q"])[0][seen.rows], keys)
    scores = scores + torch.einsum("thd,nd->htn", named["q_rope"][seen.rows], roped)
    return torch.einsum("htn,nhd->thd", _chances(state, scores, seen), values)


def v_bmm(call: Call) -> None:
    """From latents back to heads, [T, heads, v]."""
    output(call, torch.einsum("thc,hdc->thd", inputs(call)[0], state_of(call)[1].v_up))


def o_proj(call: Call) -> None:
    """All heads to the hidden size."""
    mixed = inputs(call)[0]
    output(call, mixed.flatten(1) @ state_of(call)[1].o_proj.T)


def norm2(call: Call) -> None:
    """The residual with attention's result, and its norm."""
    residual = sum(inputs(call))
    output(call, residual, rms_norm(residual, state_of(call)[1].post_norm))


def topk(call: Call) -> None:
    """The scenario's ids with the weights that the router gives them; a fused shared slot weighs 1,
    since the routed weights carry the scaling factor already."""
    state, _ = state_of(call)
    ids = state.part(call.op.child).ids
    weights = expert_scores(state.model, inputs(call)[0], state.routed_ids(ids))
    if state.fused:
        weights = torch.cat([weights, (ids[:, -1:] >= 0).to(weights.dtype)], dim=1)
    output(call, (ids, weights))


def silu_mul(call: Call) -> None:
    """silu(gate) * up."""
    gate, up = inputs(call)[0].chunk(2, dim=-1)
    output(call, functional.silu(gate) * up)


def add(call: Call) -> None:
    """The sum of all inputs."""
    output(call, sum(inputs(call)))


LAYER_KERNELS: dict[str, Kernel] = {
    "norm1": Kernel(norm(lambda w: w.input_norm)),
    "qkv_a": Kernel(linear(_qkv_weight)),
    "q_norm": Kernel(q_norm),
    "kv_norm": Kernel(kv_norm),
    "q_b": Kernel(linear(lambda w: w.q_b)),
    "q_bmm": Kernel(q_bmm),
    "kv_b": Kernel(kv_b),
    "rope": Kernel(rope),
    "kv_write": Kernel(kv_write),
    "attn": Kernel(attn),
    "v_bmm": Kernel(v_bmm),
    "o_proj": Kernel(o_proj),
    "norm2": Kernel(norm2),
    "gate": Kernel(linear(lambda w: w.gate)),
    "topk": Kernel(topk),
    "shared.gate_up": Kernel(linear(_shared_gate_up)),
    "shared.act": Kernel(silu_mul),
    "shared.down": Kernel(linear(_shared_down)),
    "add": Kernel(add),
    "quantise": Kernel(copy),
} | {
    f"{name}.quantise": Kernel(copy)
    for name in ("qkv_a", "q_b", "kv_b", "o_proj", "shared.gate_up", "shared.down")
}
