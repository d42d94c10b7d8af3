"""Attention, router and shared expert on a GPU: DeepGEMM, torch and the small kernels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from executor import small_kernels as small
from executor.kernels.gate import top_k
from executor.layer_state import Piece
from executor.plain_layer import ROPE_BASE
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
    by_head: torch.Tensor = q.unflatten(
        1, (att.num_heads, att.qk_nope_head_dim + att.qk_rope_head_dim)
    )
    return by_head


def rope(call: Call) -> None:
    """Rotated parts of query [T, heads, rope], in place in the query, and key [T, rope]."""
    state = state_of(call)
    att = state.model.attention
    q, joint = inputs(call)
    positions = state.of(call.op).positions
    query = _by_head(state, q)[..., att.qk_nope_head_dim :]
    small.rotate(query, positions, ROPE_BASE, out=query)
    key = small.rotate(joint[:, -att.qk_rope_head_dim :].unsqueeze(1), positions, ROPE_BASE)
    output(call, query, key.squeeze(1))


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
        output(call, _plain(state, call, named))


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


def _plain(state: ProductionState, call: Call, named: dict[str, Any]) -> torch.Tensor:
    """Torch's own attention, sequences of one length together."""
    att = state.model.attention
    kv = named["kv"].unflatten(1, (att.num_heads, att.qk_nope_head_dim + att.v_head_dim))
    keys, values = kv.split((att.qk_nope_head_dim, att.v_head_dim), dim=-1)
    roped = named["k_rope"].unsqueeze(1).expand(-1, att.num_heads, -1)
    keys = torch.cat((keys, roped), dim=-1)
    query = _by_head(state, named["q"])
    parts, row = [], 0
    pieces = state.of(call.op).part.pieces
    for (length, start), group in groupby(pieces, key=lambda piece: (piece.length, piece.start)):
        alike = list(group)
        for together in [[piece] for piece in alike] if start else [alike]:
            rows = slice(row, row + len(together) * length)
            row = rows.stop
            k, v = keys[rows], values[rows]
            if start:
                k, v = _with_cached(state, call, together[0], k, v)
            parts.append(_causal(query[rows], k, v, len(together)))
    if not parts:
        return query.new_zeros(0, att.num_heads, att.v_head_dim)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _with_cached(
    state: ProductionState, call: Call, piece: Piece, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one sequence with those of its cached tokens before them."""
    att = state.model.attention
    cached = state.cache[call.op.layer][piece.sequence, : piece.start]
    latent = small.quantise(cached[:, : att.kv_lora_rank], column_major=True)
    sms = call.op.grid.enforced_budget
    kv = state.gemm.dense(latent, state.weights.linear["kv_b"], sms)
    nope, old_values = kv.unflatten(1, (att.num_heads, -1)).split(
        (att.qk_nope_head_dim, att.v_head_dim), dim=-1
    )
    roped = cached[:, att.kv_lora_rank :].unsqueeze(1).expand(-1, att.num_heads, -1)
    old_keys = torch.cat((nope, roped), dim=-1)
    return torch.cat((old_keys, keys)), torch.cat((old_values, values))


def _causal(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, count: int
) -> torch.Tensor:
    """[count * L, heads, d]: causal attention of `count` sequences, the queries being the last of
    each sequence's keys."""
    q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (query, keys, values))
    old = k.shape[2] - q.shape[2]
    mask = None
    if old:
        last = torch.arange(q.shape[2], device=q.device).unsqueeze(1) + old
        mask = torch.arange(k.shape[2], device=q.device) <= last
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not old)
    return out.transpose(1, 2).flatten(0, 1)


def v_bmm(call: Call) -> None:
    """From latents back to heads, [T, heads, v]."""
    state = state_of(call)
    mixed = torch.bmm(inputs(call)[0].transpose(0, 1), state.weights.v_up.transpose(1, 2))
    output(call, mixed.transpose(0, 1).contiguous())


def gate(call: Call) -> None:
    """Router logits in bf16."""
    output(call, inputs(call)[0] @ state_of(call).weights.gate.T)


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
