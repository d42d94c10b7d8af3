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
SPECIALISED = (
    Tiling(128, 128, stages=6, specialised=True),
    Tiling(128, 128, stages=3, specialised=True),
)
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
        (True, Tiling(), True, COUNTS[0]),
        (True, Tiling(block_n=64), False, COUNTS[2]),
    ],
)
def test_masked_rows_are_products_and_others_untouched(
    device: str, fp8: bool, tiling: Tiling, by_rows: bool, counts: list[int]
) -> None:
    masked_rows_are_products(device, fp8, tiling, by_rows, counts)


@pytest.mark.parametrize("fp8", [True, False])
@pytest.mark.parametrize("tiling", SPECIALISED)
@pytest.mark.parametrize(("by_rows", "counts"), [(True, COUNTS[0]), (False, COUNTS[2])])
def test_specialised_masked_rows_are_products_and_others_untouched(
    hopper: str, fp8: bool, tiling: Tiling, by_rows: bool, counts: list[int]
) -> None:
    masked_rows_are_products(hopper, fp8, tiling, by_rows, counts)


def masked_rows_are_products(
    device: str, fp8: bool, tiling: Tiling, by_rows: bool, counts: list[int]
) -> None:
    """Valid rows are products; poison behind them stays."""
    x, w = operands(fp8, device, EXPERTS, ROWS, K), weights(fp8, device)
    out = torch.full((EXPERTS, ROWS, N), float("nan"), dtype=torch.bfloat16, device=device)
    on_device = torch.tensor(counts, dtype=torch.int32, device=device)
    gemm.masked(x, w, on_device, 5, by_rows=by_rows, tiling=tiling, out=out)
    for expert, count in enumerate(counts):
        reference = gemm.plain(part(x, expert, slice(count)), part(w, expert))
        assert_near(out[expert, :count], reference)
        assert out[expert, count:].isnan().all()


@pytest.mark.parametrize(("fp8", "tiling"), [(False, SMALL), (True, SMALL), (True, Tiling())])
def test_contiguous_rows_are_products_of_their_expert(
    device: str, fp8: bool, tiling: Tiling
) -> None:
    contiguous_rows_are_products(device, fp8, tiling)


@pytest.mark.parametrize("fp8", [True, False])
@pytest.mark.parametrize("tiling", SPECIALISED)
def test_specialised_contiguous_rows_are_products_of_their_expert(
    hopper: str, fp8: bool, tiling: Tiling
) -> None:
    contiguous_rows_are_products(hopper, fp8, tiling)


def contiguous_rows_are_products(device: str, fp8: bool, tiling: Tiling) -> None:
    """Blocks of experts in any order, one of them padding."""
    order, rows = [0, 2, -1, 3, 3], tiling.block_m
    x, w = operands(fp8, device, rows * len(order), K), weights(fp8, device)
    expert_of = torch.tensor(order, dtype=torch.int32, device=device).repeat_interleave(rows)
    out = torch.full((rows * len(order), N), float("nan"), dtype=torch.bfloat16, device=device)
    gemm.contiguous(x, w, expert_of, 3, tiling=tiling, out=out)
    for block, expert in enumerate(order):
        here = slice(rows * block, rows * block + rows)
        if expert < 0:
            assert out[here].isnan().all()
            continue
        given = (x[0][here], x[1][here]) if isinstance(x, tuple) else x[here]
        assert_near(out[here], gemm.plain(given, part(w, expert)))


def test_rows_that_fill_no_tile(hopper: str) -> None:
    """A dense product of few rows, in the specialised form."""
    x, w = operands(True, hopper, 37, K), weights(True, hopper)
    expert_of = torch.zeros(37, dtype=torch.int32, device=hopper)
    out = gemm.contiguous(x, w, expert_of, 132, tiling=SPECIALISED[1])
    assert_near(out, gemm.plain(x, part(w, 0)))


@pytest.mark.parametrize("tiling", [SMALL, Tiling(block_m=128, block_n=64)])
def test_signals_of_started_row_blocks_reach_their_threshold(device: str, tiling: Tiling) -> None:
    signals_reach_their_thresholds(device, tiling, fp8=False)


@pytest.mark.parametrize("tiling", SPECIALISED)
def test_specialised_signals_reach_their_thresholds(hopper: str, tiling: Tiling) -> None:
    signals_reach_their_thresholds(hopper, tiling, fp8=True)


def signals_reach_their_thresholds(device: str, tiling: Tiling, fp8: bool) -> None:
    """A word for each 64 rows counts column tiles, a word for each expert the sum of those."""
    counts = [70, 0, 1, 96]
    x, w = operands(fp8, device, EXPERTS, ROWS, K), weights(fp8, device)
    on_device = torch.tensor(counts, dtype=torch.int32, device=device)
    signals = gemm.signal_words(EXPERTS, ROWS, "rows", device)
    gemm.masked(x, w, on_device, 5, signals=signals, tiling=tiling)
    full = gemm.threshold("rows", N, 1, tiling)
    assert full == -(-N // tiling.block_n)
    assert signals.words.tolist() == [[full, full], [0, 0], [full, 0], [full, full]]
    signals = gemm.signal_words(EXPERTS, ROWS, "experts", device)
    gemm.masked(x, w, on_device, 5, signals=signals, tiling=tiling)
    assert signals.words.tolist() == [2 * full, 0, full, 2 * full]
    assert [gemm.threshold("experts", N, count, tiling) for count in counts] == [
        2 * full, 0, full, 2 * full,
    ]  # fmt: skip


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


def test_tilings_that_a_kernel_lacks_are_refused() -> None:
    x, w = operands(True, "cpu", EXPERTS, ROWS, K), weights(True, "cpu")
    counts = torch.zeros(EXPERTS, dtype=torch.int32)
    with pytest.raises(ExecutorError, match=r"block_n 256; FP8 has \(32, 64, 128\)"):
        gemm.masked(x, w, counts, 1, tiling=Tiling(block_n=256))
    with pytest.raises(
        ExecutorError, match=r"specialised tile \(64, 128\); \(128, 128\) is allowed"
    ):
        gemm.masked(x, w, counts, 1, tiling=Tiling(64, 128, specialised=True))
    with pytest.raises(ExecutorError, match="specialised tiling needs compute capability 9"):
        gemm.masked(x, w, counts, 1, tiling=SPECIALISED[0])
