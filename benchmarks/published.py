"""Predicted against published: TBO's speed over the same step without it for DeepSeek-V3 on H100.

    python -m benchmarks.published [--alpha 0.6]

Prints the ratio curve over batch (decode, EP72) and tokens (prefill, EP32), the published rows beside ours
and beside four plain predictors from the same tables, and the time per kernel class of a layer. *Off* and
*on* are what ran in the published rows, *today* the baseline and the TBO of the scenarios' version.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import moe_overlap as mo
from benchmarks.plain import alone, predictions
from benchmarks.published_classes import class_us, mean_error, plain_class_us
from benchmarks.published_rows import (
    DECODE,
    LAYERS,
    OFF,
    ON,
    PREFILL,
    load,
    published,
    published_classes,
)
from models.memory import GIB
from moe_overlap.memory_fit import Fit, fit_of
from moe_overlap.outcome import Programs
from moe_overlap.prediction import build

CURVES = {DECODE: (16, 32, 64, 96, 128, 192, 256), PREFILL: (2048, 4096, 8192, 16384)}
MEMORY_PARTS = ("weights", "kv_cache", "exchange_buffers", "activations", "reserve")
# Of the server's command in sgl-project/sglang#6017; the smaller of both makes the KV pool.
SHARE, CAP = "runtime.mem_fraction_static=0.85", "runtime.max_total_tokens=131072"
POOLS = {
    "": (SHARE, CAP),
    ", without EPLB": (SHARE, CAP, "routing.eplb=false"),
    ", without EPLB, alpha 1.2": (SHARE, CAP, "routing.eplb=false", "routing.alpha=1.2"),
    ", pool not capped": (SHARE,),
    ", pool not capped, without EPLB": (SHARE, "routing.eplb=false"),
}
GROWN = ("GEMM", "Attention Core", "MoE", "Other Kernels", "Dispatch", "Combine")


@dataclass(frozen=True)
class Row:
    """A size with and without TBO, as published and as today: milliseconds of a step, None when refused."""

    size: int
    off_ms: float | None
    on_ms: float | None
    off_today_ms: float | None
    on_today_ms: float | None

    @property
    def ratio(self) -> float | None:
        """Throughput of TBO over that without; None when one is refused."""
        return _over(self.off_ms, self.on_ms)

    @property
    def ratio_today(self) -> float | None:
        """The same of the scenarios' version, whose shared expert has a stream of its own."""
        return _over(self.off_today_ms, self.on_today_ms)


def _over(off: float | None, on: float | None) -> float | None:
    return None if off is None or on is None else off / on


def predicted(scenario: str, size: int, alpha: float) -> Row:
    """Our own prediction at one batch or prompt size."""
    found = mo.compare(load(scenario, size, alpha), allow_refused=True).document()["schedules"]
    ms = {row["name"]: None if row["refused"] else row["step_us"] / 1000 for row in found}
    return Row(size, *(ms[name] for name in (OFF, ON[scenario], "baseline", "tbo")))


def plain(scenario: str, size: int, alpha: float) -> dict[str, float]:
    """The four plain predictors at this size."""
    resolved = mo.resolve(load(scenario, size, alpha))
    machine = resolved.deployment.machine
    whole, halves = (build(resolved, name, layers=1) for name in (OFF, ON[scenario]))
    return predictions(alone(whole, machine), alone(halves, machine))


def _curves(alpha: float) -> None:
    for scenario, sizes in CURVES.items():
        print(f"\n{scenario}, alpha {alpha}: ms of a step off and on, on over off; the same today")
        for size in sizes:
            row = predicted(scenario, size, alpha)
            ms = (row.off_ms, row.on_ms, row.ratio, row.off_today_ms, row.on_today_ms)
            print(f"{size:8d} {' '.join(map(_cell, (*ms, row.ratio_today)))}")


def _cell(value: float | None) -> str:
    return f"{'refused':>10}" if value is None else f"{value:10.3f}"


def _rows(alpha: float) -> None:
    print(f"\npublished TBO over off beside ours and plain predictors, alpha {alpha}")
    for row in published():
        ours = predicted(row.scenario, row.size, alpha)
        print(f"{row.scenario} at {row.size}: published {row.ratio:.3f}")
        others = plain(row.scenario, row.size, alpha)
        for name, ratio in {"ours": ours.ratio, "ours, today": ours.ratio_today, **others}.items():
            if ratio is not None:
                print(f"   {name:24s} {ratio:6.3f}  error {100 * (ratio / row.ratio - 1):+6.1f} %")


def _classes(alpha: float) -> None:
    for scenario, schedule, size, series in LAYERS:
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
        errors = (f"{'':9s} {100 * mean_error(found, truth):6.1f} %" for found in (ours, tables))
        print(f"   mean error       {'':9s} {' '.join(errors)}")


def growth(alpha: float) -> Iterator[tuple[str, float, float, float]]:
    """(class, published, ours, plain): prefill with TBO at 16384 tokens (children of 8192) over off at
    8192, per kernel batch. An exchange is its transfer, without its barrier, in the published figure."""
    cases = ((OFF, 8192), (ON[PREFILL], 16384))
    found = [[published_classes(s, barriers=False) for s in ("noTBO_8k", "TBO_16k")]]
    found += [[us(PREFILL, *case, alpha) for case in cases] for us in (class_us, plain_class_us)]
    for name in GROWN:
        truth, ours, tables = (on[name] / 2 / off[name] for off, on in found)
        yield name, truth, ours, tables


def _growth(alpha: float) -> None:
    print("\nprefill, TBO at 16384 (children of 8192) over off at 8192, per kernel batch: "
          "published, ours, plain predictors")  # fmt: skip
    for name, *ratios in growth(alpha):
        print(f"   {name:16s} {'  '.join(f'x{ratio:.2f}' for ratio in ratios)}")


def fit_at(size: int, schedule: str, alpha: float, *sets: str) -> Fit:
    """Memory of a prefill step of so many tokens."""
    resolved = mo.resolve(load(PREFILL, size, alpha, *sets))
    return fit_of(resolved, Programs(resolved, resolved.choice(schedule), allow_refused=False)(2))


def memory_lines(alpha: float) -> Iterator[str]:
    """Prefill memory by part, and what of a published out-of-memory is met."""
    for label, sets in POOLS.items():
        for schedule, size in ((OFF, 8192), (OFF, 16384), (ON[PREFILL], 16384)):
            fit = fit_at(size, schedule, alpha, *sets)
            parts = (f"{part} {getattr(fit.needed, part) / GIB:.1f}" for part in MEMORY_PARTS)
            verdict = ", **does not fit**" if fit.refusal else ""
            yield (f"{schedule} at {size}{label}: {fit.needed.gib:.1f} GiB of {fit.limit / GIB:.1f}"
                   f"{verdict} ({', '.join(parts)})")  # fmt: skip
    yield ("Published: 16384 without TBO ran out of memory. Beside the pool of the published command (0.85 of the "
           "GPU, at most 131,072 tokens) ours fits, even where the busiest rank gets 4.4 times the mean (alpha 1.2, "
           "no EPLB). With the pool not capped and experts in order it comes out as published: the whole batch does "
           "not fit, two children do. What a caching allocator holds is not in it (docs/limits.md).")  # fmt: skip


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
