"""Exchanges that a calibration repeats: each call does the whole exchange, whatever came before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
import torch

from executor import small_kernels as small
from executor.calibrate.subjects import _low_latency_call
from executor.calibrate.triton_subjects import triton_call
from executor.kernels import normal
from executor.triton_exchange import TritonExchange, open_exchange
from models.deployment import A2A, Deployment
from tests.executor.layer_programs import MACHINE
from tests.executor.production_fakes import MODEL

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TOKENS, EXPERTS, ALL_SMS = 6, 8, 96
Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def opened(mode: Literal["normal", "low_latency"], device: str) -> TritonExchange:
    a2a = A2A(mode=mode, max_dispatch_tokens_per_rank=16)
    return open_exchange(Deployment(MODEL, MACHINE, 1, a2a=a2a), 16, None, torch.device(device))


def drawn(device: str) -> Drawn:
    """Rows, ids and weights."""
    ids = torch.stack([torch.randperm(EXPERTS)[: MODEL.top_k] for _ in range(TOKENS)]).to(device)
    x = torch.randn(TOKENS, MODEL.hidden_size, device=device).bfloat16()
    return x, ids, torch.rand(ids.shape, device=device)


@pytest.mark.parametrize("name", ["dispatch_ll", "combine_ll"])
@pytest.mark.parametrize("sms", [0, 3])
def test_a_repeated_low_latency_exchange_gives_the_same(name: str, sms: int, device: str) -> None:
    exchange, (x, ids, weights) = opened("low_latency", device), drawn(device)
    call, held = triton_call(exchange, name, x, ids, weights, sms, ALL_SMS)
    outs = [call() for _ in range(4)]
    exchange.check(0)
    assert held == (sms or ALL_SMS)
    if name == "dispatch_ll":
        expected = torch.bincount(ids.flatten(), minlength=EXPERTS)
        assert all(torch.equal(counts.long(), expected) for _, counts in outs)
    else:
        assert torch.equal(outs[0], outs[2]) and outs[0].isfinite().all()


def test_each_normal_dispatch_moves_what_plain_torch_moves(device: str) -> None:
    exchange, (x, ids, weights) = opened("normal", device), drawn(device)
    assert isinstance(exchange.normal, normal.Normal)
    call, held = triton_call(exchange, "dispatch", x, ids, weights, 3, ALL_SMS)
    order = [token for _, token in normal.plain_transfer([ids.cpu()], 0, EXPERTS)]
    values, scales = small.quantise(x, column_major=False)
    for number in range(4):
        arrived = exchange.normal.arrived(len(order), number % 2)
        arrived.rows.view(torch.uint8).zero_()
        arrived.weights.zero_()
        call()
        assert torch.equal(arrived.rows.float(), values[order].float())
        assert torch.equal(arrived.scales, scales[order])
        assert torch.equal(arrived.ids.long(), ids[order])
        assert torch.equal(arrived.weights, weights[order])
    exchange.check(0)
    assert held == 3


def test_each_normal_combine_adds_up_what_came_back(device: str) -> None:
    exchange, (x, ids, weights) = opened("normal", device), drawn(device)
    assert isinstance(exchange.normal, normal.Normal)
    call, _ = triton_call(exchange, "combine", x, ids, weights, 3, ALL_SMS)
    order = [token for _, token in normal.plain_transfer([ids.cpu()], 0, EXPERTS)]
    for number in range(4):
        back = torch.randn(len(order), MODEL.hidden_size, device=device).bfloat16()
        exchange.normal.results(len(order), number % 2).copy_(back)
        expected = torch.zeros(TOKENS, MODEL.hidden_size, device=device)
        expected.index_add_(0, torch.tensor(order, device=device), back.float())
        assert torch.equal(call(), expected.bfloat16())
    exchange.check(0)


@pytest.mark.parametrize(
    ("name", "experts", "tokens", "held"),
    [
        ("dispatch_ll", 64, 6, 64),
        ("dispatch_ll", 256, 6, ALL_SMS),
        ("combine_ll", 8, 90, 90),
        ("combine_ll", 8, 120, ALL_SMS),
    ],
)
def test_a_library_kernel_holds_at_most_the_gpus_sms(
    name: str, experts: int, tokens: int, held: int
) -> None:
    sent: Any = ((torch.zeros(1, 1),), None, "handle", None, None)
    buffer = SimpleNamespace(low_latency_dispatch=lambda *_, **__: sent)
    session = SimpleNamespace(
        exchange=SimpleNamespace(buffer=buffer, num_experts=experts, max_tokens=128),
        deployment=SimpleNamespace(machine=SimpleNamespace(num_sms=ALL_SMS)),
    )
    x = torch.zeros(tokens, 4)
    _, sms = _low_latency_call(cast("Any", session), name, x, x, x)
    assert sms == held
