"""Layers in sequence on the production kernels: the time of every kernel at the power of a layer."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import torch

from executor.calibrate.cases import LAYERS, Case, case_of
from executor.calibrate.clocks import ClockState, Reader, Watch
from executor.calibrate.kernel_times import Runs, runs_by_range, traced
from executor.calibrate.layer_points import (
    CALL_PARTS,
    GRAPH_SAVES_NS,
    Calls,
    launch_gap_ns,
    launched_nothing,
    launches_by_op,
    period_ns,
    point_records,
    run_ns,
    slowest_rank,
    times_by_op,
    without_peers,
)
from executor.calibrate.plan import Task
from executor.calibrate.store import Record
from executor.execute import execute
from executor.kernel_set import KernelSet
from executor.peers import gathered
from executor.production import Production
from executor.production_setup import Session
from executor.sessions import Sessions
from executor.small_kernels import quantise
from schedules.program import Op, Program

WARM_UPS = 2
REPEATS = 10
CALLS = 8
# The GPU's power control and the host's caches settle while a program is repeated; only then is
# anything measured. Small programs draw little power. An H200 lowers its clock after some 0.8 s above
# its power limit, too far at first.
SETTLE_NS = 1_600_000_000
SETTLE_SMALL_NS = 300_000_000
LARGE_TOKENS = 3000
LEAST_RUNS, MOST_RUNS = 6, 60
# A GEMM that was not compiled ahead is compiled by its first call.
DEADLINE_S = 60.0


@dataclass
class LayerBench:
    """Measures `layers` tasks on this rank; every rank returns the same records' times, rank 0's count."""

    sessions: Sessions
    scenarios: Mapping[str, str]
    reader: Reader | None
    num_sms: int
    hardware: str = ""

    def measure(self, task: Task) -> Sequence[Record]:
        """Times alone of all kernels of one size, host costs of their launches, footprints."""
        rank, ranks = self.sessions.rank, self.sessions.ranks
        case = case_of(task, self.scenarios, ranks, self.hardware)
        session = self.sessions.of(case.deployment)
        kernels = self.sessions.kernel_set(
            session,
            case.batch,
            case.routing,
            layers=LAYERS,
            deadline_s=DEADLINE_S,
            poison=False,
        )
        gc.collect()
        for _ in range(WARM_UPS):
            began = time.perf_counter_ns()
            execute(case.program, kernels, rank=rank)
            took = time.perf_counter_ns() - began
        runs_each = settling_runs(max(gathered(took)), max(case.batch.tokens))
        gc.disable()
        timers = [timed_run(case.program, kernels, rank) for _ in range(runs_each)]
        gc.enable()
        host = host_costs(timers, calls=not kernels.walks_calls)
        if case.deployment.a2a.mode == "normal" and not kernels.walks_calls:
            host += dispatch_call(session, case)
            for _ in range(LEAST_RUNS):
                execute(case.program, kernels, rank=rank)
        with Watch(self.reader) as watch:
            settling = runs_each if max(case.batch.tokens) > LARGE_TOKENS else REPEATS // 2
            runs = self._profiled(case, kernels, settling)
        calls = {} if kernels.walks_calls else CALL_PARTS
        return self._records(case, runs, watch.state, calls) + host

    def _profiled(self, case: Case, kernels: Production, settling: int) -> Runs:
        rank = self.sessions.rank
        kernels.annotate = True

        def repeat() -> None:
            for _ in range(settling + REPEATS // 2):
                execute(case.program, kernels, rank=rank)

        names = [op.name for op in case.program.launches(rank)]
        runs = runs_by_range(traced(repeat), names)
        # The profiler's start is a pause, after which the GPU settles again.
        return {name: repeats[settling:] for name, repeats in runs.items()}

    def _records(
        self, case: Case, runs: Runs, state: ClockState | None, calls: Calls
    ) -> list[Record]:
        ops = case.ops(self.sessions.rank)
        gap = launch_gap_ns(runs)
        graphs = case.batch.phase == "decode"
        times = times_by_op(runs, ops, max(0.0, gap - GRAPH_SAVES_NS) if graphs else gap, calls)
        mine = (times, state, run_ns(runs), period_ns(runs))
        every, states, taken, periods = zip(*gathered(mine), strict=True)
        count = max(len(repeats) for repeats in runs.values())
        slow = slowest_rank(every, ops)
        alone, clocks = without_peers(every[slow], every, ops), state_record(states[slow])
        ops = case.ops(slow)
        return [
            {"what": "trace_gap", "ns": round(gap, 1)},
            {
                "what": "run",
                "ns": round(max(taken)),
                "period_ns": round(max(periods)),
                "count": count,
            },
            *point_records(alone, ops, self.num_sms, clocks, launches_by_op(runs, ops, calls)),
            *(() if calls else launched_nothing(runs, ops)),
        ]


def state_record(state: ClockState | None) -> dict[str, Any]:
    """Clock and power as keys of a record."""
    if state is None:
        return {}
    kept = asdict(state)
    return {name: kept[name] for name in ("mhz", "watts", "throttled", "others")}


def settling_runs(run_ns: int, tokens: int) -> int:
    """How often a program is repeated before it is measured."""
    wanted = SETTLE_NS if tokens > LARGE_TOKENS else SETTLE_SMALL_NS
    return max(LEAST_RUNS, min(MOST_RUNS, -(-wanted // run_ns)))


def timed_run(program: Program, kernels: Production, rank: int) -> HostTimer:
    """One run with the host's times."""
    timer = HostTimer(kernels)
    execute(program, timer, rank=rank)
    return timer


def host_costs(runs: Sequence[HostTimer], *, calls: bool) -> list[Record]:
    """What a launch cost the host by kind of work: the mean of a run, since a run takes the sum of its
    launches, and the median of the later half of the runs. Where an exchange is one of a library's
    `calls`, one that waits for the peers' counts is left out here and timed by itself."""
    means: dict[str, list[float]] = {}
    for timer in runs[len(runs) // 2 :]:
        for name, values in timer.by_kind(calls=calls).items():
            means.setdefault(name, []).append(fmean(values))
    return [
        {"what": "host", "class": name, "ns": round(median(values))}
        for name, values in sorted(means.items())
    ]


def dispatch_call(session: Session, case: Case) -> list[Record]:
    """Host time of a whole normal-mode dispatch on an idle GPU, which answers the count wait at once."""
    rank = session.rank
    ids = torch.as_tensor(case.routing.ids[rank]).to(device="cuda", dtype=torch.int64)
    x = torch.randn(ids.shape[0], case.deployment.model.hidden_size, device="cuda")
    packed = quantise(x.to(torch.bfloat16), column_major=False)
    weights = torch.rand(ids.shape, dtype=torch.float32, device="cuda")
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        gathered(None)
        began = time.perf_counter_ns()
        session.exchange.dispatch(packed, ids.contiguous(), weights, on_comm=False)
        times.append(time.perf_counter_ns() - began)
    torch.cuda.synchronize()
    return [{"what": "host", "class": "dispatch_call", "ns": sorted(times)[CALLS // 4]}]


class HostTimer:
    """A kernel set that passes every call on, and notes how long launches and events kept the host, from
    the end of one to the end of the next: what lies between belongs to the next, but for waits."""

    def __init__(self, kernels: KernelSet) -> None:
        self._kernels = kernels
        self._left_ns: int | None = None
        self.launches: list[tuple[Op, int]] = []
        self.events: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def launch(self, op: Op) -> None:
        """Launch and note."""
        began = time.perf_counter_ns()
        self._kernels.launch(op)
        self.launches.append((op, self._spent(began)))

    def record(self, event: str, stream: str) -> None:
        """Record and note."""
        began = time.perf_counter_ns()
        self._kernels.record(event, stream)
        self.events.append(self._spent(began))

    def host_wait(self, event: str) -> None:
        """Wait; what comes next begins afterwards."""
        self._kernels.host_wait(event)
        self._left_ns = None

    def by_kind(self, *, calls: bool) -> dict[str, list[int]]:
        """ns of each launch by kind of work, and of each event; see `host_costs`."""
        found: dict[str, list[int]] = {"event": self.events} if self.events else {}
        for op, ns in self.launches:
            if calls and (op.work.kind == "layout" or _waits(op)):
                continue
            found.setdefault(op.work.kind, []).append(ns)
        return found

    def _spent(self, began: int) -> int:
        since, self._left_ns = self._left_ns, time.perf_counter_ns()
        return self._left_ns - (began if since is None else since)


def _waits(op: Op) -> bool:
    """Whether a library's call for this op waits for the peers' counts."""
    return op.role in ("whole", "notify") and op.work.kind != "combine"
