"""Exchanges that a calibration repeats: each call does the whole exchange, whatever came before."""

from __future__ import annotations

import pytest
import torch

from executor.calibrate.triton_subjects import triton_call
from executor.triton_exchange import open_exchange
from models.deployment import A2A, Deployment
from tests.executor.layer_programs import MACHINE
from tests.executor.production_fakes import MODEL

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TOKENS = 6


@pytest.mark.parametrize("name", ["dispatch", "combine", "dispatch_ll", "combine_ll"])
@pytest.mark.parametrize("sms", [0, 3])
def test_a_repeated_exchange_gives_the_same(name: str, sms: int, device: str) -> None:
    low = name.endswith("_ll")
    a2a = A2A(mode="low_latency" if low else "normal", max_dispatch_tokens_per_rank=16)
    exchange = open_exchange(Deployment(MODEL, MACHINE, 1, a2a=a2a), 16, None, torch.device(device))
    ids = torch.stack([torch.randperm(8)[: MODEL.top_k] for _ in range(TOKENS)]).to(device)
    weights = torch.rand(ids.shape, device=device)
    x = torch.randn(TOKENS, MODEL.hidden_size, device=device).bfloat16()
    if not low and not sms:
        pytest.skip("normal mode always has a number of SMs")
    call, held = triton_call(exchange, name, x, ids, weights, sms)
    outs = [call() for _ in range(4)]
    exchange.check(0)
    assert held == (sms or 132)
    if name == "dispatch_ll":
        expected = torch.bincount(ids.flatten(), minlength=8)
        assert all(torch.equal(counts.long(), expected) for _, counts in outs)
    if name == "combine_ll":
        assert torch.equal(outs[0], outs[2]) and outs[0].isfinite().all()
