"""Budgets, types and sizes that kernels cannot take are one message each, before anything is launched."""

from __future__ import annotations

import pytest
import torch

from executor.kernel_set import ExecutorError, MissingResource
from executor.kernels import low_latency, normal
from executor.kernels.mla_decode import mla_decode
from executor.kernels.peer_memory import alone

pytestmark = [pytest.mark.torch]

HIDDEN, TOP_K, MOST = 256, 2, 4
ROWS = torch.zeros(MOST, HIDDEN, dtype=torch.bfloat16)
IDS = torch.zeros(MOST, TOP_K, dtype=torch.int64)
WEIGHTS = torch.zeros(MOST, TOP_K)


def low() -> low_latency.LowLatency:
    """A single rank's low-latency exchange."""
    shape = low_latency.Shape(1, 4, HIDDEN, TOP_K, MOST)
    return low_latency.LowLatency(alone(low_latency.region_bytes(shape), "cpu"), shape)


def normal_exchange(scales: int) -> normal.Normal:
    """A single rank's normal exchange of FP8 rows with that many scales, or of bf16 rows."""
    shape = normal.NormalShape(1, 4, HIDDEN, TOP_K, MOST, scales)
    return normal.Normal(alone(normal.region_bytes(shape), "cpu"), shape)


@pytest.mark.parametrize("budget", [0, -1, 5000])
def test_budgets_that_no_gpu_has(budget: int) -> None:
    message = rf"exchange on {budget} SMs; 1 to 1024 are allowed"
    with pytest.raises(ExecutorError, match=message):
        low().send_dispatch(ROWS, IDS, ctas=budget)
    with pytest.raises(ExecutorError, match=message):
        low().send_combine(torch.zeros(4, MOST, HIDDEN, dtype=torch.bfloat16), ctas=budget)
    exchange = normal_exchange(0)
    route = normal.Route(IDS[:, :1].int(), IDS.int(), IDS.int(), 0)
    with pytest.raises(ExecutorError, match=message):
        exchange.transfer(ROWS, IDS, WEIGHTS, route, budget)
    with pytest.raises(ExecutorError, match=message):
        exchange.combine(route, budget)


def test_rows_of_another_type_or_size() -> None:
    with pytest.raises(ExecutorError, match=r"torch\.float32 rows of 256; .* torch\.bfloat16 rows"):
        low().send_dispatch(ROWS.float(), IDS)
    with pytest.raises(ExecutorError, match=r"bfloat16 rows of 128; .* rows of 256"):
        low().send_combine(torch.zeros(4, MOST, 128, dtype=torch.bfloat16))
    route = normal.Route(IDS[:, :1].int(), IDS.int(), IDS.int(), 0)
    with pytest.raises(ExecutorError, match=r"bfloat16 rows of 256; .* torch\.float8_e4m3fn rows"):
        normal_exchange(2).transfer((ROWS, WEIGHTS), IDS, WEIGHTS, route, 1)
    with pytest.raises(ExecutorError, match=r"cache of torch\.float32; torch\.bfloat16 is allowed"):
        query = torch.zeros(1, 16, 64)
        mla_decode(query, query, torch.zeros(1, 8, 128), torch.ones(1, dtype=torch.int32), 1.0)


def test_more_tokens_than_an_exchange_was_built_for() -> None:
    many = torch.zeros(5, HIDDEN, dtype=torch.bfloat16)
    with pytest.raises(ExecutorError, match="5 tokens; this exchange was built for 4"):
        low().send_dispatch(many, torch.zeros(5, TOP_K, dtype=torch.int64))
    with pytest.raises(ExecutorError, match="5 tokens; this exchange was built for 4"):
        normal_exchange(0).layout(torch.zeros(5, TOP_K, dtype=torch.int64))


def test_a_gpu_too_old_for_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    from executor.triton_set import _require_fp8

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    with pytest.raises(MissingResource, match=r"NVIDIA A100 \(compute capability 8\.0\) cannot"):
        _require_fp8()


def test_a_gpu_out_of_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from executor.triton_exchange import unreachable

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda mine, other: other != 2)
    assert unreachable(4, torch.device("cuda", 0)) == "GPU 0 cannot reach GPU 2's memory"
    assert unreachable(2, torch.device("cuda", 0)) == ""
