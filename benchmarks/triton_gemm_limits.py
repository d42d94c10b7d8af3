"""What limits our grouped GEMM: the same kernels with a part left out, on one GPU.

    python -m benchmarks.triton_gemm_limits

One contiguous case. *Unscaled* lets the tensor cores add up, *no loads* multiplies the first operands
over and over, *bf16* has no scales and twice the bytes. Complete forms are checked before they are
timed; the others give wrong results on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.triton_gemm_ratios import CONTIGUOUS, Case, Inputs, Record, deep_gemm_us
from benchmarks.triton_timing import time_graph
from executor.kernels import gemm
from executor.kernels.grouped_gemm import grouped_gemm_kernel
from executor.kernels.specialised_gemm import specialised_gemm_kernel

CASE: Case = CONTIGUOUS[0]
SMS = 132
LARGEST_ERROR = 0.02


@dataclass(frozen=True)
class Form:
    """A kernel and what it does: rows of a tile, stages; what is left out."""

    name: str
    rows: int
    stages: int
    scaled: bool = True
    loads: bool = True
    bf16: bool = False
    specialised: bool = True
    per_sm: int = 1
    warps: int = 8

    @property
    def complete(self) -> bool:
        """Whether its result is right."""
        return self.loads and (self.scaled or self.bf16)

    @property
    def bytes_asked(self) -> int:
        """Bytes that all tiles ask L2 for; 0 without loads."""
        tiles = CASE.experts * CASE.rows * CASE.n // (self.rows * 128)
        return tiles * (self.rows + 128) * CASE.k * (2 if self.bf16 else 1) * self.loads


PLAIN = Form("plain 128 x 128", 128, 4, specialised=False)
OURS = Form("specialised", 128, 6)
FORMS = (
    PLAIN,
    replace(PLAIN, name="plain, unscaled", scaled=False),
    Form("plain 64 x 128, two an SM", 64, 4, specialised=False, per_sm=2, warps=4),
    OURS,
    replace(OURS, name="specialised, unscaled", scaled=False),
    replace(OURS, name="specialised, no loads", loads=False),
    replace(OURS, name="specialised, unscaled, no loads", scaled=False, loads=False),
    replace(OURS, name="specialised, bf16", scaled=False, bf16=True),
)


def launcher(form: Form, inputs: Inputs) -> Callable[[], None]:
    """A launch of the form on the operands, contiguous layout."""
    x, w = inputs.x[0].view(-1, CASE.k), inputs.w[0].view(-1, CASE.k)
    if form.bf16:
        x, w = x.bfloat16(), w.bfloat16()
    block_k = 128 // x.dtype.itemsize
    sizes = (x.shape[0], CASE.n, CASE.k, 0, *inputs.x[1].stride())
    shared = {"MASKED": False, "SIGNAL": 0, "BY_ROWS": True, "STAGES": form.stages}
    rest = (inputs.out, inputs.groups, inputs.groups)

    def specialised() -> None:
        specialised_gemm_kernel[(SMS,)](
            gemm.swizzled(x, 64, block_k), inputs.x[1], gemm.swizzled(w, 128, block_k),
            inputs.w[1], *rest, 1, *sizes, SCALED=form.scaled, LOADS=form.loads,
            num_warps=4, maxnreg=gemm.SPECIALISED_REGISTERS, **shared,
        )  # fmt: skip

    def plain() -> None:
        grouped_gemm_kernel[(SMS * form.per_sm,)](
            TensorDescriptor.from_tensor(x, [form.rows, block_k]), inputs.x[1],
            TensorDescriptor.from_tensor(w, [128, block_k]), inputs.w[1], *rest, CASE.experts,
            *sizes, FP8=form.scaled, BLOCK_M=form.rows, BLOCK_N=128, BLOCK_K=block_k, GROUPS=16,
            num_warps=form.warps, **shared,
        )  # fmt: skip

    return specialised if form.specialised else plain


def error_of(form: Form, inputs: Inputs) -> float:
    """Relative error of a few experts' rows."""
    if not form.bf16:
        return inputs.worst_error()
    worst = 0.0
    for expert in (0, CASE.experts - 1):
        rows = slice(expert * CASE.rows, (expert + 1) * CASE.rows)
        reference = inputs.x[0][rows].float() @ inputs.w[0][expert].float().T
        error = (inputs.out[rows].float() - reference).norm() / reference.norm()
        worst = max(worst, float(error) if bool(torch.isfinite(error)) else float("inf"))
    return worst


def measure(form: Form, inputs: Inputs) -> Record:
    """The form's time, with its error where it is complete."""
    call = launcher(form, inputs)
    inputs.out.fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    error = error_of(form, inputs) if form.complete else None
    if error is not None and not error < LARGEST_ERROR:
        return {"form": form.name, "us": None, "error": error}
    us = time_graph(call, 2, 9).us
    flops = 2 * CASE.experts * CASE.rows * CASE.n * CASE.k
    return {
        "form": form.name, "us": us, "error": error, "tflops": round(flops / us / 1e6),
        "l2_tbps": round(form.bytes_asked / us / 1e6, 2),
    }  # fmt: skip


def main() -> None:
    """Every form, then DeepGEMM on the same operands; the last lines are the table."""
    inputs = Inputs(CASE, 0)
    records: list[Record] = []
    for form in FORMS:
        try:
            records.append(measure(form, inputs))
        except (RuntimeError, ValueError, TypeError) as reason:
            records.append({"form": form.name, "failed": str(reason)[-300:]})
        print(records[-1], flush=True)
    theirs = deep_gemm_us(inputs, lambda record: print(record, flush=True))
    print(f"{CASE.name}; DeepGEMM {theirs} us")
    for record in records:
        us = record.get("us")
        ratio = f"{theirs / us:5.2f}" if theirs and us else "     "
        rest = "  ".join(f"{key}={record.get(key)}" for key in ("error", "tflops", "l2_tbps"))
        print(f"{record['form']:34s} {us or record.get('failed')!s:>8}  {ratio}  {rest}")


if __name__ == "__main__":
    main()
