"""Compiles the GEMMs of programs before they are measured, in many processes at once.

DeepGEMM compiles a kernel per shape and SM count when it is first called, several seconds each; its
cache folder (DG_JIT_CACHE_DIR) is shared, so that the ranks find everything there.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

from schedules.program import Program

Shape = tuple[str, int, int, int, int, int]
GROUP = 128


def gemm_shapes(programs: Iterable[Program], num_sms: int, masked_rows: int) -> list[Shape]:
    """(kind, m, n, k, experts, SMs) of every FP8 GEMM, without repeats, in a fixed order."""
    shapes: set[Shape] = set()
    for program in programs:
        for cls in program.classes:
            for op in cls.ops:
                dims = dict(op.work.dims)
                sms = op.grid.enforced_budget or num_sms
                if op.work.kind == "gemm" and dims["m"]:
                    shapes.add(("gemm", dims["m"], dims["n"], dims["k"], 1, sms))
                elif op.work.kind == "grouped_gemm_contiguous" and dims["padded"]:
                    padded, experts = dims["padded"], dims["experts"]
                    shapes.add((op.work.kind, padded, dims["n"], dims["k"], experts, sms))
                elif op.work.kind == "grouped_gemm_masked":
                    expected = max(1, dims["rows"] // dims["experts"])
                    experts = dims["experts"]
                    shapes.add((op.work.kind, expected, dims["n"], dims["k"], experts, sms))
    return sorted(shapes)


def warm(shapes: Sequence[Shape], masked_rows: int, devices: int) -> None:
    """Call every shape once; workers share the GPUs."""
    workers = min(len(shapes), max(1, (os.cpu_count() or 2) - 4), 24)
    chunks = [shapes[worker::workers] for worker in range(workers)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = [
            pool.submit(warm_chunk, chunk, masked_rows, index % devices)
            for index, chunk in enumerate(chunks)
        ]
        for job in jobs:
            job.result()


def warm_chunk(chunk: Sequence[Shape], masked_rows: int, device: int) -> None:
    """One worker's shapes on one GPU."""
    import torch

    from executor.libraries import DeepGemm
    from executor.small_kernels import FP8, column_major_scales

    torch.cuda.set_device(device)
    gemm = DeepGemm(torch.cuda.get_device_properties(device).multi_processor_count)
    for kind, m, n, k, experts, sms in chunk:
        groups, blocks = k // GROUP, -(-n // GROUP)
        if kind == "gemm":
            x = torch.zeros(m, k, dtype=FP8, device="cuda"), column_major_scales(m, groups, "cuda")
            weight = (
                torch.zeros(n, k, dtype=FP8, device="cuda"),
                torch.ones(blocks, groups, device="cuda"),
            )
            gemm.dense(x, weight, sms)
            continue
        stacked = (
            torch.zeros(experts, n, k, dtype=FP8, device="cuda"),
            torch.ones(experts, blocks, groups, device="cuda"),
        )
        if kind == "grouped_gemm_contiguous":
            x = torch.zeros(m, k, dtype=FP8, device="cuda"), column_major_scales(m, groups, "cuda")
            expert_of = torch.zeros(m, dtype=torch.int32, device="cuda")
            gemm.contiguous(x, stacked, expert_of, sms)
        else:
            scales = torch.ones(experts, groups, masked_rows, device="cuda").transpose(1, 2)
            x = torch.zeros(experts, masked_rows, k, dtype=FP8, device="cuda"), scales
            counts = torch.full((experts,), min(m, masked_rows), dtype=torch.int32, device="cuda")
            gemm.masked(x, stacked, counts, m, sms)
        torch.cuda.synchronize()
        del stacked, x
