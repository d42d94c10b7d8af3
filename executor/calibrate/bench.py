"""A calibration on the GPUs of this machine: compiles ahead, starts a process for each GPU, measures."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

from executor.calibrate.cases import gemms_of
from executor.calibrate.clocks import nvml_reader
from executor.calibrate.compile import compile_all
from executor.calibrate.plan import PREFILL_TOKENS, Task, plan
from executor.calibrate.run import Progress, calibrate
from executor.calibrate.store import Record, Store
from executor.calibrate.triton_plan import triton_plan
from executor.job import GpuSet
from executor.kernel_set import ExecutorError, PeerLost

# A task may take this long before its rank counts as stuck: a GEMM that was not compiled ahead is
# compiled where it is first called.
STUCK_S = 90.0
MOST_SMS = 32


@dataclass(frozen=True)
class Options:
    """What to calibrate: records file, GPUs, scenarios by phase, time, seed of weights, kernel set, the
    profile of the machine ("": the scenarios'). DeepGEMM's kernels are compiled ahead unless its cache
    holds them already."""

    records: Path
    ranks: int
    scenarios: Mapping[str, str]
    minutes: float
    quick: bool = False
    seed: int = 0
    compile_ahead: bool = True
    kernels: GpuSet = "production"
    hardware: str = ""


def tasks_of(options: Options) -> tuple[Task, ...]:
    """The plan of the kernel set."""
    made = plan if options.kernels == "production" else triton_plan
    return made(quick=options.quick, ranks=options.ranks)


def calibrate_gpus(options: Options, report: Callable[[Progress], None]) -> tuple[str, ...]:
    """Measure what the records file lacks; names of failed tasks. ExecutorError when a rank is lost:
    what was measured is in the file, and the next call goes on from there."""
    began = time.monotonic()
    tasks = tasks_of(options)
    store = Store(options.records)
    missing = [task for task in tasks if task.name not in store.done]
    problems: tuple[str, ...] = ()
    if options.compile_ahead and missing and options.kernels == "production":
        report(Progress(0, len(tasks), "compiling GEMMs ahead"))
        jobs = gemms_of(missing, options.scenarios, options.ranks, options.hardware)
        problems = compile_all(jobs, options.ranks) if jobs else ()
    left = options.minutes - (time.monotonic() - began) / 60.0
    return (*problems, *_ranks(options, left, report))


def _ranks(options: Options, minutes: float, report: Callable[[Progress], None]) -> tuple[str, ...]:
    context = multiprocessing.get_context("spawn")
    messages: Queue[Any] = context.Queue()
    port = _free_port()
    processes = [
        context.Process(target=run_rank, args=(rank, options, minutes, port, messages))
        for rank in range(options.ranks)
    ]
    for process in processes:
        process.start()
    failed: tuple[str, ...] = ()
    try:
        while any(process.is_alive() for process in processes):
            try:
                progress: Progress = messages.get(timeout=0.5)
            except Empty:
                _check(processes)
                continue
            failed = progress.failed
            report(progress)
        _check(processes)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
            process.join(timeout=10)
    return failed


def _check(processes: Sequence[BaseProcess]) -> None:
    for rank, process in enumerate(processes):
        if process.exitcode:
            raise PeerLost(
                f"rank {rank} of the calibration ended with status {process.exitcode}; what was "
                "measured is kept, run it again to go on"
            )


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def run_rank(rank: int, options: Options, minutes: float, port: int, messages: Queue[Any]) -> None:
    """One GPU's process: every task that rank 0 chooses."""
    from executor.watchdog import Watchdog

    watchdog = Watchdog(rank, STUCK_S)
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group(
        "gloo", rank=rank, world_size=options.ranks, timeout=timedelta(seconds=120)
    )
    measure = _measurer(rank, options, watchdog.beat)

    def share(value: object) -> object:
        holder = [value]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]

    def bounded(task: Task) -> Sequence[Record]:
        watchdog.beat(task.name)
        return measure(task)

    calibrate(
        tasks_of(options),
        bounded,
        Store(options.records) if rank == 0 else None,
        share=share,
        minutes=minutes,
        report=messages.put if rank == 0 else lambda progress: None,
    )
    watchdog.stop()
    messages.close()
    messages.join_thread()
    # Libraries that spin on peers in their destructors are not waited for.
    os._exit(0)


def _measurer(
    rank: int, options: Options, beat: Callable[[str], None]
) -> Callable[[Task], Sequence[Record]]:
    """What measures each kind of task on this rank."""
    import torch
    import torch.distributed as dist

    from executor.calibrate.besides import BesideBench
    from executor.calibrate.gaps import GapBench
    from executor.calibrate.holds import HoldBench
    from executor.calibrate.layers import LayerBench
    from executor.calibrate.triton_polls import PollBench
    from executor.sessions import Sessions

    properties = torch.cuda.get_device_properties(rank)
    num_sms, reader = properties.multi_processor_count, nvml_reader(rank)
    sessions = Sessions(
        rank,
        options.ranks,
        dist.group.WORLD,
        MOST_SMS,
        options.seed,
        beat,
        options.kernels,
        max(PREFILL_TOKENS),
    )
    scenarios, hardware = dict(options.scenarios), options.hardware
    layers = LayerBench(sessions, scenarios, reader, num_sms, hardware)
    besides = BesideBench(sessions, scenarios, reader, num_sms, hardware)
    holds = HoldBench(sessions, scenarios, num_sms, hardware)
    polls = PollBench(sessions, scenarios, reader, num_sms, hardware)
    gaps = GapBench(rank, options.ranks, options.kernels)
    by_kind = {
        "gaps": gaps.measure,
        "layers": layers.measure,
        "ladder": besides.measure,
        "pairs": besides.measure,
        "hold": holds.measure,
        "polls": polls.measure,
    }

    def measure(task: Task) -> Sequence[Record]:
        try:
            return by_kind[task.kind](task)
        except (torch.cuda.OutOfMemoryError, AssertionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExecutorError(reason) from error

    return measure
