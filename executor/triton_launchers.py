"""What the Triton set launches for each kernel name; what it shares with the production set is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from executor import small_kernels as small
from executor.collective_exchange import Collective
from executor.kernel_set import MissingKernel
from executor.kernels.gemm import Grain, Signals, Tiling
from executor.kernels.grouped_gemm import SIGNAL_ROWS
from executor.kernels.low_latency import LowLatency
from executor.kernels.mla_decode import mla_decode
from executor.kernels.normal import Normal
from executor.production_attention import ATTENTION, Launcher, attn, inputs, output, state_of
from executor.production_moe import MOE, Permuted, Received, gemm2, nothing
from executor.reference import Call
from executor.triton_exchange import TritonExchange
from executor.triton_gemm import TritonGemm, tiling_for


@dataclass(frozen=True)
class Raised:
    """The down GEMM's signals, its tiling, and the SMs that it leaves."""

    signals: Signals
    tiling: Tiling
    left: int


def _exchange(call: Call) -> TritonExchange:
    exchange: Any = state_of(call).exchange
    assert isinstance(exchange, TritonExchange)
    return exchange


def _normal(call: Call) -> Normal | Collective:
    exchange = _exchange(call).normal
    assert exchange is not None
    return exchange


def _low(call: Call) -> LowLatency:
    exchange = _exchange(call).low
    assert exchange is not None
    return exchange


def _gemm(call: Call) -> TritonGemm:
    gemm: Any = state_of(call).gemm
    assert isinstance(gemm, TritonGemm)
    return gemm


def _place(call: Call) -> str:
    return f"{call.op.layer}.{call.op.child}"


def layout(call: Call) -> None:
    """Where each token goes."""
    ids, _ = inputs(call)[0]
    route = _normal(call).layout(ids, _exchange(call).buffer(call.op))
    _exchange(call).routes[_place(call)] = route
    output(call, route)


def dispatch_notify(call: Call) -> None:
    """Exchange the counts; the plan on its way to the host, which waits for it."""
    (route,) = inputs(call)
    _normal(call).notify(route)
    plans, place = _exchange(call).plans, _place(call)
    if place not in plans:
        plans[place] = torch.empty_like(route.plan, device="cpu", pin_memory=route.plan.is_cuda)
    output(call, plans[place].copy_(route.plan, non_blocking=True))


def dispatch(call: Call) -> None:
    """Move the rows; the host knows by now how many come."""
    x, (ids, weights), route, plan = inputs(call)
    exchange = _normal(call)
    sms = call.op.grid.enforced_budget or _gemm(call).num_sms
    exchange.transfer(x, ids, weights, route, sms)
    rows, *counts = plan[exchange.shape.ranks :].tolist()
    here = exchange.arrived(rows, route.buffer)
    output(call, Received((here.rows, here.scales), here.ids, here.weights, counts))


def unpermute(call: Call) -> None:
    """Each received row's weighted sum, where combine reads it."""
    (product, rows), received = inputs(call)
    assert isinstance(rows, Permuted)
    buffer = _exchange(call).buffer(call.op)
    results = _normal(call).results(received.weights.shape[0], buffer)
    output(call, small.weighted_sum(product, rows.places, received.weights, results))


def combine(call: Call) -> None:
    """The sum of each token's results."""
    route = _exchange(call).routes[_place(call)]
    sms = call.op.grid.enforced_budget or _gemm(call).num_sms
    output(call, _normal(call).combine(route, sms))


def dispatch_send(call: Call) -> None:
    """Rows to their experts' ranks, cast on the way."""
    x, (ids, _) = inputs(call)
    budget = call.op.grid.enforced_budget
    _low(call).send_dispatch(x, ids, _exchange(call).buffer(call.op), budget)
    output(call, None)


def dispatch_recv(call: Call) -> None:
    """Wait for all ranks' rows."""
    output(call, _low(call).receive_dispatch(_exchange(call).buffer(call.op)))


def down_gemm(call: Call) -> None:
    """The down GEMM, with signals when the program says so."""
    if call.op.raises is None:
        gemm2(call)
        return
    state = state_of(call)
    packed, counts = inputs(call)[0]
    grain: Grain = "rows" if call.op.work.block_rows == SIGNAL_ROWS else "experts"
    signals = _exchange(call).signals(call.op, grain)
    expected, sms = state.expected_rows(call.op), call.op.grid.enforced_budget
    product = _gemm(call).masked(packed, state.weights.down, counts, expected, sms, signals)
    left = _gemm(call).num_sms - (sms or _gemm(call).num_sms)
    call.buffers[f"{call.op.raises} signal"] = Raised(
        signals, tiling_for(expected, product.device), left
    )
    output(call, (product, counts))


def combine_send(call: Call) -> None:
    """Rows back to their sources; with signals on no more SMs than the GEMM leaves free, since
    waiting CTAs on the others could keep it from starting."""
    product, _ = inputs(call)[0]
    exchange, buffer = _low(call), _exchange(call).buffer(call.op)
    budget = call.op.grid.enforced_budget
    if call.op.polls is None:
        exchange.send_combine(product, buffer, budget)
    else:
        raised = call.buffers[f"{call.op.polls} signal"]
        ctas = min(budget or raised.left, raised.left)
        if ctas < 1:
            raise MissingKernel(f"op {call.op.name} polls a GEMM that leaves no SM free")
        exchange.send_combine(product, buffer, ctas, raised.signals, raised.tiling)
    output(call, None)


def combine_recv(call: Call) -> None:
    """Wait for all ranks' rows and sum them, weighted."""
    ids, weights = inputs(call)[1]
    output(call, _low(call).receive_combine(ids, weights, _exchange(call).buffer(call.op)))


def attention(call: Call) -> None:
    """Absorbed attention by our kernel in decode, else as in the production set."""
    named = dict(zip((n.rpartition(".")[2] for n in call.op.reads), inputs(call), strict=True))
    if "q_latent" not in named:
        attn(call)
        return
    state = state_of(call)
    att, tokens = state.model.attention, state.of(call.op)
    pieces = tokens.part.pieces
    first = pieces[0].sequence if pieces else 0
    cache = state.cache[call.op.layer][first : first + len(pieces)]
    scale = (att.qk_nope_head_dim + att.qk_rope_head_dim) ** -0.5
    mixed = mla_decode(named["q_latent"], named["q_rope"], cache, tokens.lengths, scale)
    output(call, mixed)


OWN: dict[str, Launcher] = {
    "attn": attention,
    "layout": layout,
    "dispatch.notify": dispatch_notify,
    "dispatch": dispatch,
    "unpermute": unpermute,
    "gemm2": down_gemm,
    "combine.notify": nothing,
    "combine": combine,
    "dispatch.send": dispatch_send,
    "dispatch.recv": dispatch_recv,
    "combine.send": combine_send,
    "combine.recv": combine_recv,
}
LAUNCHERS: dict[str, Launcher] = ATTENTION | MOE | OWN
