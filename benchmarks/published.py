"""Predicted against published: TBO's speed over the baseline for DeepSeek-V3 on H100.

    python -m benchmarks.published [--alpha 0.6]

Prints the ratio curve over batch (decode, EP72) and tokens (prefill, EP32), the published rows beside ours
and beside four plain predictors from the same tables, and the time per kernel class of a layer.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import moe_overlap as mo
from benchmarks.plain import alone, kernels_alone, predictions
from models.kv_cache import kv_bytes_per_token
from models.memory import GIB
from moe_overlap.memory_fit import Fit, fit_of
from moe_overlap.outcome import Programs
from moe_overlap.prediction import build

DATA = Path(__file__).parent / "data"
DECODE, PREFILL = "deepseek-v3-h100-ep72-decode", "deepseek-v3-h100-ep32-prefill"
SIZE = {DECODE: "phase.decode.batch_per_rank", PREFILL: "phase.prefill.tokens_per_rank"}
CURVES = {DECODE: (16, 32, 64, 96, 128, 192, 256), PREFILL: (2048, 4096, 8192, 16384)}
MEMORY_PARTS = ("weights", "kv_cache", "exchange_buffers", "activations", "reserve")
CLASSES = {
    "Dispatch": (
        "dispatch",
        "dispatch_send",
        "dispatch_recv",
        "notify:dispatch",
        "flight:dispatch",
    ),
    "Combine": ("combine", "combine_send", "combine_recv", "notify:combine", "flight:combine"),
    "MoE": ("grouped_gemm_masked", "grouped_gemm_contiguous", "silu_mul:act"),
    "Attention Core": ("attention_decode", "attention_prefill"),
    "GEMM": ("gemm", "bmm", "gate"),
}


@dataclass(frozen=True)
class Row:
    """TBO over baseline: `step_us` and `layer_us` of both, and refusals instead of figures."""

    size: int
    baseline: dict[str, object]
    tbo: dict[str, object]

    @property
    def ratio(self) -> float | None:
        """Throughput of TBO over that of the baseline; None when one is refused."""
        us = (self.baseline["step_us"], self.tbo["step_us"])
        return float(us[0]) / float(us[1]) if all(isinstance(t, float | int) for t in us) else None  # type: ignore[arg-type]


def predicted(scenario: str, size: int, alpha: float) -> Row:
    """Our own prediction at one batch or prompt size."""
    found = mo.compare(load(scenario, size, alpha), allow_refused=True).document()["schedules"]
    rows = {row["name"]: row for row in found}
    return Row(size, rows["baseline"], rows["tbo"])


def load(scenario: str, size: int, alpha: float) -> mo.Scenario:
    """The scenario at this size and imbalance, with room for the dispatch of the whole batch."""
    sets = [f"{SIZE[scenario]}={size}", f"routing.alpha={alpha}", "schedules=[baseline, tbo]"]
    return mo.load(scenario, sets)


def plain(scenario: str, size: int, alpha: float) -> dict[str, float]:
    """The four plain predictors at this size."""
    resolved = mo.resolve(load(scenario, size, alpha))
    machine = resolved.deployment.machine
    whole, halves = (build(resolved, name, layers=1) for name in ("baseline", "tbo"))
    return predictions(alone(whole, machine), alone(halves, machine))


def published() -> Iterator[tuple[str, int, float]]:
    """(scenario, size, TBO over baseline) of the published H100 rows."""
    with (DATA / "published_cases.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["case_id"] in ("lmsys_dec_32_tbo", "lmsys_dec_256_tbo"):
                yield DECODE, int(row["tokens_or_batch_per_gpu"]), float(row["ratio_vs_baseline"])
            if row["case_id"] == "lmsys_pf_8192_tbo":
                yield PREFILL, int(row["tokens_or_batch_per_gpu"]), float(row["ratio_vs_baseline"])


def class_us(scenario: str, schedule: str, size: int, alpha: float) -> dict[str, float]:
    """Microseconds of each published kernel class in one steady layer of the busiest rank (children
    together): the time that its kernels are resident, as a profiler counts it."""
    resolved = mo.resolve(load(scenario, size, alpha))
    timeline = mo.simulate(resolved, schedule, layers=6)
    rank = timeline.ranks[-1]
    totals = dict.fromkeys((*CLASSES, "Other Kernels"), 0.0)
    for span in timeline.spans:
        if span.rank == rank and span.layer == 3 and span.lane != "flight":
            totals[_class_of(span.kind, span.op)] += span.duration_ns / 1000
    return totals


def plain_class_us(scenario: str, schedule: str, size: int, alpha: float) -> dict[str, float]:
    """What the plain predictors say of the same classes: each kernel alone, an exchange with its flight;
    under TBO without it, since they hide it (what is left holds SMs, as in a profile)."""
    resolved = mo.resolve(load(scenario, size, alpha))
    program = build(resolved, schedule, layers=1)
    totals = dict.fromkeys((*CLASSES, "Other Kernels"), 0.0)
    for kernel in kernels_alone(program, resolved.deployment.machine):
        if kernel.kind != "flight" or schedule != "tbo":
            totals[_class_of(kernel.kind, kernel.op)] += kernel.ns / 1000
    return totals


def _class_of(kind: str, op: str) -> str:
    tail = op.rsplit(".", 2)
    keys = (
        kind,
        f"{kind}:{tail[-2]}",
        f"{kind}:{tail[-1]}" if len(tail) < 3 or tail[-2] != "shared" else "",
    )
    return next(
        (name for name, kinds in CLASSES.items() if any(k in kinds for k in keys)), "Other Kernels"
    )


def published_classes(series: str) -> dict[str, float]:
    """Microseconds per kernel class of a published figure, both children together."""
    totals: dict[str, float] = {}
    with (DATA / "published_layer_breakdown.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["series"] == series:
                name = row["category"].removesuffix(" Core").removesuffix(" Barrier")
                name = "Attention Core" if name == "Attention" else name
                us = (
                    1000
                    * float(row["ms_per_kernel_batch"])
                    * (2 if series.startswith("TBO") else 1)
                )
                totals[name] = totals.get(name, 0.0) + us
    return totals


def _curves(alpha: float) -> None:
    for scenario, sizes in CURVES.items():
        print(f"\n{scenario}, alpha {alpha}: baseline step, TBO step, TBO over baseline")
        for size in sizes:
            row = predicted(scenario, size, alpha)
            print(f"{size:8d} {_cell(row.baseline)} {_cell(row.tbo)} "
                  f"{'-' if row.ratio is None else f'{row.ratio:.3f}':>8}")  # fmt: skip


def _cell(row: dict[str, object]) -> str:
    refused = row["refused"]
    if isinstance(refused, dict):
        return f"refused: {refused['rule']}"
    us = row["step_us"]
    return f"{us / 1000:9.2f} ms" if isinstance(us, float) else "-"


def _rows(alpha: float) -> None:
    print(f"\npublished TBO over baseline beside ours and plain predictors, alpha {alpha}")
    for scenario, size, truth in published():
        ours = predicted(scenario, size, alpha).ratio
        print(f"{scenario} at {size}: published {truth:.3f}")
        for name, ratio in {"ours": ours, **plain(scenario, size, alpha)}.items():
            if ratio is not None:
                print(f"   {name:24s} {ratio:6.3f}  error {100 * (ratio / truth - 1):+6.1f} %")


def _classes(alpha: float) -> None:
    cases = ((DECODE, "baseline", 256, "noTBO_256"), (DECODE, "tbo", 256, "TBO_256"),
             (PREFILL, "baseline", 8192, "noTBO_8k"), (PREFILL, "tbo", 16384, "TBO_16k"))  # fmt: skip
    for scenario, schedule, size, series in cases:
        ours, truth = class_us(scenario, schedule, size, alpha), published_classes(series)
        tables = plain_class_us(scenario, schedule, size, alpha)
        print(f"\n{scenario} {schedule} at {size}: us per layer, {series}, ours, plain predictors")
        for name in ours:
            us = truth[name]
            cells = (
                f"{found[name]:9.1f} {100 * (found[name] / us - 1):+6.1f} %"
                for found in (ours, tables)
            )
            print(f"   {name:16s} {us:9.1f} {' '.join(cells)}")
        print(
            f"   mean error       {'':9s} {_mean_error(ours, truth)} {_mean_error(tables, truth)}"
        )


def _mean_error(found: dict[str, float], truth: dict[str, float]) -> str:
    errors = [abs(us / truth[name] - 1) for name, us in found.items()]
    return f"{'':9s} {100 * sum(errors) / len(errors):6.1f} %"


def _growth(alpha: float) -> None:
    print("\nprefill, TBO at 16384 (children of 8192) over off at 8192, per kernel batch: "
          "published, ours, plain predictors")  # fmt: skip
    cases = (("baseline", 8192), ("tbo", 16384))
    found = [(published_classes("noTBO_8k"), published_classes("TBO_16k"))]
    for source in (class_us, plain_class_us):
        off, on = (source(PREFILL, *case, alpha) for case in cases)
        found.append((off, on))
    for name in ("GEMM", "Attention Core", "MoE", "Other Kernels", "Dispatch", "Combine"):
        cells = "  ".join(f"x{on[name] / 2 / off[name]:.2f}" for off, on in found)
        print(f"   {name:16s} {cells}")


def fit_at(size: int, schedule: str, alpha: float) -> tuple[Fit, int]:
    """Memory of a prefill step of so many tokens, and the KV-cache tokens that a server could reserve
    beside it before it no longer fits."""
    resolved = mo.resolve(load(PREFILL, size, alpha))
    programs = Programs(resolved, resolved.choice(schedule), allow_refused=False)
    fit = fit_of(resolved, programs(2))
    room = fit.limit - fit.needed.total + fit.needed.kv_cache
    return fit, room // kv_bytes_per_token(resolved.deployment)


def memory_lines(alpha: float) -> Iterator[str]:
    """Prefill memory by part, and why a published out-of-memory is not predicted."""
    for schedule, size in (("baseline", 8192), ("baseline", 16384), ("tbo", 16384)):
        fit, pool = fit_at(size, schedule, alpha)
        parts = (f"{part} {getattr(fit.needed, part) / GIB:.1f}" for part in MEMORY_PARTS)
        yield (f"{schedule} at {size}: {fit.needed.gib:.1f} GiB of {fit.limit / GIB:.1f} ({', '.join(parts)}); "
               f"room for a KV pool of {pool:,} tokens")  # fmt: skip
    yield ("Published: 16384 without TBO ran out of memory. Ours fits: it counts the peak of lifetimes and the "
           "batch's own KV cache, not the server's KV pool, nor what a caching allocator holds (docs/limits.md).")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """The tables, for one alpha."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alpha", type=float, default=0.6)
    alpha = parser.parse_args(arguments).alpha
    _curves(alpha)
    _rows(alpha)
    _classes(alpha)
    _growth(alpha)
    print(f"\n{PREFILL}, memory", *memory_lines(alpha), sep="\n   ")


if __name__ == "__main__":
    main()
