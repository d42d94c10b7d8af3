"""Grouped GEMM against plain torch: both layouts, dtypes and orders, odd counts, signals."""

from __future__ import annotations

import pytest
import torch

from executor.kernel_set import ExecutorError
from executor.kernels import gemm
from executor.kernels.gemm import Operand, Tiling

pytestmark = [pytest.mark.torch, pytest.mark.slow]

EXPERTS, ROWS, N, K = 4, 96, 384, 256
SMALL = Tiling(block_m=64)
COUNTS = ([70, 0, 1, 96], [0, 0, 0, 0], [0, 64, 0, 0])


def operands(fp8: bool, device: str, *shape: int) -> Operand:
    """Random activations [..., k]."""
    x = torch.randn(*shape, device=device).bfloat16()
    if not fp8:
        return x
    groups = x.float().unflatten(-1, (-1, 128))
    scales = groups.abs().amax(-1).clamp(min=1e-4) / 448
    return (groups / scales[..., None]).to(gemm.FP8).flatten(-2), scales


def weights(fp8: bool, device: str) -> Operand:
    """Random weights [E, n, k]."""
    w = torch.randn(EXPERTS, N, K, device=device).bfloat16()
    if not fp8:
        return w
    blocks = w.float().view(EXPERTS, N // 128, 128, K // 128, 128)
    scales = blocks.abs().amax((2, 4)) / 448
    cast = (blocks / scales[:, :, None, :, None]).to(gemm.FP8)
    return cast.view(EXPERTS, N, K), scales


def part(operand: Operand, expert: int, rows: slice = slice(None)) -> Operand:
    """One expert's operand."""
    if isinstance(operand, tuple):
        return operand[0][expert, rows], operand[1][expert, rows]
    return operand[expert, rows]


def assert_near(result: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal within bf16's rounding of the result."""
    error = (result.float() - reference).norm()
    assert error <= 5e-3 * reference.norm()


@pytest.mark.parametrize(
    ("fp8", "tiling", "by_rows", "counts"),
    [
        (False, SMALL, True, COUNTS[0]),
        (True, SMALL, False, COUNTS[1]),
        (True, Tiling(block_m=64, block_n=256), True, COUNTS[0]),
        (True, Tiling(block_n=256, stages=3), False, COUNTS[2]),
    ],
)
def test_masked_rows_are_products_and_others_untouched(
    device: str, fp8: bool, tiling: Tiling, by_rows: bool, counts: list[int]
) -> None:
    x, w = operands(fp8, device, EXPERTS, ROWS, K), weights(fp8, device)
    out = torch.full((EXPERTS, ROWS, N), float("nan"), dtype=torch.bfloat16, device=device)
    on_device = torch.tensor(counts, dtype=torch.int32, device=device)
    gemm.masked(x, w, on_device, 5, by_rows=by_rows, tiling=tiling, out=out)
    for expert, count in enumerate(counts):
        reference = gemm.plain(part(x, expert, slice(count)), part(w, expert))
        assert_near(out[expert, :count], reference)
        assert out[expert, count:].isnan().all()


@pytest.mark.parametrize(
    ("fp8", "tiling"), [(False, SMALL), (True, SMALL), (True, Tiling(block_m=64, block_n=256))]
)
def test_contiguous_rows_are_products_of_their_expert(
    device: str, fp8: bool, tiling: Tiling
) -> None:
    order = [0, 2, -1, 3, 3]
    x, w = operands(fp8, device, 64 * len(order), K), weights(fp8, device)
    expert_of = torch.tensor(order, dtype=torch.int32, device=device).repeat_interleave(64)
    out = torch.full((64 * len(order), N), float("nan"), dtype=torch.bfloat16, device=device)
    gemm.contiguous(x, w, expert_of, 3, tiling=tiling, out=out)
    for block, expert in enumerate(order):
        rows = slice(64 * block, 64 * block + 64)
        if expert < 0:
            assert out[rows].isnan().all()
            continue
        given = (x[0][rows], x[1][rows]) if isinstance(x, tuple) else x[rows]
        assert_near(out[rows], gemm.plain(given, part(w, expert)))


@pytest.mark.parametrize("tiling", [SMALL, Tiling(block_m=128, block_n=64)])
def test_signals_of_started_row_blocks_reach_their_threshold(device: str, tiling: Tiling) -> None:
    counts = [70, 0, 1, 96]
    x, w = operands(False, device, EXPERTS, ROWS, K), weights(False, device)
    on_device = torch.tensor(counts, dtype=torch.int32, device=device)
    signals = gemm.signal_words(EXPERTS, ROWS, "rows", device)
    gemm.masked(x, w, on_device, 5, signals=signals, tiling=tiling)
    full = gemm.threshold("rows", N, 1, tiling)
    assert signals.words.tolist() == [[full, full], [0, 0], [full, 0], [full, full]]


def test_signals_of_experts_count_their_tiles(device: str) -> None:
    counts = [70, 0, 1, 96]
    x, w = operands(True, device, EXPERTS, ROWS, K), weights(True, device)
    on_device = torch.tensor(counts, dtype=torch.int32, device=device)
    signals = gemm.signal_words(EXPERTS, ROWS, "experts", device)
    gemm.masked(x, w, on_device, 5, signals=signals, tiling=SMALL)
    assert signals.words.tolist() == [6, 0, 3, 6]
    assert [gemm.threshold("experts", N, count, SMALL) for count in counts] == [6, 0, 3, 6]


def test_a_budget_that_is_none_or_too_large_is_refused() -> None:
    x, w = operands(False, "cpu", EXPERTS, ROWS, K), weights(False, "cpu")
    counts = torch.zeros(EXPERTS, dtype=torch.int32)
    for num_sms in (0, -1, 5000):
        with pytest.raises(ExecutorError, match=rf"{num_sms} SMs; 1 to 1024 are allowed"):
            gemm.masked(x, w, counts, num_sms)


def test_operands_of_other_types_or_sizes_are_refused() -> None:
    x, w = operands(False, "cpu", EXPERTS, ROWS, K), weights(True, "cpu")
    counts = torch.zeros(EXPERTS, dtype=torch.int32)
    with pytest.raises(ExecutorError, match=r"bfloat16 and torch\.float8_e4m3fn"):
        gemm.masked(x, w, counts, 1)
    odd = torch.zeros(EXPERTS, ROWS, 200, dtype=torch.bfloat16)
    with pytest.raises(ExecutorError, match="multiples of 128"):
        gemm.masked(odd, torch.zeros(EXPERTS, N, 200, dtype=torch.bfloat16), counts, 1)
