"""Exchanges of the Triton set to call over and over, for `executor.calibrate.subjects`.

A rank may start an exchange anew on the same buffer only when its peers are through with it. Without
the exchange back between two calls that holds when calls take the two buffers in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch

from executor import small_kernels as small
from executor.kernel_set import ExecutorError
from executor.kernels.low_latency import LowLatency
from executor.kernels.normal import Normal
from executor.triton_exchange import TritonExchange

BUFFERS = (0, 1)


def triton_call(
    exchange: TritonExchange,
    name: str,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    sms: int,
    all_sms: int,
) -> tuple[Callable[[], Any], int]:
    """A call of `dispatch`, `combine`, `dispatch_ll` or `combine_ll`, and the SMs that it holds. Low
    latency is the send and the receive; `sms` limits its send. With 0 nothing does: its programs share
    SMs, and together they are spread over `all_sms` of the GPU."""
    if exchange.low is not None:
        return _low_latency(exchange.low, name, x, ids, weights, sms), sms or all_sms
    if not isinstance(exchange.normal, Normal):
        raise ExecutorError(f"{name}: exchanges go through NCCL here, without a budget")
    return _normal(exchange.normal, name, x, ids, weights, sms), sms


def _normal(
    normal: Normal, name: str, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, sms: int
) -> Callable[[], Any]:
    packed = small.quantise(x, column_major=False)
    routes = [normal.layout(ids, buffer) for buffer in BUFFERS]
    for route in routes:
        normal.notify(route)
        normal.transfer(packed, ids, weights, route, sms)
    turn = cycle(routes)
    if name == "dispatch":
        return lambda: normal.transfer(packed, ids, weights, next(turn), sms)
    return lambda: normal.combine(next(turn), sms)


def _low_latency(
    low: LowLatency, name: str, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, sms: int
) -> Callable[[], Any]:
    turn = cycle(BUFFERS)

    def dispatch() -> Any:
        buffer = next(turn)
        low.send_dispatch(x, ids, buffer, sms or None)
        return low.receive_dispatch(buffer)

    def combine() -> Any:
        buffer = next(turn)
        low.send_combine(back, buffer, sms or None)
        return low.receive_combine(ids, weights, buffer)

    for _ in BUFFERS:
        received, _ = dispatch()
    rows = received[0] if isinstance(received, tuple) else received
    back = torch.randn_like(rows, dtype=torch.bfloat16)
    return dispatch if name == "dispatch_ll" else combine
