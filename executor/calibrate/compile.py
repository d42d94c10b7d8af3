"""Compiles a calibration's GEMMs ahead, in many processes at once: DeepGEMM builds each shape and cap
when it is first called, seconds each, and one process would spend the whole calibration on it.

    python -m executor.calibrate.compile JOBS.json PART PARTS      (a worker)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from models.calibration_records import work_of, work_record
from models.deployment import Batch
from models.routing import Routing
from models.work import Work
from schedules.program import Program
from schedules.split import split_batch

# A GEMM, its cap in SMs (0: none), rows that a low-latency buffer holds for each expert, and the rows
# that DeepGEMM is told to expect there.
Job = tuple[Work, int, int, int]
GEMM_KINDS = ("gemm", "grouped_gemm_masked", "grouped_gemm_contiguous")
MOST_WORKERS = 30
LIMIT_S = 240


def jobs_of(
    programs: Iterable[Program], batch: Batch, routing: Routing, allocated: int
) -> tuple[Job, ...]:
    """Every FP8 GEMM of a batch's programs once. `allocated` rows of an expert are in the low-latency
    buffers; masked GEMMs are told to expect what a child's tokens bring on average."""
    cut = split_batch(batch)[2]
    ranks, slots = routing.ep_size, routing.num_physical
    found: dict[Job, None] = {}
    for program in programs:
        for cls in program.classes:
            rank = cls.ranks[0]
            at, tokens = cut[rank].token_index, batch.tokens[rank]
            by_child = {"": tokens, "a": at, "b": tokens - at}
            for op in cls.ops:
                if op.work.kind in GEMM_KINDS and op.work.total_flops:
                    expected = (by_child[op.child] * ranks * routing.top_k + slots) // slots
                    cap = op.grid.enforced_budget or 0
                    found[op.work, cap, allocated, expected] = None
    return tuple(found)


def parts_of(jobs: Iterable[Job], count: int) -> list[list[Job]]:
    """The jobs in at most `count` parts: one shape with one cap stays together, since its sizes share
    kernels, and parts are even in shapes."""
    groups: dict[tuple[object, ...], list[Job]] = {}
    for job in jobs:
        work, cap = job[0], job[1]
        groups.setdefault((work.kind, work.dim("n"), work.dim("k"), cap), []).append(job)
    parts: list[list[Job]] = [[] for _ in range(max(1, min(count, len(groups))))]
    for index, group in enumerate(sorted(groups.values(), key=len, reverse=True)):
        parts[index % len(parts)].extend(group)
    return parts


def compile_all(jobs: Sequence[Job], gpus: int) -> tuple[str, ...]:
    """Run all workers and wait; the last error lines of those that failed."""
    workers = min(MOST_WORKERS, max(1, (os.cpu_count() or 2) - gpus))
    parts = parts_of(jobs, workers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.json"
        path.write_text(json.dumps([[_record(job) for job in part] for part in parts]))
        running = [_started(path, index, index % gpus) for index in range(len(parts))]
        return tuple(error for process in running if (error := _ended(process)))


def _started(path: Path, index: int, gpu: int) -> subprocess.Popen[str]:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible[gpu] if visible else str(gpu)}
    return subprocess.Popen(
        [sys.executable, "-m", "executor.calibrate.compile", str(path), str(index)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(process: subprocess.Popen[str]) -> str:
    try:
        _, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"a compiler did not end within {LIMIT_S} s"
    if process.returncode == 0:
        return ""
    lines = errors.strip().splitlines() or [f"exit {process.returncode}"]
    return "compiling ahead: " + next((line for line in lines if "Error:" in line), lines[-1])


def _record(job: Job) -> list[Any]:
    return [work_record(job[0]), *job[1:]]


def work_through(jobs: Iterable[Job]) -> None:
    """Call every GEMM once on whatever its buffers hold, smallest first."""
    import torch

    from executor.libraries import DeepGemm

    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    gemm = DeepGemm(num_sms)
    for job in jobs:
        _call(gemm, *job)
    torch.cuda.synchronize()


def _call(gemm: Any, work: Work, cap: int, allocated: int, expected: int) -> None:
    import torch

    from executor.small_kernels import FP8, GROUP, column_major_scales

    n, k = work.dim("n"), work.dim("k")
    blocks = (-(-n // GROUP), -(-k // GROUP))
    sms = cap or None
    if work.kind == "gemm":
        m = work.dim("m")
        x = (_empty(m, k), column_major_scales(m, blocks[1], "cuda"))
        gemm.dense(x, (_empty(n, k), torch.ones(blocks, device="cuda")), sms)
        return
    experts = work.dim("experts")
    weight = (_empty(experts, n, k), torch.ones(experts, *blocks, device="cuda"))
    if work.kind == "grouped_gemm_contiguous":
        m = work.dim("padded")
        x = (_empty(m, k), column_major_scales(m, blocks[1], "cuda"))
        expert_of = torch.zeros(m, dtype=torch.int32, device="cuda")
        gemm.contiguous(x, weight, expert_of, sms)
        return
    scales = torch.ones(experts, blocks[1], allocated, device="cuda").transpose(1, 2)
    counts = torch.zeros(experts, dtype=torch.int32, device="cuda")
    x = (torch.empty(experts, allocated, k, dtype=FP8, device="cuda"), scales)
    gemm.masked(x, weight, counts, expected, sms)


def _empty(*sizes: int) -> Any:
    import torch

    from executor.small_kernels import FP8

    return torch.empty(*sizes, dtype=FP8, device="cuda")


def main(arguments: Sequence[str]) -> None:
    """One worker: the jobs of its part."""
    path, index = Path(arguments[0]), int(arguments[1])
    part = json.loads(path.read_text())[index]
    work_through((work_of(record), cap, rows, expected) for record, cap, rows, expected in part)


if __name__ == "__main__":
    main(sys.argv[1:])
