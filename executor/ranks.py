"""Starts the ranks of a job on this machine, or takes part as one rank under torchrun."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from executor.execute import execute
from executor.job import ON_GPU, Job, Measured, joined
from executor.kernel_set import ExecutorError, MissingKernel, MissingResource, PeerLost
from executor.recording import Recording
from executor.watchdog import Watchdog, end_with, last_began

GROUP_TIMEOUT = timedelta(seconds=300)
POLL_S = 0.5
SURVIVOR_S = 10.0


def under_torchrun() -> bool:
    """Whether this process is a rank that a launcher started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run(job: Job) -> Measured | None:
    """Run a job on all its ranks. Under a launcher this process is one of them, and only rank 0 gets
    the result. Raises ExecutorError: MissingResource before anything starts, PeerLost when a rank
    ends early."""
    if job.kernels == "recording":
        return _recorded(job)
    require(job)
    if under_torchrun():
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if world_size != job.deployment.ep_size:
            raise MissingResource(
                f"the scenario has {job.deployment.ep_size} ranks; {world_size} were started"
            )
        measured = _as_rank(job, rank, world_size)
        return measured if rank == 0 else None
    return _start(job)


def require(job: Job) -> None:
    """MissingResource unless this machine has what the job needs: torch, GPUs, libraries."""
    try:
        import torch
    except ImportError:
        raise MissingResource(
            "running needs torch: pip install 'moe-overlap[executor]'; `run --kernels recording` needs none"
        ) from None
    attention = job.deployment.model.attention.kind
    if attention != "mla":
        raise MissingKernel(
            f"the {job.kernels} set has kernels for mla attention, not {attention!r}"
        )
    if job.kernels not in ON_GPU:
        return
    _require_kernels(job)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", job.deployment.ep_size))
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen < local:
        raise MissingResource(
            f"the {job.kernels} set needs {local} CUDA GPUs; torch sees {seen}. "
            "`run --kernels reference` needs none"
        )
    if job.kernels == "production":
        from executor.libraries import load_library

        load_library("deep_gemm", "the production set's GEMMs")
        load_library("deep_ep", "the production set's exchanges")


def _require_kernels(job: Job) -> None:
    """MissingKernel for what the production set would run wrongly or not at all."""
    from executor.production import LAUNCHERS, check_kernels

    if job.kernels != "production":
        return
    if job.deployment.fusion.slots:
        raise MissingKernel(
            f"the production set has no kernels for a fused shared expert ({job.program.name}); "
            "`run --kernels triton` and `--kernels reference` have"
        )
    check_kernels(job.program, LAUNCHERS, signals=False)


def _require_machine(job: Job, *, first_rank: int = 0) -> None:
    """MissingResource unless the GPUs of this machine hold the job and reach each other. Asks the
    driver, so that it comes after anything that has to be forked."""
    if job.kernels not in ON_GPU:
        return
    import torch

    from executor.room import require_peers, require_room

    local = int(os.environ.get("LOCAL_WORLD_SIZE", job.deployment.ep_size))
    totals = [torch.cuda.get_device_properties(gpu).total_memory for gpu in range(local)]
    require_room(job, totals, first_rank=first_rank)
    if job.kernels == "production":
        require_peers(local, torch.cuda.can_device_access_peer)


def _recorded(job: Job) -> Measured:
    """All ranks' host calls, logged in this process; nothing runs and torch is not needed."""
    timelines = [execute(job.program, Recording(), rank=rank) for rank in job.program.ranks]
    return Measured(joined(timelines), (max(t.makespan_ns for t in timelines),))


def _as_rank(job: Job, rank: int, world_size: int, told: Path | None = None) -> Measured:
    watchdog = None
    if job.kernels in ON_GPU:
        watchdog = Watchdog(rank, told=told)
        if "LOCAL_WORLD_SIZE" in os.environ:
            _require_machine(job, first_rank=rank - int(os.environ["LOCAL_RANK"]))
    if job.kernels != "recording":
        import torch
        import torch.distributed as dist

        if job.kernels in ON_GPU:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
        if not dist.is_initialized():
            dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=GROUP_TIMEOUT)
    from executor.run_sets import run_job

    return run_job(job, rank, watchdog)


def _start(job: Job) -> Measured:
    """A process a rank; the first to fail ends the others. The job travels in a file: a process that
    dies before it has read a large argument from its pipe would block this one for ever."""
    _require_machine(job)
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    world_size, port = job.deployment.ep_size, _free_port()
    with tempfile.TemporaryDirectory() as folder:
        parcel = Path(folder) / "job"
        parcel.write_bytes(pickle.dumps(job))
        processes = [
            context.Process(
                target=_rank_process, args=(parcel, rank, world_size, port, results, os.getpid())
            )
            for rank in range(world_size)
        ]
        try:
            for process in processes:
                process.start()
            return _await(processes, results, Path(folder))
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                if process.pid is not None:
                    process.join(10)


def _await(processes: Sequence[BaseProcess], results: Any, folder: Path) -> Measured:
    while True:
        try:
            outcome = results.get(timeout=POLL_S)
        except queue.Empty:
            for rank, process in enumerate(processes):
                if process.exitcode not in (None, 0):
                    seen = _seen(processes, results, folder)
                    raise PeerLost(
                        f"rank {rank} ended with status {process.exitcode}; {seen}"
                    ) from None
            continue
        if isinstance(outcome, ExecutorError):
            raise outcome
        return outcome  # type: ignore[no-any-return]


def _seen(processes: Sequence[BaseProcess], results: Any, folder: Path) -> str:
    """Where the run was when a rank ended: what each rank last began, or what a survivor says soon."""
    began = [(rank, last_began(_told(folder, rank))) for rank in range(len(processes))]
    if texts := [f"rank {rank} was in {what}" for rank, what in began if what]:
        return ", ".join(texts)
    limit = time.monotonic() + SURVIVOR_S
    while time.monotonic() < limit:
        alive = any(process.is_alive() for process in processes)
        try:
            outcome = results.get(timeout=POLL_S)
        except queue.Empty:
            if not alive:
                break
            continue
        if isinstance(outcome, ExecutorError):
            return str(outcome)
    return "the run is over"


def _told(folder: Path, rank: int) -> Path:
    return folder / f"began.{rank}"


def _rank_process(
    parcel: Path, rank: int, world_size: int, port: int, results: Any, parent: int
) -> None:
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends all ranks
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    job: Job = pickle.loads(parcel.read_bytes())
    outcome: Measured | ExecutorError | None
    try:
        outcome = _as_rank(job, rank, world_size, _told(parcel.parent, rank))
    except ExecutorError as error:
        outcome = error
    if rank == 0 or isinstance(outcome, ExecutorError):
        results.put(outcome)
    results.close()
    results.join_thread()
    os._exit(0)  # the libraries' own clean-up at exit aborts once a peer is gone


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
