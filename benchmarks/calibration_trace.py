"""Uncapped loops kernel by kernel: a profiler's trace of both ranks, and the engine's timeline beside it.

    torchrun --nproc-per-node 2 -m benchmarks.calibration_trace measure trace.json
    python -m benchmarks.calibration_trace compare benchmarks/data/calibration_trace_h200_2x.json

One stream repeats a compute kernel of the calibration, another one of DeepEP's exchanges, ten calls each;
the second rank starts with the first or a little later. The comparison gives the engine each loop's time
alone as traced, so that what is left is who gets SMs, who slows whom and how the late CTAs run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pairs_plan import Compute, Pair, loops, parts_of
from models.machine import Cost, Costs, Footprint, Machine
from models.measured import percentile
from models.profile import load_machine
from models.work import Grid, Work
from moe_overlap.gated import gate_machine
from schedules.timeline import Timeline
from simulator import simulate

COUNT, TOKENS, SLEEP_NS = 10, 2048, 6_000_000
LATE_NS = (0, 150_000)
COMPUTES = {
    "attention": Compute("attention", "attn", 1536, 2),
    "dense": Compute("dense", "o_proj", 2048),
    "grouped": Compute("grouped", "gate_up", 256),
}
EXCHANGES = (("combine", 12), ("dispatch", 20))
SCENARIO = "deepseek-v3-h200-ep2-prefill"
PROFILE = "h200-2x-nvlink-measured"
COMPUTE_WORDS, EXCHANGE_WORDS = ("sdpa", "deep_gemm"), ("::combine", "::dispatch")


def case_name(compute: str, exchange: str, sms: int, late_ns: int) -> str:
    """Identity of one pair of loops."""
    return f"{compute}, {exchange} on {sms} SMs, rank 1 {late_ns // 1000} us late"


@dataclass(frozen=True)
class Seen:
    """What both loops of rank 0 did: us of each compute call, and between starts of the exchanges that
    began while compute ran."""

    calls_us: tuple[float, ...]
    gaps_us: tuple[float, ...]


def seen(compute: Sequence[tuple[float, float]], exchange: Sequence[float]) -> Seen:
    """From starts and ends in us of the compute calls, and starts of the exchanges."""
    inside = [start for start in exchange if start < compute[-1][1]]
    return Seen(
        tuple(end - start for start, end in compute), tuple(b - a for a, b in pairwise(inside))
    )


def traced_case(runs: Sequence[Mapping[str, Any]]) -> tuple[Seen, float, float]:
    """Rank 0's loops, and the times alone: the shortest call of each, since none is shorter beside the
    other loop."""
    mine = sorted((run for run in runs if run["rank"] == 0), key=lambda run: float(run["ts"]))
    compute = [run for run in mine if any(word in run["name"] for word in COMPUTE_WORDS)]
    exchange = [
        run
        for run in mine
        if "notify" not in run["name"] and any(word in run["name"] for word in EXCHANGE_WORDS)
    ]
    times = [(float(run["ts"]), float(run["ts"]) + float(run["dur"])) for run in compute]
    alone = [min(float(run["dur"]) for run in side) for side in (compute, exchange)]
    return seen(times, [float(run["ts"]) for run in exchange]), alone[0], alone[1]


@dataclass(frozen=True)
class Scaled:
    """Costs whose kinds of work are scaled to given times alone."""

    below: Costs
    by_kind: Mapping[str, float]

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """See `models.machine.Costs`."""
        cost = self.below.alone(work, grid, sms)
        return replace(cost, ns=round(cost.ns * self.by_kind.get(work.kind, 1.0)))

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """See `models.machine.Costs`."""
        return self.below.footprint(work, grid)


def simulated(pair: Pair, machine: Machine, late_ns: int, alone_us: tuple[float, float]) -> Seen:
    """The engine's loops, with these times alone of a compute call and of an exchange."""
    parts = parts_of(pair, machine)
    ops = (parts.compute, parts.exchange[0][1])
    scales = {}
    for op, wanted in zip(ops, alone_us, strict=True):
        sms = op.grid.enforced_budget or machine.num_sms
        scales[op.work.kind] = wanted * 1e3 / machine.costs.alone(op.work, op.grid, sms).ns
    # Times as traced are those of the clock that the loops had: no power law on top of them.
    timed = gate_machine(replace(machine, costs=Scaled(machine.costs, scales), power=None))
    program = loops(pair, parts, (COUNT, COUNT), late_ns)
    return of_timeline(simulate(program, timed, fold=False, counters=False))


def of_timeline(timeline: Timeline) -> Seen:
    """Rank 0's loops of a timeline."""
    spans = {span.op: span for span in timeline.spans if span.rank == 0}
    compute = [spans[f"c{i}"] for i in range(COUNT)]
    return seen(
        [(span.start_ns / 1e3, span.end_ns / 1e3) for span in compute],
        [spans[f"x{i}"].start_ns / 1e3 for i in range(COUNT)],
    )


def compare(path: Path) -> None:
    """A row a case: compute calls and gaps between exchanges, traced and by the engine."""
    runs = json.loads(path.read_text())
    machine = load_machine(PROFILE)
    print("| loops | us a compute call: traced, engine | us from exchange to exchange: the same |")
    print("| --- | --- | --- |")
    errors: list[float] = []
    for compute, exchange, sms, late_ns in cases():
        name = case_name(compute, exchange, sms, late_ns)
        real, *alone = traced_case([run for run in runs if run["case"] == name])
        pair = Pair(COMPUTES[compute], exchange, sms, TOKENS, capped=False)
        mine = simulated(pair, machine, late_ns, (alone[0], alone[1]))
        errors += [abs(a / b - 1) for a, b in zip(mine.calls_us, real.calls_us, strict=True)]
        pairs = ((real.calls_us, mine.calls_us), (real.gaps_us, mine.gaps_us))
        cells = ["; ".join(" ".join(f"{us:.0f}" for us in side) for side in both) for both in pairs]
        print(f"| {name} | {' | '.join(cells)} |")
    print(
        f"\n{len(errors)} compute calls: error median {median(errors):.1%}, "
        f"90th percentile {percentile(errors, 0.9):.1%}"
    )


def cases() -> list[tuple[str, str, int, int]]:
    """Compute kernel, exchange, its SMs, and how late rank 1 starts in ns."""
    return [
        (compute, exchange, sms, late)
        for compute in COMPUTES
        for exchange, sms in EXCHANGES
        for late in LATE_NS
    ]


def measure(path: Path) -> None:
    """Trace every case on this rank's GPU; rank 0 writes the kernels of both ranks."""
    import torch
    import torch.distributed as dist

    from executor.calibrate.bench import MOST_SMS
    from executor.calibrate.kernel_times import traced
    from executor.calibrate.subjects import compute_subject, exchange_subject
    from executor.sessions import Sessions
    from scenarios import load
    from scenarios.resolve import resolve

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    sessions = Sessions(rank, 2, dist.group.WORLD, MOST_SMS, 0, lambda what: None)
    settings = ["parallel.ep=2", "parallel.attention_dp=2"]
    resolved = resolve(load(SCENARIO, [*settings, f"phase.prefill.tokens_per_rank={TOKENS}"]))
    session = sessions.of(resolved.deployment)
    sms_all = torch.cuda.get_device_properties(rank).multi_processor_count
    rows: list[dict[str, Any]] = []
    for compute, name, sms, late in cases():
        subject = compute_subject(session, compute, sms_all, sms_all)
        exchange = exchange_subject(session, resolved.routing, name, sms)
        calls = (subject.call, exchange.call)
        _run(session, calls, late)
        events = traced(lambda both=calls, wait=late: _run(session, both, wait))  # type: ignore[misc]
        rows += _rows(events, case_name(compute, name, sms, late), rank)
    both: list[Any] = [None, None]
    dist.all_gather_object(both, rows)
    if rank == 0:
        path.write_text(json.dumps(both[0] + both[1]))
    sys.stdout.flush()
    # Libraries that spin on peers in their destructors are not waited for.
    os._exit(0)


def _rows(events: Sequence[Mapping[str, Any]], case: str, rank: int) -> list[dict[str, Any]]:
    words = (*COMPUTE_WORDS, *EXCHANGE_WORDS, "notify")
    return [
        {
            "case": case, "rank": rank, "name": event["name"][:60], "ts": round(event["ts"], 1),
            "dur": round(event["dur"], 1),
        }
        for event in events
        if event.get("cat") == "kernel" and any(word in event["name"] for word in words)
    ]  # fmt: skip


def _run(session: Any, calls: tuple[Any, Any], late_ns: int) -> None:
    import torch
    import torch.distributed as dist

    streams = (session.pool.stream("main", 0), session.pool.stream("alt", 0))
    torch.cuda.synchronize()
    dist.barrier()
    session.gate.launch(streams[0], SLEEP_NS + (late_ns if session.rank else 0))
    origin = torch.cuda.Event()
    origin.record(streams[0])
    streams[1].wait_event(origin)
    for call, stream in zip(calls, streams, strict=True):
        with torch.cuda.stream(stream):
            for _ in range(COUNT):
                call()
    torch.cuda.synchronize()


if __name__ == "__main__":
    {"measure": measure, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
