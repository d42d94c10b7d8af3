"""Four and eight ranks: every schedule gives the plain model's output, in one process and over gloo."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from multiprocessing.queues import Queue
from typing import Any

import pytest

from executor.job import Job, Measured
from executor.reference_run import Run, run_threads, worst_error
from executor.run_sets import run_job
from tests.executor.layer_programs import Shape, case, deployment, program
from tests.executor.test_gloo import free_port

pytestmark = pytest.mark.torch

SCHEDULES = {
    "decode": ("sequential", "baseline", "sbo.v1", "sbo.v2", "tbo"),
    "prefill": ("sequential", "baseline", "tbo"),
}
OVER_GLOO = ("decode/sequential", "decode/sbo.v1", "decode/tbo", "prefill/baseline", "prefill/tbo")


def shape(phase: str, ranks: int, *, uneven: bool) -> Shape:
    """As many tokens on every rank, or another number on each and none on the last."""
    new: list[tuple[int, ...]] = []
    for rank in range(ranks):
        if uneven and rank == ranks - 1:
            new.append(())
        elif phase == "decode":
            new.append((1,) * (2 + rank % 4 if uneven else 4))
        else:
            new.append((3 + rank, 2) if uneven else (4, 3))
    prefix = tuple(tuple((rank + i) % 3 for i in range(len(n))) for rank, n in enumerate(new))
    return Shape(phase, tuple(new), prefix)


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_schedules_equal_the_plain_model(ranks: int, uneven: bool, phase: str) -> None:
    made = case(shape(phase, ranks, uneven=uneven), 3)
    expected = made.expected()
    for schedule in SCHEDULES[phase]:
        results = run_threads(made, program(schedule, made), Run("random", 3))
        assert len(results) == ranks
        assert worst_error([result.output for result in results], expected) < 1e-10, schedule


def job(name: str, ranks: int) -> Job:
    phase, schedule = name.split("/")
    made = case(shape(phase, ranks, uneven=True), 5)
    made_for = deployment(made)
    return Job(
        program(schedule, made),
        made_for,
        made.batch,
        made.routing,
        made.layers,
        "reference",
        seed=5,
    )


def worker(rank: int, ranks: int, port: int, results: Queue[tuple[int, Any]]) -> None:
    import torch

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    try:
        measured = [run_job(job(name, ranks), rank, None) for name in OVER_GLOO]
        results.put((rank, measured))
    except Exception:  # noqa: BLE001 - told to the test
        results.put((rank, traceback.format_exc()))
    results.close()
    results.join_thread()
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_of_their_own_processes_agree_over_gloo(ranks: int) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    results: Queue[tuple[int, Any]] = context.Queue()
    port = free_port()
    workers = [
        context.Process(target=worker, args=(rank, ranks, port, results)) for rank in range(ranks)
    ]
    for process in workers:
        process.start()
    try:
        found = dict(results.get(timeout=240) for _ in workers)
    finally:
        for process in workers:
            process.kill()
            process.join(20)
    for rank in range(ranks):
        told = found[rank]
        assert isinstance(told, list), told
        for name, measured in zip(OVER_GLOO, told, strict=True):
            assert isinstance(measured, Measured)
            assert measured.error is not None and measured.error < 1e-10, name
            assert {span.rank for span in measured.timeline.spans} == set(range(ranks))
