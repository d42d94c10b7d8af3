"""Measures the whole-program cases on this machine's GPUs, with production kernels or ours.

    torchrun --nproc-per-node 2 -m benchmarks.validation_run --out measured.jsonl
    torchrun --nproc-per-node 1 -m benchmarks.validation_run --out measured.jsonl

Each call takes the cases of its number of ranks, unseen ones first. One line a group, written when all
its schedules are measured; what the file holds is not measured again. The schedules of a group are run
in turn, so that clock and temperature drift meets all alike. Then, in the time that is left, overlapped
schedules are run once more under the profiler: how much communication ran beside compute, and every
kernel of the last run, in a file beside (`OUT.traces.jsonl`).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from benchmarks.hidden import compact, hidden, last_run
from benchmarks.ranks import joined
from benchmarks.validation_cases import CASES, UNSEEN, Group, groups

if TYPE_CHECKING:
    from executor.calibrate.kernel_times import Run
    from executor.job import GpuSet
    from executor.watchdog import Watchdog
    from schedules.program import Program

MOST_SMS = 32
WARM_UPS = 2
# Above the power limit the clock falls only after 0.8 s of load, too far, and settles 2 % slower.
SETTLE_S = 2.0
TRACED = 2
LIMIT_S = 90.0


def done(path: Path, what: str) -> set[str]:
    """Names of the groups of which a file holds `makespans_ns`, or `hidden`."""
    if not path.exists():
        return set()
    entries = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {entry["group"] for entry in entries if what in entry}


class Bench:
    """One rank's part."""

    def __init__(
        self, rank: int, ranks: int, watchdog: Watchdog, kernels: GpuSet, most_tokens: int
    ) -> None:
        import torch.distributed as dist

        from benchmarks.sm_clock import SmClock
        from executor.sessions import Sessions

        self.rank, self.ranks, self.watchdog = rank, ranks, watchdog
        self.clock = SmClock()
        world = dist.group.WORLD
        self.sessions = Sessions(
            self.rank, self.ranks, world, MOST_SMS, 0, watchdog.beat, kernels, most_tokens
        )

    def measure(self, group: Group, repeats: int) -> dict[str, Any]:
        """Makespans of the slowest rank [schedule][repeat] in ns, clocks, the speed of the slowest rank's
        host before, after and, where no clock has to settle, between them, and of one run each a host's
        times and all ranks' spans."""
        from executor.execute import execute
        from executor.host_probe import of_slowest, open_prober, settles
        from executor.peers import gathered

        session, sets = self._ready(group, group.schedules)
        self.watchdog.beat(f"{group.name}, the host's probe")
        prober = open_prober(self.sessions, group.deployment, group.batch.phase)
        programs = {name: group.program(name) for name in group.schedules}
        times: dict[str, list[int]] = {name: [] for name in programs}
        clocks: dict[str, list[Any]] = {name: [] for name in programs}
        mhz: dict[str, list[float]] = {name: [] for name in programs}
        gc.collect()
        probes = [prober.probe()]
        gc.disable()

        def turn() -> None:
            for name, program in programs.items():
                execute(program, sets[name], rank=self.rank)

        turns = warm_up(turn, SETTLE_S if settles(group.batch) else 0.0)
        for repeat in range(repeats):
            if repeat and not settles(group.batch):
                probes.append(prober.probe())
            for name, program in programs.items():
                self.clock.start()
                execute(program, sets[name], rank=self.rank)
                mhz[name].append(round(self.clock.mhz(), 1))
                times[name].append(sets[name].makespan_ns)
                samples = session.clocks.samples
                clocks[name].append(asdict(samples[-1]) if samples else None)
        gc.enable()
        slowest = of_slowest((*probes, prober.probe()))
        hosts = {name: self._host(group, name, sets[name]) for name in programs}
        own_spans = {name: self._spans(group, name, sets[name]) for name in programs}
        sides = gathered((times, own_spans, clocks, mhz, hosts))
        spans = {name: [s for side in sides for s in side[1][name]] for name in programs}
        return {
            "group": group.name,
            "layers": group.layers,
            "makespans_ns": {
                name: [max(t) for t in zip(*(side[0][name] for side in sides), strict=True)]
                for name in programs
            },
            "clocks": {name: [side[2][name] for side in sides] for name in programs},
            "host": sides[slowest[-1].rank][4],
            "probe": [dict(probe.ns) for probe in slowest],
            "probe_spread": [probe.spread for probe in slowest],
            "probe_rank": [probe.rank for probe in slowest],
            "warm_ups": turns,
            "sm_mhz": {name: [side[3][name] for side in sides] for name in programs},
            "between_ns": {name: between_ns(found) for name, found in spans.items()},
            "spans": spans,
        }

    def _ready(self, group: Group, schedules: Sequence[str]) -> tuple[Any, dict[str, Any]]:
        """The group's session, and a kernel set for each schedule that has run once without a graph."""
        import torch

        from executor.execute import execute

        session = self.sessions.of(group.deployment)
        # What earlier groups held: the allocator cannot give it back while a graph is captured.
        gc.collect()
        torch.cuda.empty_cache()
        sets = {}
        for name in schedules:
            sets[name] = self.sessions.kernel_set(
                session,
                group.batch,
                group.routing,
                layers=group.layers,
                deadline_s=LIMIT_S,
                poison=False,
            )
            self.watchdog.beat(f"{group.name}, {name}")
            execute(group.program(name, eager=True), sets[name], rank=self.rank)
        return session, sets

    def _host(self, group: Group, name: str, kernels: Any) -> dict[str, int]:
        """Median ns of this rank's host by kind of launch, in one run that launches op by op; without
        calls that wait for the peers' counts."""
        from executor.calibrate.layers import timed_run
        from executor.host_probe import probe_of

        timer = timed_run(group.program(name, eager=True), kernels, self.rank)
        return dict(probe_of([timer], calls=not kernels.walks_calls).ns)

    def _spans(self, group: Group, name: str, kernels: Any) -> list[tuple[str, int, int, int]]:
        """(op, rank, start, end) of an eager run between events."""
        from executor.execute import execute

        kernels.spans = "events"
        timeline = execute(group.program(name, eager=True), kernels, rank=self.rank)
        kernels.spans = "none"
        return [(s.op, s.rank, s.start_ns, s.end_ns) for s in timeline.spans]

    def hide(self, group: Group) -> tuple[dict[str, Any], dict[str, Any]]:
        """Communication and what of it ran beside compute, of every overlapped schedule, mean of the
        ranks, in ns; and every kernel of the last run on each rank."""
        from executor.calibrate.kernel_times import kernel_runs, traced
        from executor.execute import execute
        from executor.peers import gathered

        _, sets = self._ready(group, group.overlapped)
        found: dict[str, tuple[float, float]] = {}
        kept: dict[str, list[Run]] = {}
        for name in group.overlapped:
            program, kernels = group.program(name), sets[name]
            execute(program, kernels, rank=self.rank)

            def run(program: Program = program, kernels: Any = kernels) -> None:
                for _ in range(TRACED):
                    execute(program, kernels, rank=self.rank)

            events = traced(run)
            own = hidden(events, TRACED)
            found[name] = (own.communication_ns, own.hidden_ns)
            kept[name] = last_run(kernel_runs(events))
        sides = gathered(found)
        traces = {"group": group.name} | compact(gathered(kept))
        shares = {
            "group": group.name,
            "hidden": {
                name: [round(mean(side[name][i] for side in sides)) for i in range(2)]
                for name in found
            },
        }
        return shares, traces


def between_ns(spans: Iterable[tuple[str, int, int, int]]) -> list[int]:
    """What launches took each rank where its host is what limits it [rank]: ns from the start of an op
    to the start of the rank's next, summed over a run whose spans (op, rank, start, end) lie between
    events. Steps that touch an exchange wait for the peers and are left out: those from or to an op of
    one, and those in which one ends on another stream."""
    ranks: dict[int, list[tuple[int, int, bool]]] = {}
    for op, rank, start, end in spans:
        meets = not {"dispatch", "combine"}.isdisjoint(op.split("."))
        ranks.setdefault(rank, []).append((start, end, meets))
    return [_without_exchanges(sorted(ranks[rank])) for rank in sorted(ranks)]


def _without_exchanges(ops: Sequence[tuple[int, int, bool]]) -> int:
    """ns from start to start of (start, end, whether of an exchange)."""
    ends = [end for _, end, meets in ops if meets]
    return sum(
        after - before
        for (before, _, left), (after, _, right) in pairwise(ops)
        if not (left or right or any(before < end <= after for end in ends))
    )


def warm_up(
    turn: Callable[[], None], settle_s: float, clock: Callable[[], float] = time.monotonic
) -> int:
    """Makes turns, two at least and until `settle_s` have passed by rank 0's clock; their count."""
    from executor.peers import gathered

    began, turns = clock(), 0
    while True:
        turn()
        turns += 1
        if gathered(turns >= WARM_UPS and clock() - began >= settle_s)[0]:
            return turns


def run(arguments: argparse.Namespace) -> None:
    """All groups that are missing, until the time is up; rank 0 decides and writes."""
    from executor.calibrate.gaps import library_versions
    from executor.cuda import device_facts
    from executor.host_probe import PREFILL_TOKENS
    from executor.peers import barrier

    rank, ranks, watchdog = joined(LIMIT_S)
    began = time.monotonic()
    every = [group for file in arguments.cases for group in groups(file)]
    mine = [group for group in every if group.ranks == ranks and arguments.match in group.name]
    most_tokens = max((max(group.batch.tokens) for group in mine), default=0)
    most_tokens = max(most_tokens, PREFILL_TOKENS)
    bench = Bench(rank, ranks, watchdog, arguments.kernels, most_tokens)
    measured, traced = (done(arguments.out, what) for what in ("makespans_ns", "hidden"))
    wanted = [group for group in mine if group.name not in measured]
    untraced = [group for group in mine if group.overlapped and group.name not in traced]
    facts = dict(device_facts()) | {"libraries": library_versions()}
    facts["kernels"] = arguments.kernels
    if bench.rank == 0 and wanted and arguments.kernels == "production":
        compile_ahead(wanted, bench.ranks)
    barrier()
    for group in wanted:
        if not timely(began, arguments.minutes):
            break
        entry = bench.measure(group, arguments.repeats)
        if bench.rank == 0:
            write(arguments.out, entry | {"facts": facts})
            print(f"[{time.monotonic() - began:6.1f} s] {told(entry)}", flush=True)
    for group in untraced:
        if not timely(began, arguments.minutes + arguments.trace_minutes):
            break
        entry, traces = bench.hide(group)
        if bench.rank == 0:
            write(arguments.out, entry)
            write(arguments.out.with_suffix(".traces.jsonl"), traces)
            print(f"[{time.monotonic() - began:6.1f} s] {told_hidden(entry)}", flush=True)
    watchdog.stop()
    os._exit(0)


def compile_ahead(wanted: Sequence[Group], ranks: int) -> None:
    """Every GEMM of the groups, in many processes."""
    from executor.calibrate.compile import Job, compile_all, jobs_of
    from executor.host_probe import probe_case

    jobs: dict[Job, None] = {}
    for group in wanted:
        programs = [group.program(name) for name in group.schedules]
        rows = ranks * group.deployment.a2a.max_dispatch_tokens_per_rank
        jobs |= dict.fromkeys(jobs_of(programs, group.batch, group.routing, rows))
        probe = probe_case(group.deployment, group.batch.phase)
        jobs |= dict.fromkeys(jobs_of([probe.program], probe.batch, probe.routing, rows))
    print(f"compiling {len(jobs)} GEMMs", flush=True)
    for problem in compile_all(tuple(jobs), ranks):
        print(problem, flush=True)


def timely(began: float, minutes: float) -> bool:
    """Whether rank 0 has time left."""
    from executor.peers import gathered

    return bool(gathered(time.monotonic() - began < 60 * minutes)[0])


def write(path: Path, entry: dict[str, Any]) -> None:
    """Append a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def told(entry: dict[str, Any]) -> str:
    """Medians, us a layer, and the mean clock."""
    texts = [
        f"{name} {median(times) / 1e3 / entry['layers']:.1f} ({median(entry['sm_mhz'][name][0]):.0f} MHz)"
        for name, times in entry["makespans_ns"].items()
    ]
    return f"{entry['group']}: us a layer: {', '.join(texts)}"


def told_hidden(entry: dict[str, Any]) -> str:
    """Shares of communication that ran beside compute."""
    texts = [
        f"{name} {own / max(1, all_ns):.0%}" for name, (all_ns, own) in entry["hidden"].items()
    ]
    return f"{entry['group']}: communication beside compute: {', '.join(texts)}"


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("measured.jsonl"))
    parser.add_argument("--cases", type=Path, nargs="+", default=[UNSEEN, CASES])
    parser.add_argument("--kernels", choices=("production", "triton"), default="production")
    parser.add_argument("--match", default="", help="only groups whose name holds this")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--trace-minutes", type=float, default=1.0)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
