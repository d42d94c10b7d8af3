"""Experts without an all-to-all in plain torch: every rank gathers all tokens, computes its own experts
and its slice of the shared one for all of them, and a reduce-scatter sums the parts.

The ids that the scenario gives travel with the gathered tokens, in buffers of the layer that no op names.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from executor.arithmetic import LAYER_KERNELS, inputs, output, state_of
from executor.moe_arithmetic import MOE_KERNELS, ExpertRows
from executor.plain_layer import expert_scores
from executor.reference import Call, ExchangeKernel, Kernel, Table
from executor.transport import Message
from executor.weights import ExpertWeights


def _beside(call: Call, name: str) -> str:
    """A buffer of the op's layer and child."""
    op = call.op
    return f"L{op.layer}.{op.child}.{name}" if op.child else f"L{op.layer}.{name}"


def gather_out(call: Call, dst: int) -> Message:
    """All own tokens with their ids, to everyone."""
    state, _ = state_of(call)
    return inputs(call)[0], state.part(call.op.child).ids


def gather_in(call: Call, came: dict[int, Message]) -> None:
    """Everyone's tokens, rank by rank."""
    rows, ids = (torch.cat([came[src][i] for src in sorted(came)]) for i in range(2))
    call.write(_beside(call, "all.ids"), ids)
    call.write(_beside(call, "all.counts"), tuple(len(came[src][0]) for src in sorted(came)))
    output(call, rows)


def topk(call: Call) -> None:
    """Everyone's ids with the weights that the router gives them."""
    state, _ = state_of(call)
    ids = call.read(_beside(call, "all.ids"))
    output(call, (ids, expert_scores(state.model, inputs(call)[0], ids)))


def permute(call: Call) -> None:
    """The tokens of each local expert."""
    state, _ = state_of(call)
    rows, (ids, _) = inputs(call)
    first = state.rank * state.experts_per_rank
    sources = tuple(
        (ids == first + row).nonzero(as_tuple=True) for row in range(state.experts_per_rank)
    )
    output(call, ExpertRows(tuple(rows[token] for token, _ in sources), sources))


def unpermute(call: Call) -> None:
    """The weighted sum of the local experts for every token."""
    down, (ids, weights) = inputs(call)
    width = down.values[0].shape[1]
    out = torch.zeros(len(ids), width, dtype=down.values[0].dtype)
    for values, (token, slot) in zip(down.values, down.sources, strict=True):
        out = out.index_add(0, token, values * weights[token, slot].unsqueeze(-1))
    output(call, out)


def _slice(call: Call) -> tuple[ExpertWeights, int, int]:
    """The shared expert and the rank's part of its width."""
    state, w = state_of(call)
    assert w.shared is not None
    width = w.shared.down.shape[1]
    share = -(-width // state.ranks)
    start = min(state.rank * share, width)
    return w.shared, start, min(start + share, width)


def shared_gate_up(call: Call) -> None:
    """gate and up of the rank's slice."""
    shared, start, stop = _slice(call)
    gate, up = shared.gate_up.chunk(2)
    output(call, inputs(call)[0] @ torch.cat((gate[start:stop], up[start:stop])).T)


def shared_down(call: Call) -> None:
    """down of the rank's slice: a part of the sum."""
    shared, start, stop = _slice(call)
    output(call, inputs(call)[0] @ shared.down[:, start:stop].T)


def parts(call: Call) -> None:
    """Routed and shared parts, for every token."""
    output(call, sum(inputs(call)))


def scatter_out(call: Call, dst: int) -> Message:
    """The parts of one rank's tokens."""
    counts: tuple[int, ...] = call.read(_beside(call, "all.counts"))
    stop = list(accumulate(counts))[dst]
    return (inputs(call)[0][stop - counts[dst] : stop],)


def scatter_in(call: Call, came: dict[int, Message]) -> None:
    """The sum over all ranks for each own token."""
    output(call, torch.stack([came[src][0] for src in sorted(came)]).sum(0))


COLLECTIVE_KERNELS: dict[str, Any] = {
    "gather": ExchangeKernel(gather_out, gather_in),
    "topk": Kernel(topk),
    "permute": Kernel(permute),
    "unpermute": Kernel(unpermute),
    "shared.gate_up": Kernel(shared_gate_up),
    "shared.down": Kernel(shared_down),
    "parts": Kernel(parts),
    "scatter": ExchangeKernel(scatter_out, scatter_in),
}


def collective_table() -> Table:
    """The kernels of a layer without an all-to-all."""
    return {**LAYER_KERNELS, **MOE_KERNELS, **COLLECTIVE_KERNELS}
