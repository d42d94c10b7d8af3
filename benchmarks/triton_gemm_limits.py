"""What limits our grouped GEMM: the specialised forms, and the same with a part left out, on one GPU.

    python -m benchmarks.triton_gemm_limits

*In turn* scales each product before the next one starts, *in flight* while it runs, *early* also
starts the next tile before this one is stored. *Unscaled* lets the tensor cores add up, *no loads*
multiplies the first operands over and over. Complete forms are checked before they are timed; the
others give wrong results on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.triton_gemm_in_turn import specialised_gemm_kernel as in_turn_kernel
from benchmarks.triton_gemm_ratios import CONTIGUOUS, MASKED, Case, Inputs, Record, deep_gemm_us
from benchmarks.triton_timing import time_graph
from executor.kernels import gemm
from executor.kernels.specialised_gemm import specialised_gemm_kernel

CASES = (*CONTIGUOUS, MASKED[1])
SMS, STAGES = 132, 6
LARGEST_ERROR = 0.02


@dataclass(frozen=True)
class Form:
    """A kernel, and what is left out of it."""

    name: str
    kernel: Any
    options: tuple[tuple[str, bool], ...] = ()
    scaled: bool = True
    loads: bool = True

    @property
    def complete(self) -> bool:
        """Whether its result is right."""
        return self.loads and self.scaled


EARLY, LATE = (("EARLY", True),), (("EARLY", False),)
FORMS = (
    Form("in turn", in_turn_kernel),
    Form("in flight", specialised_gemm_kernel, LATE),
    Form("in flight, early", specialised_gemm_kernel, EARLY),
)
PARTS = (
    Form("in turn, no loads", in_turn_kernel, loads=False),
    Form("in flight, no loads", specialised_gemm_kernel, LATE, loads=False),
    Form("in flight, early, no loads", specialised_gemm_kernel, EARLY, loads=False),
    Form("unscaled", specialised_gemm_kernel, scaled=False),
    Form("unscaled, no loads", specialised_gemm_kernel, scaled=False, loads=False),
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
        form.kernel[(SMS,)](
            gemm.swizzled(x, 64, 128), inputs.x[1], gemm.swizzled(w, 128, 128), inputs.w[1],
            inputs.out, inputs.groups, inputs.groups, *sizes, MASKED=masked, SCALED=form.scaled,
            SIGNAL=0, BY_ROWS=True, STAGES=STAGES, LOADS=form.loads, num_warps=4,
            maxnreg=gemm.SPECIALISED_REGISTERS, **dict(form.options),
        )  # fmt: skip

    return launch


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


def compare(case: Case, forms: tuple[Form, ...]) -> list[str]:
    """Lines of a table: every form of a case beside DeepGEMM on the same operands."""
    inputs = Inputs(case, 0)
    records: list[Record] = []
    for form in forms:
        try:
            records.append(measure(form, inputs))
        except (RuntimeError, ValueError, TypeError) as reason:
            records.append({"form": form.name, "failed": str(reason)[-300:]})
        print(records[-1], flush=True)
    theirs = deep_gemm_us(inputs, lambda record: print(record, flush=True))
    lines = [f"{case.name}; DeepGEMM {theirs} us"]
    for record in records:
        us = record.get("us")
        ratio = f"{theirs / us:5.2f}" if theirs and us else "     "
        shown = us or record.get("failed")
        lines.append(f"  {record['form']:30s} {shown!s:>8}  {ratio}  error={record.get('error')}")
    return lines


def main() -> None:
    """All cases; the last lines are the tables."""
    tables = [compare(case, FORMS + PARTS if case is CASES[0] else FORMS) for case in CASES]
    print("\n".join(line for table in tables for line in table))


if __name__ == "__main__":
    main()
