"""Dispatch, routed experts and combine in plain torch, both exchange modes.

Normal mode sends a token once to every rank that has one of its experts, and the experts' rank sums
its weighted results; low latency sends a copy for every expert, and the source sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from executor.arithmetic import inputs, output, state_of
from executor.layer_state import LayerState
from executor.reference import POISON, Call, ExchangeKernel, Kernel, Table
from executor.transport import Message


@dataclass(frozen=True)
class Received:
    """Rows that came, source by source: `counts` rows each, with their ids and weights [R, k] as the
    sources know them (normal mode), or the local expert of each row [R] (low latency)."""

    rows: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ExpertRows:
    """Rows of every local expert, [m_e, width], and where each came from: (row of what was received,
    column of its weight)."""

    values: tuple[torch.Tensor, ...]
    sources: tuple[tuple[torch.Tensor, torch.Tensor], ...]


def rows_sent(state: LayerState, child: str, dst: int) -> torch.Tensor:
    """Tokens of the child with an expert on `dst`, in order."""
    ids = state.part(child).ids
    n = state.experts_per_rank
    return ((ids >= 0) & (ids // n == dst)).any(dim=1).nonzero(as_tuple=True)[0]


def copies_sent(state: LayerState, child: str, dst: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(token, slot) of the child's copies for `dst`, in order."""
    ids = state.part(child).ids
    token, slot = ((ids >= 0) & (ids // state.experts_per_rank == dst)).nonzero(as_tuple=True)
    return token, slot


def layout(call: Call) -> None:
    """Tokens for each rank."""
    state, _ = state_of(call)
    output(call, [len(rows_sent(state, call.op.child, dst)) for dst in range(state.ranks)])


def notify_out(call: Call, dst: int) -> Message:
    """How many rows will come."""
    return (torch.tensor([inputs(call)[0][dst]]),)


def notify_in(call: Call, came: dict[int, Message]) -> None:
    """Counts by source."""
    output(call, tuple(int(came[src][0]) for src in sorted(came)))


def read_counts(call: Call) -> None:
    """The host reads the counts to size what the transfer receives."""
    call.host["counts"] = call.read(call.op.reads[-1])


def dispatch_out(call: Call, dst: int) -> Message:
    """A row for each token with an expert on `dst`, with its ids and weights."""
    state, _ = state_of(call)
    x, (ids, weights), *_ = inputs(call)
    rows = rows_sent(state, call.op.child, dst)
    return x[rows], ids[rows], weights[rows]


def dispatch_in(call: Call, came: dict[int, Message]) -> None:
    """Rows of all sources, as many as the host made room for."""
    counts = call.host["counts"]
    if counts is POISON:
        output(call, POISON)
        return
    parts = [came[src] for src in sorted(came)]
    joined = [
        torch.cat([part[i][:n] for part, n in zip(parts, counts, strict=True)]) for i in range(3)
    ]
    output(call, Received(joined[0], joined[1], joined[2], counts))


def permute(call: Call) -> None:
    """Received rows to the rows of each local expert."""
    state, _ = state_of(call)
    received: Received = inputs(call)[0]
    first = state.rank * state.experts_per_rank
    sources = tuple(_places(received.ids == first + row) for row in range(state.experts_per_rank))
    output(call, ExpertRows(tuple(received.rows[token] for token, _ in sources), sources))


def _places(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, column) of every true element of [R, k]."""
    row, column = mask.nonzero(as_tuple=True)
    return row, column


def by_expert(state: LayerState, received: Received) -> ExpertRows:
    """Copies of a low-latency dispatch by local expert."""
    sources = tuple(
        (rows := (received.ids == row).nonzero(as_tuple=True)[0], torch.zeros_like(rows))
        for row in range(state.experts_per_rank)
    )
    return ExpertRows(tuple(received.rows[rows] for rows, _ in sources), sources)


def gemm1(call: Call) -> None:
    """gate and up of every expert's rows; low latency brings copies, normal mode permuted rows."""
    state, _ = state_of(call)
    (given,) = inputs(call)
    rows = by_expert(state, given) if isinstance(given, Received) else given
    values = tuple(
        x @ state.local_expert(call.op.layer, row).gate_up.T for row, x in enumerate(rows.values)
    )
    output(call, ExpertRows(values, rows.sources))


def act(call: Call) -> None:
    """silu(gate) * up of every expert's rows."""
    (rows,) = inputs(call)
    pairs = [x.chunk(2, dim=-1) for x in rows.values]
    output(call, ExpertRows(tuple(functional.silu(g) * u for g, u in pairs), rows.sources))


def gemm2(call: Call) -> None:
    """down of every expert's rows."""
    state, _ = state_of(call)
    (rows,) = inputs(call)
    values = tuple(
        x @ state.local_expert(call.op.layer, row).down.T for row, x in enumerate(rows.values)
    )
    output(call, ExpertRows(values, rows.sources))


def unpermute(call: Call) -> None:
    """The weighted sum of each received row's experts."""
    down, received = inputs(call)
    out = torch.zeros_like(received.rows)
    for values, (token, slot) in zip(down.values, down.sources, strict=True):
        out = out.index_add(0, token, values * received.weights[token, slot].unsqueeze(-1))
    output(call, out)


def count_back(call: Call, dst: int) -> Message:
    """How many rows go back."""
    return (torch.tensor([inputs(call)[0][dst]]),)


def combine_out(call: Call, dst: int) -> Message:
    """The rows that came from `dst`."""
    out, counts = inputs(call)[:2]
    start = sum(counts[:dst])
    return (out[start : start + counts[dst]],)


def combine_in(call: Call, came: dict[int, Message]) -> None:
    """The sum over ranks for each of the own tokens."""
    state, _ = state_of(call)
    total = _zeros(state, call.op.child)
    for src in sorted(came):
        total = total.index_add(0, rows_sent(state, call.op.child, src), came[src][0])
    output(call, total)


def send_copies(call: Call, dst: int) -> Message:
    """A copy for each (token, expert) on `dst`, with the expert's row there."""
    state, _ = state_of(call)
    x, (ids, _) = inputs(call)
    token, slot = copies_sent(state, call.op.child, dst)
    return x[token], ids[token, slot] % state.experts_per_rank


def receive_copies(call: Call, came: dict[int, Message]) -> None:
    """Copies of all sources."""
    parts = [came[src] for src in sorted(came)]
    rows, local = (torch.cat([part[i] for part in parts]) for i in range(2))
    counts = tuple(len(part[0]) for part in parts)
    output(call, Received(rows, local, rows.new_zeros(0), counts))


def return_copies(call: Call, dst: int) -> Message:
    """Results of the copies that came from `dst`, in the order in which they came."""
    down, received = inputs(call)
    out = torch.zeros_like(received.rows)
    for values, (rows, _) in zip(down.values, down.sources, strict=True):
        out[rows] = values
    start = sum(received.counts[:dst])
    return (out[start : start + received.counts[dst]],)


def sum_copies(call: Call, came: dict[int, Message]) -> None:
    """The weighted sum of each token's copies."""
    state, _ = state_of(call)
    _, (_, weights) = inputs(call)
    total = _zeros(state, call.op.child)
    for src in sorted(came):
        token, slot = copies_sent(state, call.op.child, src)
        total = total.index_add(0, token, came[src][0] * weights[token, slot].unsqueeze(-1))
    output(call, total)


def _zeros(state: LayerState, child: str) -> torch.Tensor:
    w = state.weights[0]
    return torch.zeros(state.part(child).ids.shape[0], w.hidden_size, dtype=w.dtype)


MOE_KERNELS: dict[str, Any] = {
    "layout": Kernel(layout),
    "dispatch.notify": ExchangeKernel(notify_out, notify_in, channel="notify"),
    "dispatch": ExchangeKernel(dispatch_out, dispatch_in, read_counts),
    "permute": Kernel(permute),
    "gemm1": Kernel(gemm1),
    "act": Kernel(act),
    "gemm2": Kernel(gemm2),
    "unpermute": Kernel(unpermute),
    "combine.notify": ExchangeKernel(count_back, notify_in, channel="notify"),
    "combine": ExchangeKernel(combine_out, combine_in),
    "dispatch.send": ExchangeKernel(outgoing=send_copies),
    "dispatch.recv": ExchangeKernel(incoming=receive_copies),
    "combine.send": ExchangeKernel(outgoing=return_copies),
    "combine.recv": ExchangeKernel(incoming=sum_copies),
}


def table(layer_kernels: Table) -> Table:
    """The layer's kernels with the MoE block's."""
    return {**layer_kernels, **MOE_KERNELS}
