"""Low-latency exchanges of two ranks and more in one process: all send, then all receive."""

from __future__ import annotations

import pytest
import torch

from executor.kernels import gemm
from executor.kernels import low_latency as ll
from executor.kernels.gemm import Tiling
from executor.kernels.peer_memory import together
from tests.executor.kernels.limits import BF16_EXCHANGE, FP8_CAST, FP8_EXCHANGE

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LOCAL, HIDDEN, TOP_K, MOST = 3, 256, 3, 5
SMALL = Tiling(block_m=64)


def ranks_of(shape: ll.Shape, device: str, deadline_ns: int = 1_000_000) -> list[ll.LowLatency]:
    """All ranks' exchanges."""
    regions = together(shape.ranks, ll.region_bytes(shape), device)
    return [ll.LowLatency(region, shape, deadline_ns=deadline_ns) for region in regions]


def chosen(tokens: int, experts: int, device: str) -> torch.Tensor:
    """Distinct experts for each token, one of them dropped."""
    ids = torch.stack([torch.randperm(experts)[:TOP_K] for _ in range(tokens + 1)])[:tokens]
    if tokens:
        ids[0, -1] = -1
    return ids.to(device)


@pytest.mark.parametrize(
    ("fp8", "tokens", "ctas"),
    [
        (True, (4, 3), 3),
        (True, (0, 0), None),
        (False, (5, 0), None),
        (True, (4, 0, 3, 5), 3),
        (False, (2, 0, 1, 1, 3, 0, 5, 1), None),
    ],
)
def test_rows_reach_their_experts_and_come_back_weighted(
    device: str, fp8: bool, tokens: tuple[int, ...], ctas: int | None
) -> None:
    shape = ll.Shape(len(tokens), LOCAL * len(tokens), HIDDEN, TOP_K, MOST, fp8)
    ranks = ranks_of(shape, device)
    for buffer in (0, 0):
        xs = [torch.randn(n, HIDDEN, device=device).bfloat16() for n in tokens]
        ids = [chosen(n, shape.experts, device) for n in tokens]
        weights = [torch.rand(n, TOP_K, device=device) for n in tokens]
        for rank, x, choice in zip(ranks, xs, ids, strict=True):
            rank.send_dispatch(x, choice, buffer, ctas)
        for index, rank in enumerate(ranks):
            rows, counts = rank.receive_dispatch(buffer)
            values = gemm.dequantised_rows(rows)
            y = torch.full((LOCAL, shape.capacity, HIDDEN), float("nan"), device=device)
            for local in range(shape.local_experts):
                expert = index * shape.local_experts + local
                expected = ll.plain_dispatch(xs, ids, expert)
                assert int(counts[local]) == len(expected)
                assert_same_rows(values[local, : len(expected)], expected)
                y[local, : len(expected)] = values[local, : len(expected)] * (1 + expert)
            rank.send_combine(y.bfloat16(), buffer, ctas)
        for rank, x, choice, weight in zip(ranks, xs, ids, weights, strict=True):
            out = rank.receive_combine(choice, weight, buffer)
            reference = ll.plain_combine(x, choice, weight)
            limit = FP8_EXCHANGE if fp8 else BF16_EXCHANGE
            assert (out.float() - reference).norm() <= limit * reference.norm()
            assert int(rank.error) == 0


def assert_same_rows(values: torch.Tensor, expected: list[tuple[int, int, torch.Tensor]]) -> None:
    """The same rows in any order, within what a cast to FP8 changes."""
    for _, _, row in expected:
        nearest = (values - row.float()).norm(dim=1).min()
        assert nearest <= FP8_CAST * row.float().norm()


@pytest.mark.parametrize("grain", ["rows", "experts"])
def test_combine_takes_what_the_gemm_has_signalled(device: str, grain: gemm.Grain) -> None:
    shape = ll.Shape(1, 4, HIDDEN, TOP_K, 70, fp8=False)
    (rank,) = ranks_of(shape, device)
    x = torch.randn(70, HIDDEN, device=device).bfloat16()
    ids = torch.tensor([[0, 1, 3]], device=device).repeat(70, 1)
    weights = torch.rand(70, TOP_K, device=device)
    w = torch.eye(HIDDEN, device=device).bfloat16().repeat(4, 1, 1)
    w *= torch.arange(1, 5, device=device).view(4, 1, 1)
    rank.send_dispatch(x, ids)
    rows, counts = rank.receive_dispatch()
    signals = gemm.signal_words(4, shape.capacity, grain, device)
    y = gemm.masked(rows, w, counts, 3, signals=signals, tiling=SMALL)
    rank.send_combine(y, ctas=2, signals=signals, tiling=SMALL)
    out = rank.receive_combine(ids, weights)
    reference = ll.plain_combine(x, ids, weights)
    assert (out.float() - reference).norm() <= BF16_EXCHANGE * reference.norm()
    assert int(rank.error) == 0
    assert not signals.words.any(), "words are ready for the next GEMM"


def test_a_signal_that_never_comes_is_an_error_code_and_no_hang(device: str) -> None:
    shape = ll.Shape(1, 4, HIDDEN, TOP_K, 70, fp8=False)
    (rank,) = ranks_of(shape, device)
    ids = torch.full((70, TOP_K), 2, device=device)
    ids[:, 1:] = -1
    rank.send_dispatch(torch.randn(70, HIDDEN, device=device).bfloat16(), ids)
    (rows, _) = rank.receive_dispatch()
    assert isinstance(rows, torch.Tensor)
    signals = gemm.signal_words(4, shape.capacity, "rows", device)
    signals.words[2, 0] = gemm.threshold("rows", HIDDEN, 70)
    rank.send_combine(rows, ctas=1, signals=signals)
    assert int(rank.error) == 1001 + 2


def test_a_peer_that_sends_nothing_is_named(device: str) -> None:
    shape = ll.Shape(2, 2 * LOCAL, HIDDEN, TOP_K, MOST)
    first, _ = ranks_of(shape, device)
    ids = chosen(5, shape.experts, device)
    first.send_dispatch(torch.randn(5, HIDDEN, device=device).bfloat16(), ids)
    first.receive_dispatch()
    assert int(first.error) == 1 + 1
