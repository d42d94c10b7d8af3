"""What limits our specialised grouped GEMM: the same with a part left out, on one GPU.

    python -m benchmarks.triton_gemm_limits

*Unscaled* lets the tensor cores add up, *no loads* multiplies the first operands over and over, *zeros*
has operands of zeros, whose products take little power, so that a GPU at its power limit clocks higher.
Complete forms are checked before they are timed; the others give wrong results on purpose. Kernels are
compiled ahead, each in a process of its own.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.triton_gemm_ratios import CONTIGUOUS, MASKED, Case, Inputs, Record, deep_gemm_us
from benchmarks.triton_timing import time_graph
from executor.kernels import gemm
from executor.kernels.specialised_gemm import specialised_gemm_kernel

CASES = (*CONTIGUOUS, MASKED[1])
SMS, STAGES = 132, 6
LARGEST_ERROR = 0.02
FAULTS = (RuntimeError, ValueError, TypeError)


@dataclass(frozen=True)
class Form:
    """The kernel, and what is left out of it."""

    name: str
    scaled: bool = True
    loads: bool = True

    @property
    def complete(self) -> bool:
        """Whether its result is right."""
        return self.loads and self.scaled


OURS = Form("ours")
NO_LOADS = Form("no loads", loads=False)
PARTS = (
    OURS,
    NO_LOADS,
    Form("unscaled", scaled=False),
    Form("unscaled, no loads", scaled=False, loads=False),
)


def launcher(form: Form, inputs: Inputs) -> Callable[[], None]:
    """A launch of the form on the operands."""
    case = inputs.case
    masked = case.layout == "masked"
    x, w = inputs.x[0].view(-1, case.k), inputs.w[0].view(-1, case.k)
    strides = inputs.x[1].stride() if masked else (0, *inputs.x[1].stride())
    rows = inputs.out.shape[1] if masked else x.shape[0]
    sizes = (case.experts if masked else 1, rows, case.n, case.k, *strides)

    def launch() -> None:
        specialised_gemm_kernel[(SMS,)](
            gemm.swizzled(x, 64, 128), inputs.x[1], gemm.swizzled(w, 128, 128), inputs.w[1],
            inputs.out, inputs.groups, inputs.groups, *sizes, MASKED=masked, SCALED=form.scaled,
            SIGNAL=0, BY_ROWS=True, STAGES=STAGES, LOADS=form.loads, num_warps=4,
            maxnreg=gemm.SPECIALISED_REGISTERS,
        )  # fmt: skip

    return launch


def compile_one(case: Case, form: Form | None) -> None:
    """Fill the caches on disk with a form's kernel, or with DeepGEMM's for a case. What fails does so
    again where it is timed, and is reported there."""
    inputs = Inputs(case, 0)
    try:
        if form is None:
            deep_gemm_us(inputs, lambda record: None)
        else:
            launcher(form, inputs)()
            torch.cuda.synchronize()
    except FAULTS:
        return


def compile_all() -> None:
    """Every kernel that is timed. Both contiguous cases have the same ones."""
    work: list[tuple[Case, Form | None]] = [(case, None) for case in CASES]
    work += [(CASES[0], form) for form in PARTS]
    work += [(CASES[-1], OURS)]
    with multiprocessing.get_context("spawn").Pool(len(work)) as pool:
        pool.starmap(compile_one, work, chunksize=1)


def measure(form: Form, inputs: Inputs) -> Record:
    """The form's time, with its error where it is complete."""
    call = launcher(form, inputs)
    inputs.out.fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    error = inputs.worst_error() if form.complete else None
    if error is not None and not error < LARGEST_ERROR:
        return {"form": form.name, "us": None, "error": error}
    return {"form": form.name, "us": time_graph(call, 2, 9).us, "error": error}


def table(title: str, inputs: Inputs, forms: tuple[Form, ...]) -> None:
    """Print DeepGEMM's time and, beside it, that of every form on the same operands."""
    theirs = deep_gemm_us(inputs, lambda record: print(record, flush=True))
    print(f"{title}; DeepGEMM {theirs} us", flush=True)
    for form in forms:
        try:
            record = measure(form, inputs)
        except FAULTS as reason:
            record = {"us": None, "error": str(reason)[-300:]}
        us = record["us"]
        ratio = f"{theirs / us:5.2f}" if theirs and us else "     "
        print(f"  {form.name:20s} {us!s:>8}  {ratio}  error={record['error']}", flush=True)


def main() -> None:
    """All cases, the first one with parts left out and with zeros."""
    compile_all()
    first = Inputs(CASES[0], 0)
    table(first.case.name, first, PARTS)
    for values in (first.x[0], first.w[0]):
        values.view(torch.uint8).zero_()
    table(f"{first.case.name}, zeros", first, (OURS, NO_LOADS))
    for case in CASES[1:]:
        table(case.name, Inputs(case, 0), (OURS,))


if __name__ == "__main__":
    main()
