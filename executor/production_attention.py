"""Attention, router and shared expert on a GPU: DeepGEMM, torch and the small kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from executor import small_kernels as small
from executor.kernels.gate import top_k
from executor.plain_layer import ROPE_BASE
from executor.prefill_attention import plain_attention
from executor.production_state import ProductionState
from executor.reference import Call

Launcher = Callable[[Call], None]


def state_of(call: Call) -> ProductionState:
    """The rank's state."""
    state: ProductionState = call.state
    return state


def inputs(call: Call) -> list[Any]:
    """Contents of the op's reads."""
    return [call.read(name) for name in call.op.reads]


def output(call: Call, *values: Any) -> None:
    """Fill the op's writes, in order."""
    for name, value in zip(call.op.writes, values, strict=True):
        call.write(name, value)


def quantise(call: Call) -> None:
    """The FP8 input of the next dense GEMM."""
    output(call, small.quantise(inputs(call)[0].flatten(1), column_major=True))


def quantise_rows(call: Call) -> None:
    """The FP8 payload of a normal-mode dispatch."""
    output(call, small.quantise(inputs(call)[0], column_major=False))


def linear(name: str) -> Launcher:
    """A dense FP8 GEMM with the weights of this name."""

    def launch(call: Call) -> None:
        state = state_of(call)
        sms = call.op.grid.enforced_budget
        output(call, state.gemm.dense(inputs(call)[0], state.weights.linear[name], sms))

    return launch


def norm1(call: Call) -> None:
    """The input norm."""
    output(call, small.rms_norm(inputs(call)[0], state_of(call).weights.norms["norm1"]))


def q_norm(call: Call) -> None:
    """The norm of the compressed query."""
    state = state_of(call)
    joint = inputs(call)[0][:, : state.model.attention.q_lora_rank]
    output(call, small.rms_norm(joint, state.weights.norms["q_norm"]))


def kv_norm(call: Call) -> None:
    """The norm of the latent."""
    state = state_of(call)
    att = state.model.attention
    latent = inputs(call)[0][:, att.q_lora_rank : att.q_lora_rank + att.kv_lora_rank]
    output(call, small.rms_norm(latent, state.weights.norms["kv_norm"]))


def norm2(call: Call) -> None:
    """The residual with attention's result, and its norm."""
    hidden, attended = inputs(call)
    output(call, *small.add_norm(hidden, attended, state_of(call).weights.norms["norm2"]))


def _by_head(state: ProductionState, q: torch.Tensor) -> torch.Tensor:
    att = state.model.attention
    return q.view(-1, att.num_heads, att.qk_nope_head_dim + att.qk_rope_head_dim)


def rope(call: Call) -> None:
    """Rotated parts of query [T, heads, rope], in place in the query, and key [T, rope]."""
    state = state_of(call)
    att = state.model.attention
    q, joint = inputs(call)
    positions = state.of(call.op).positions
    query = _by_head(state, q)[..., att.qk_nope_head_dim :]
    key = small.rotate(query, joint[:, -att.qk_rope_head_dim :], positions, ROPE_BASE)
    output(call, query, key)


def q_bmm(call: Call) -> None:
    """Queries in the latent space, [T, heads, kv_lora]."""
    state = state_of(call)
    nope = _by_head(state, inputs(call)[0])[..., : state.model.attention.qk_nope_head_dim]
    output(call, torch.bmm(nope.transpose(0, 1), state.weights.k_up).transpose(0, 1))


def kv_write(call: Call) -> None:
    """Latents and rotated keys into the cache."""
    state = state_of(call)
    latent, key = inputs(call)
    tokens, cache = state.of(call.op), state.cache[call.op.layer]
    small.store_latents(latent, key, tokens.sequence, tokens.positions, cache)
    output(call, cache)


def attn(call: Call) -> None:
    """Absorbed attention over the cache (decode), or plain causal attention (prefill)."""
    state = state_of(call)
    named = dict(zip((n.rpartition(".")[2] for n in call.op.reads), inputs(call), strict=True))
    if "q_latent" in named:
        output(call, _absorbed(state, call, named))
    else:
        output(call, plain_attention(state, call.op, named["q"], named["kv"], named["k_rope"]))


def _absorbed(state: ProductionState, call: Call, named: dict[str, Any]) -> torch.Tensor:
    """One query a sequence against its cached latents: two batched products and a softmax."""
    att = state.model.attention
    tokens = state.of(call.op)
    pieces = tokens.part.pieces
    first = pieces[0].sequence if pieces else 0
    cache = state.cache[call.op.layer][first : first + len(pieces)]
    query = torch.cat((named["q_latent"], named["q_rope"]), dim=-1)
    scores = torch.bmm(query, cache.transpose(1, 2))
    scale = (att.qk_nope_head_dim + att.qk_rope_head_dim) ** -0.5
    chances = small.softmax_(scores, tokens.lengths, scale)
    return torch.bmm(chances, cache[..., : att.kv_lora_rank])


def v_bmm(call: Call) -> None:
    """From latents back to heads, [T, heads, v]."""
    state = state_of(call)
    mixed = torch.bmm(inputs(call)[0].transpose(0, 1), state.weights.v_up.transpose(1, 2))
    output(call, mixed.transpose(0, 1).contiguous())


def gate(call: Call) -> None:
    """Router logits in bf16."""
    output(call, functional.linear(inputs(call)[0], state_of(call).weights.gate))


def topk(call: Call) -> None:
    """The choice is made in one kernel, as in serving, which then weighs the scenario's ids instead."""
    state = state_of(call)
    model, tokens = state.model, state.of(call.op)
    _, weights = top_k(
        inputs(call)[0],
        model.top_k,
        groups=max(1, model.n_group),
        kept_groups=max(1, model.topk_group),
        sigmoid=model.scoring == "sigmoid",
        normalise=model.norm_topk_prob,
        factor=model.routed_scaling_factor,
        given=tokens.routed,
    )
    if tokens.shared.shape[1]:
        weights = torch.cat((weights, tokens.shared), dim=1)
    output(call, (tokens.ids, weights))


def silu(call: Call) -> None:
    """The shared expert's activation; its cast is a kernel of its own."""
    output(call, small.silu_mul(inputs(call)[0]))


def add(call: Call) -> None:
    """Residual, routed and shared."""
    parts = inputs(call)
    output(call, small.add_three(*parts) if len(parts) == 3 else sum(parts[1:], parts[0]))


ATTENTION: dict[str, Launcher] = {
    "norm1": norm1,
    "q_norm": q_norm,
    "kv_norm": kv_norm,
    "rope": rope,
    "q_bmm": q_bmm,
    "kv_write": kv_write,
    "attn": attn,
    "v_bmm": v_bmm,
    "norm2": norm2,
    "gate": gate,
    "topk": topk,
    "quantise": quantise_rows,
    "shared.act": silu,
    "add": add,
}
for _name in ("qkv_a", "q_b", "kv_b", "o_proj", "shared.gate_up", "shared.down"):
    ATTENTION[_name] = linear(_name)
    ATTENTION[f"{_name}.quantise"] = quantise
