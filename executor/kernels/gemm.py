"""Grouped GEMM over experts, masked and contiguous, in bf16 and block-scaled FP8; plain torch beside.

An operand is a bf16 tensor or a pair (float8_e4m3fn values, float32 scales): one scale for each row
and 128 values of k in activations, one for each 128 x 128 block in weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as SwizzledDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from executor.kernel_set import ExecutorError
from executor.kernels.grouped_gemm import SIGNAL_ROWS, grouped_gemm_kernel
from executor.kernels.specialised_gemm import specialised_gemm_kernel

Operand = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Grain = Literal["rows", "experts"]
FP8 = torch.float8_e4m3fn
FP8_COLUMNS = (32, 64, 128)
SPECIALISED = (128, 128)
ROWS, COLUMNS = 64, 128
HOPPER = 9
# 12 warps of 168 registers, rounded to the 8 that registers are given out in, fill an SM's 65536.
SPECIALISED_REGISTERS = 168


@dataclass(frozen=True)
class Tiling:
    """How a kernel cuts its work; chosen by a benchmark, never at run time. `specialised` has warps
    of its own for loads, which needs Hopper; `block_k` and `warps` are fixed then."""

    block_m: int = 128
    block_n: int = 128
    block_k: int = 128
    stages: int = 4
    warps: int = 8
    specialised: bool = False


DEFAULT = Tiling()


@dataclass(frozen=True)
class Signals:
    """Words that a masked GEMM raises: one for each 64 rows of each expert [E, ceil(rows / 64)],
    complete at the number of column tiles, or one for each expert [E], the sum of those."""

    words: torch.Tensor
    grain: Grain


def masked(
    x: Operand,
    w: Operand,
    counts: torch.Tensor,
    num_sms: int,
    *,
    by_rows: bool = True,
    signals: Signals | None = None,
    tiling: Tiling = DEFAULT,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """[E, rows, k], of which `counts` int32 [E] rows are valid, times each expert's [n, k]: bf16
    [E, rows, n]. Rows behind the counts are not written."""
    values, weights = _values(x), _values(w)
    experts, rows, _ = values.shape
    if out is None:
        out = values.new_empty(experts, rows, weights.shape[1], dtype=torch.bfloat16)
    _launch(x, w, out, counts, num_sms, by_rows, signals, tiling, masked_rows=rows)
    return out


def contiguous(
    x: Operand,
    w: Operand,
    expert_of: torch.Tensor,
    num_sms: int,
    *,
    by_rows: bool = True,
    tiling: Tiling = DEFAULT,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows [R, k] sorted by expert times that expert's [n, k]: bf16 [R, n].

    `expert_of` int32 [R] is -1 for padding; each expert's rows begin at a multiple of `block_m`.
    """
    values, weights = _values(x), _values(w)
    if out is None:
        out = values.new_empty(values.shape[0], weights.shape[1], dtype=torch.bfloat16)
    _launch(x, w, out, expert_of, num_sms, by_rows, None, tiling, masked_rows=0)
    return out


def signal_words(experts: int, rows: int, grain: Grain, device: torch.device | str) -> Signals:
    """Words for a masked GEMM, all 0; they must be 0 again before the next one, which the low-latency
    combine that polls them sees to."""
    shape = (experts,) if grain == "experts" else (experts, -(-rows // SIGNAL_ROWS))
    return Signals(torch.zeros(shape, dtype=torch.int32, device=device), grain)


def threshold(grain: Grain, n: int, count: int, tiling: Tiling = DEFAULT) -> int:
    """Where a word of `signal_words` is complete for an expert with `count` rows and n columns."""
    columns = -(-n // tiling.block_n)
    return columns if grain == "rows" else columns * -(-count // SIGNAL_ROWS)


def _launch(
    x: Operand,
    w: Operand,
    out: torch.Tensor,
    groups: torch.Tensor,
    num_sms: int,
    by_rows: bool,
    signals: Signals | None,
    tiling: Tiling,
    masked_rows: int,
) -> None:
    values, weights = _values(x), _values(w)
    experts, n, k = weights.shape
    _check(x, w, num_sms, tiling)
    if not values.numel():
        return
    scales = x[1] if isinstance(x, tuple) else values
    w_scales = w[1] if isinstance(w, tuple) else weights
    strides = scales.stride() if masked_rows else (0, *scales.stride())
    grain = 0 if signals is None else 1 if signals.grain == "rows" else 2
    words = groups if signals is None else signals.words
    flat, columns = values.view(-1, k), weights.view(-1, k)
    sizes = (masked_rows or flat.shape[0], n, k, *strides)
    shared = {
        "MASKED": bool(masked_rows),
        "SIGNAL": grain,
        "BY_ROWS": by_rows,
        "STAGES": tiling.stages,
    }
    fp8, block_k = values.dtype == FP8, 128 // values.dtype.itemsize
    if tiling.specialised:
        tiles = (swizzled(flat, ROWS, block_k), swizzled(columns, COLUMNS, block_k))
        specialised_gemm_kernel[(num_sms,)](
            tiles[0], scales, tiles[1], w_scales, out, groups, words, experts if masked_rows else 1,
            *sizes, SCALED=fp8, LOADS=True, num_warps=4, maxnreg=SPECIALISED_REGISTERS, **shared,
        )  # fmt: skip
        return
    block_k = block_k * tiling.block_k // 128
    grouped_gemm_kernel[(num_sms,)](
        TensorDescriptor.from_tensor(flat, [tiling.block_m, block_k]), scales,
        TensorDescriptor.from_tensor(columns, [tiling.block_n, block_k]), w_scales,
        out, groups, words, experts, *sizes, FP8=fp8, BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n, BLOCK_K=block_k, GROUPS=1 << max(0, experts - 1).bit_length(),
        num_warps=tiling.warps, **shared,
    )  # fmt: skip


def swizzled(matrix: torch.Tensor, rows: int, columns: int) -> Any:
    """Blocks of 128 bytes a row, laid out as the tensor cores read them."""
    layout = NVMMASharedLayout(128, 8 * matrix.dtype.itemsize, rank=2)
    return SwizzledDescriptor.from_tensor(matrix, [rows, columns], layout)


def _check(x: Operand, w: Operand, num_sms: int, tiling: Tiling) -> None:
    values, weights = _values(x), _values(w)
    known = (torch.bfloat16, FP8)
    if values.dtype not in known or values.dtype != weights.dtype:
        raise ExecutorError(
            f"grouped GEMM of {values.dtype} and {weights.dtype}: both must be one of {known}"
        )
    if values.dtype == FP8 and not (isinstance(x, tuple) and isinstance(w, tuple)):
        raise ExecutorError("grouped GEMM: FP8 operands are pairs of values and scales")
    k = values.shape[-1]
    if weights.shape[-1] != k or k % 128:
        raise ExecutorError(
            f"grouped GEMM: k is {k} and {weights.shape[-1]}; equal multiples of 128 are allowed"
        )
    _check_tiling(tiling, values)
    check_budget("grouped GEMM:", num_sms, values.device)


def _check_tiling(tiling: Tiling, values: torch.Tensor) -> None:
    if tiling.specialised:
        tile = (tiling.block_m, tiling.block_n)
        if tile != SPECIALISED:
            raise ExecutorError(f"grouped GEMM: specialised tile {tile}; {SPECIALISED} is allowed")
        if not is_hopper(values.device):
            raise ExecutorError("grouped GEMM: a specialised tiling needs compute capability 9")
    elif values.dtype == FP8 and tiling.block_n not in FP8_COLUMNS:
        raise ExecutorError(f"grouped GEMM: block_n {tiling.block_n}; FP8 has {FP8_COLUMNS}")


def is_hopper(device: torch.device) -> bool:
    """Whether the specialised form runs there."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER


def check_budget(what: str, num_sms: int, device: torch.device) -> None:
    """ExecutorError unless the GPU has that many SMs."""
    most = num_sms_of(device)
    if not 1 <= num_sms <= most:
        raise ExecutorError(f"{what} {num_sms} SMs; 1 to {most} are allowed")


def num_sms_of(device: torch.device) -> int:
    """SMs of a GPU; the interpreter on the CPU takes any budget up to 1024."""
    if device.type != "cuda":
        return 1024
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _values(operand: Operand) -> torch.Tensor:
    return operand[0] if isinstance(operand, tuple) else operand


def plain(x: Operand, weight: Operand) -> torch.Tensor:
    """One expert's [rows, k] times [n, k] in float32; the reference of both layouts."""
    return dequantised_rows(x) @ dequantised_blocks(weight).T


def dequantised_rows(x: Operand) -> torch.Tensor:
    """Activations in float32."""
    if not isinstance(x, tuple):
        return x.float()
    return x[0].float() * x[1].repeat_interleave(128, dim=-1)


def dequantised_blocks(weight: Operand) -> torch.Tensor:
    """Weights [n, k] in float32."""
    if not isinstance(weight, tuple):
        return weight.float()
    values, scales = weight
    wide = scales.repeat_interleave(128, 0)[: values.shape[0]].repeat_interleave(128, 1)
    return values.float() * wide
