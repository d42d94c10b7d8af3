"""Exchanges and routed experts on a GPU: DeepEP and DeepGEMM."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from executor import small_kernels as small
from executor.libraries import Scaled
from executor.production_attention import Launcher, inputs, output, state_of
from executor.reference import Call


@dataclass(frozen=True)
class Received:
    """What a normal-mode dispatch brought: FP8 rows, local ids and weights [R, k], and the counts of
    the local experts, each rounded up to a GEMM block."""

    rows: Scaled
    ids: torch.Tensor
    weights: torch.Tensor
    counts: list[int]


@dataclass(frozen=True)
class Permuted:
    """Rows sorted by local expert: FP8 rows, the expert of each, where each (row, slot) went."""

    rows: Scaled
    expert_of: torch.Tensor
    places: torch.Tensor


def dispatch(call: Call) -> None:
    """The whole normal-mode call: layout, notify, counts, transfer."""
    state = state_of(call)
    x, (ids, weights) = inputs(call)[:2]
    rows, recv_ids, recv_weights, counts, handle = state.exchange.dispatch(
        x, ids, weights, on_comm=call.op.stream == "comm"
    )
    state.handles[_layer_and_child(call)] = handle
    output(call, Received(rows, recv_ids, recv_weights, counts))


def combine(call: Call) -> None:
    """The whole normal-mode call back."""
    state = state_of(call)
    handle = state.handles[_layer_and_child(call)]
    output(
        call,
        state.exchange.combine(inputs(call)[0], handle, on_comm=call.op.stream == "comm"),
    )


def _layer_and_child(call: Call) -> str:
    return f"{call.op.layer}.{call.op.child}"


class Starts:
    """Where the experts' rows start, on the GPU: `starts` [E + 1] and `next_row`, its first E, int32.

    One op writes its pinned memory once a run, and a run begins when the device has nothing left to do,
    so no copy of an earlier run still reads what is written.
    """

    def __init__(self, experts: int, device: torch.device) -> None:
        size = 2 * experts + 1
        pinned = device.type == "cuda"
        self._host = torch.empty(size, dtype=torch.int32, pin_memory=pinned)
        self._values = self._host.numpy()
        self._device = torch.empty(size, dtype=torch.int32, device=device)
        self.starts, self.next_row = self._device.split((experts + 1, experts))

    def fill(self, counts: list[int]) -> int:
        """Starts of experts with so many rows each; returns all rows."""
        starts = [0, *accumulate(counts)]
        self._values[:] = starts + starts[:-1]
        self._device.copy_(self._host, non_blocking=True)
        return starts[-1]


def permute(call: Call) -> None:
    """Received rows to expert rows; block starts come from the host's counts."""
    (received,) = inputs(call)
    kept = state_of(call).kept
    if call.op.name not in kept:
        kept[call.op.name] = Starts(len(received.counts), received.ids.device)
    at: Starts = kept[call.op.name]
    total = at.fill(received.counts)
    values, factors = received.rows
    rows, scales, expert_of, places = small.permute(
        values, factors, received.ids, at.starts, at.next_row, total
    )
    output(call, Permuted((rows, scales), expert_of, places))


def gemm1(call: Call) -> None:
    """gate and up of all expert rows."""
    state = state_of(call)
    (given,) = inputs(call)
    sms = call.op.grid.enforced_budget
    if isinstance(given, Permuted):
        product = state.gemm.contiguous(given.rows, state.weights.gate_up, given.expert_of, sms)
        output(call, (product, given))
    else:
        rows, counts = given
        expected = state.expected_rows(call.op)
        product = state.gemm.masked(rows, state.weights.gate_up, counts, expected, sms)
        output(call, (product, counts))


def act(call: Call) -> None:
    """silu, multiply and cast."""
    product, rows = inputs(call)[0]
    if isinstance(rows, Permuted):
        output(call, (small.silu_mul_quantise(product), rows))
    else:
        output(call, (small.silu_mul_quantise_masked(product, rows), rows))


def gemm2(call: Call) -> None:
    """down of all expert rows."""
    state = state_of(call)
    packed, rows = inputs(call)[0]
    sms = call.op.grid.enforced_budget
    if isinstance(rows, Permuted):
        product = state.gemm.contiguous(packed, state.weights.down, rows.expert_of, sms)
        output(call, (product, rows))
    else:
        expected = state.expected_rows(call.op)
        product = state.gemm.masked(packed, state.weights.down, rows, expected, sms)
        output(call, (product, rows))


def unpermute(call: Call) -> None:
    """Each received row's weighted sum."""
    (product, rows), received = inputs(call)
    output(call, small.weighted_sum(product, rows.places, received.weights))


def dispatch_send(call: Call) -> None:
    """The low-latency send, which casts as it sends."""
    state = state_of(call)
    x, (ids, _) = inputs(call)
    output(call, state.exchange.send_dispatch(x, ids))


def dispatch_recv(call: Call) -> None:
    """The low-latency receive."""
    rows, counts, handle, hook = inputs(call)[0]
    hook()
    state_of(call).handles[_layer_and_child(call)] = handle
    output(call, (rows, counts))


def combine_send(call: Call) -> None:
    """The low-latency send back."""
    state = state_of(call)
    product, _ = inputs(call)[0]
    ids, weights = call.read(_sibling(call, "topk"))
    handle = state.handles[_layer_and_child(call)]
    output(call, state.exchange.send_combine(product, ids, weights, handle))


def combine_recv(call: Call) -> None:
    """The low-latency receive, which sums the weighted copies."""
    combined, hook = inputs(call)[0]
    hook()
    output(call, combined)


def _sibling(call: Call, name: str) -> str:
    """A buffer of the op's own layer and child."""
    head = f"L{call.op.layer}.{call.op.child}." if call.op.child else f"L{call.op.layer}."
    return head + name


def nothing(call: Call) -> None:
    """Part of a library call that another op of the same region makes."""
    filler: Any = None
    output(call, *[filler for _ in call.op.writes])


MOE: dict[str, Launcher] = {
    "layout": nothing,
    "dispatch.notify": nothing,
    "dispatch": dispatch,
    "permute": permute,
    "gemm1": gemm1,
    "act": act,
    "gemm2": gemm2,
    "unpermute": unpermute,
    "combine.notify": nothing,
    "combine": combine,
    "dispatch.send": dispatch_send,
    "dispatch.recv": dispatch_recv,
    "combine.send": combine_send,
    "combine.recv": combine_recv,
}
