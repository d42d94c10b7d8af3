"""Dense GEMMs of sizes that no calibration has: what a profile says of them, and what a GPU says.

    python -m benchmarks.gemm_between predict -o predicted.jsonl
    python -m benchmarks.gemm_between measure -o measured.jsonl                     one GPU, 100 s
    python -m benchmarks.gemm_between compare predicted.jsonl measured.jsonl

The shapes of DeepSeek-V3's layers at 144 to 1152 rows, which lie between decode's sizes and prefill's, on all SMs
and under a cap. A kernel's time is the profiler's, its operands cold: the L2 is written over before each call.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.validation import PROFILES
from benchmarks.validation_files import read
from models.counts import gemm
from models.errors import InputError
from models.measured import percentile
from models.profile import load_machine
from models.work import Grid, Work

# (n, k) of the linear layers.
SHAPES = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
ROWS = (144, 192, 257, 384, 513, 640, 896, 1152)
CAPS = (0, 108)
REPEATS = 11
FLUSH_BYTES = 2**28
Sizes = tuple[int, int, int, int]


def sizes() -> Iterator[Sizes]:
    """(rows, n, k, cap in SMs or 0)."""
    for (n, k), cap, rows in product(SHAPES, CAPS, ROWS):
        yield rows, n, k, cap


def work(rows: int, n: int, k: int) -> Work:
    """The GEMM."""
    return gemm(rows, n, k, "fp8_block")


def predicted(profile: str) -> Iterator[dict[str, Any]]:
    """A record for each size: ns at rest and its stated error."""
    machine = load_machine(profile)
    grid = dict(machine.grids).get("gemm", Grid())
    for rows, n, k, cap in sizes():
        cost = machine.costs.alone(work(rows, n, k), grid, cap or machine.num_sms)
        yield {
            "size": [rows, n, k, cap],
            "profile": machine.name,
            "sha256": machine.profile_sha256,
            "ns": cost.ns,
            "error": round(cost.rel_error, 4),
        }


def measured() -> Iterator[dict[str, Any]]:
    """A record for each size: median, least and most ns."""
    import torch

    from executor.calibrate.compile import compile_all
    from executor.calibrate.kernel_times import kernel_runs, traced
    from executor.libraries import DeepGemm
    from executor.small_kernels import quantise

    jobs = tuple((work(rows, n, k), cap, 0, 0) for rows, n, k, cap in sizes())
    for problem in compile_all(jobs, 1):
        sys.stderr.write(f"{problem}\n")
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    library = DeepGemm(num_sms)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for rows, n, k, cap in sizes():
        weight = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
        scales = torch.rand(-(-n // 128), -(-k // 128), device="cuda")
        x = quantise(torch.randn(rows, k, dtype=torch.bfloat16, device="cuda"), column_major=True)

        def calls(x: Any = x, weight: Any = (weight, scales), cap: int = cap) -> None:
            for _ in range(REPEATS):
                flush.zero_()
                library.dense(x, weight, cap or None)

        calls()
        times = [run.ns for run in kernel_runs(traced(calls)) if "gemm" in run.name]
        yield {
            "size": [rows, n, k, cap],
            "ns": median(times),
            "low_ns": min(times),
            "high_ns": max(times),
            "gpu": torch.cuda.get_device_name(),
            "library": library.version,
        }


def compared(before: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each size, then errors by what lies between: in all, by rows, and bands."""
    known = {tuple(record["size"]): record for record in before}
    lines, errors, held = (
        ["rows x n x k         SMs   predicted us   measured us [least, most]   error"],
        [],
        0,
    )
    by_rows: dict[int, list[float]] = {}
    for record in found:
        rows, n, k, cap = record["size"]
        if (rows, n, k, cap) not in known:
            raise InputError("measured", "size", [rows, n, k, cap], "a size that was predicted")
        own = known[rows, n, k, cap]
        error = own["ns"] / record["ns"] - 1.0
        errors.append(abs(error))
        by_rows.setdefault(rows, []).append(error)
        held += abs(own["ns"] - record["ns"]) <= own["error"] * own["ns"]
        lines.append(
            f"{rows:4} x {n:5} x {k:5}   {cap or 'all':>4}   {own['ns'] / 1e3:12.1f}   "
            f"{record['ns'] / 1e3:11.1f} [{record['low_ns'] / 1e3:.1f}, {record['high_ns'] / 1e3:.1f}]"
            f"   {error:+.1%}"
        )
    for rows, of in sorted(by_rows.items()):
        lines.append(
            f"{rows} rows: off by {median(map(abs, of)):.1%} (median), from {min(of):+.1%} to {max(of):+.1%}"
        )
    lines.append(
        f"all {len(errors)}: median {median(errors):.1%}, 90th percentile {percentile(errors, 0.9):.1%}, worst "
        f"{max(errors):.1%}; within the stated error {held}"
    )
    return lines


def main(given: Sequence[str] | None = None) -> None:
    """Parse; predict, measure or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "measure", "compare"))
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--profile", default=PROFILES[2])
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args(given)
    if arguments.what == "compare":
        if len(arguments.files) != 2:
            parser.error("compare needs the predictions and the measurements")
        try:
            lines = compared(*map(read, arguments.files))
        except InputError as error:
            parser.error(str(error))
    else:
        records = predicted(arguments.profile) if arguments.what == "predict" else measured()
        lines = [json.dumps(record) for record in records]
    text = "\n".join(lines) + "\n"
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
