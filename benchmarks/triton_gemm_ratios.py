"""Our grouped GEMM beside DeepGEMM and beside its own law of budgets, on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.triton_timing import time_graph
from executor.kernels import gemm
from executor.kernels.gemm import Tiling

Record = dict[str, Any]
Report = Callable[[Record], None]
TILINGS = (
    Tiling(128, 128, 128, 4, 8),
    Tiling(64, 128, 128, 6, 4),
    Tiling(128, 128, stages=6, specialised=True),
)
BUDGETS = (132, 120, 108, 66)


@dataclass(frozen=True)
class Case:
    """A grouped GEMM: experts, rows of each on average, n and k."""

    layout: str
    experts: int
    rows: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.layout} {self.experts} x {self.rows} x {self.n} x {self.k}"


MASKED = (Case("masked", 32, 16, 4096, 7168), Case("masked", 32, 128, 7168, 2048))
CONTIGUOUS = (Case("contiguous", 16, 512, 4096, 7168), Case("contiguous", 16, 512, 7168, 2048))


class Inputs:
    """Random FP8 operands of a case on the current GPU."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.case = case
        masked = case.layout == "masked"
        capacity = -(-2 * case.rows // 128) * 128
        shape = (case.experts, capacity) if masked else (case.experts * case.rows,)
        self.x = self._rows(generator, *shape)
        values = torch.randn(
            case.experts, case.n, case.k, device="cuda", dtype=torch.bfloat16, generator=generator
        )
        scales = torch.rand(
            case.experts, -(-case.n // 128), case.k // 128, device="cuda", generator=generator
        )
        self.w = (values.to(gemm.FP8), scales)
        if masked:
            drawn = torch.randint(
                0, 2 * case.rows + 1, (case.experts,), device="cuda", generator=generator
            )
            self.groups = drawn.to(torch.int32)
        else:
            blocks = torch.arange(case.experts, device="cuda", dtype=torch.int32)
            self.groups = blocks.repeat_interleave(case.rows)
        self.out = torch.empty(*shape, case.n, dtype=torch.bfloat16, device="cuda")

    def _rows(self, generator: torch.Generator, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Values, and scales stored column by column."""
        k = self.case.k
        x = torch.randn(*shape, k, device="cuda", dtype=torch.bfloat16, generator=generator)
        scales = torch.rand(*shape[:-1], k // 128, shape[-1], device="cuda", generator=generator)
        return x.to(gemm.FP8), scales.transpose(-1, -2)

    def ours(self, tiling: Tiling, num_sms: int, by_rows: bool) -> None:
        """One launch of our kernel."""
        run = gemm.masked if self.case.layout == "masked" else gemm.contiguous
        run(self.x, self.w, self.groups, num_sms, by_rows=by_rows, tiling=tiling, out=self.out)

    def worst_error(self) -> float:
        """Largest relative error of an expert's rows against float32."""
        worst = 0.0
        for expert in (0, self.case.experts // 2, self.case.experts - 1):
            weight = (self.w[0][expert], self.w[1][expert])
            if self.case.layout == "masked":
                rows = slice(int(self.groups[expert]))
                given = (self.x[0][expert, rows], self.x[1][expert, rows])
                found = self.out[expert, rows]
            else:
                rows = slice(expert * self.case.rows, (expert + 1) * self.case.rows)
                given, found = (self.x[0][rows], self.x[1][rows]), self.out[rows]
            reference = gemm.plain(given, weight)
            error = (found.float() - reference).norm() / reference.norm().clamp(min=1e-6)
            worst = max(worst, float(error) if bool(torch.isfinite(error)) else float("inf"))
        return worst


def compare(case: Case, seed: int, report: Report) -> None:
    """All tilings and orders of a case, each checked, then DeepGEMM, the ratio and the budgets."""
    inputs = Inputs(case, seed)
    best: tuple[float, Tiling, bool] | None = None
    for tiling in TILINGS:
        for by_rows in (True, False):
            inputs.out.fill_(float("nan"))
            inputs.ours(tiling, BUDGETS[0], by_rows)
            error = inputs.worst_error()
            record: Record = {"what": "gemm", "case": case.name, "tiling": asdict(tiling)}
            record |= {"by_rows": by_rows, "error": error}
            if error < 0.02:
                timing = time_graph(_launch(inputs, tiling, BUDGETS[0], by_rows), 2, 9)
                record |= asdict(timing)
                if best is None or timing.us < best[0]:
                    best = (timing.us, tiling, by_rows)
            report(record)
    if best is None:
        return
    theirs = deep_gemm_us(inputs, report)
    timing = time_graph(_launch(inputs, best[1], BUDGETS[0], best[2]), 4)
    record = {"what": "gemm ratio", "case": case.name, "tiling": asdict(best[1])}
    record |= {"by_rows": best[2], **asdict(timing), "deep_gemm_us": theirs}
    report(record | {"ratio": round(theirs / timing.us, 3) if theirs else None})
    for law in budget_law(inputs, best[1], best[2]):
        report(law)


def _launch(inputs: Inputs, tiling: Tiling, num_sms: int, by_rows: bool) -> Callable[[], None]:
    return lambda: inputs.ours(tiling, num_sms, by_rows)


def budget_law(inputs: Inputs, tiling: Tiling, by_rows: bool) -> Iterator[Record]:
    """Times under budgets beside `ceil(tiles / S)` tile times of the whole GPU."""
    case = inputs.case
    if case.layout == "masked":
        blocks = int(((inputs.groups + tiling.block_m - 1) // tiling.block_m).sum())
    else:
        blocks = -(-case.experts * case.rows // tiling.block_m)
    tiles = blocks * -(-case.n // tiling.block_n)
    tile_us = 0.0
    for budget in BUDGETS:
        timing = time_graph(_launch(inputs, tiling, budget, by_rows), 4)
        waves = -(-tiles // budget)
        tile_us = tile_us or timing.us / waves
        yield {
            "what": "budget", "case": case.name, "sms": budget, "tiles": tiles, **asdict(timing),
            "over_law": round(timing.us / (waves * tile_us), 3),
        }  # fmt: skip


def deep_gemm_us(inputs: Inputs, report: Report) -> float | None:
    """DeepGEMM's time on the same operands, checked; None where it is missing or fails."""
    from executor.kernel_set import MissingResource
    from executor.libraries import DeepGemm

    case = inputs.case
    try:
        library = DeepGemm(BUDGETS[0])
    except MissingResource as error:
        report({"what": "missing", "case": case.name, "reason": str(error)})
        return None

    def call() -> None:
        if case.layout == "masked":
            inputs.out = library.masked(
                inputs.x, inputs.w, inputs.groups, max(1, case.rows), BUDGETS[0]
            )
        else:
            inputs.out = library.contiguous(inputs.x, inputs.w, inputs.groups, BUDGETS[0])

    call()
    report({"what": "deep_gemm", "case": case.name, "error": inputs.worst_error()})
    return time_graph(call, 4).us
