"""Whole MoE layers with production kernels on two GPUs: sequential, baseline, two-batch overlap.

    torchrun --nproc-per-node 2 -m benchmarks.production_layers --phase prefill
    torchrun --nproc-per-node 2 -m benchmarks.production_layers --phase decode
    python -m benchmarks.production_layers --phase prefill --dry-run            no GPU: the plan only

First the results are checked against the plain model, then schedules are measured in turn, so that
clock and temperature drift meets all alike. Everything that decides a loop's length is an argument,
the same on all ranks. Results are written after each step, to the folder named by OUT.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.production_plan import RANKS, Point, check_points, points, programs_of
from executor.calibrate.compile import Job, compile_all, jobs_of
from models.work import EXCHANGE_KINDS
from schedules.program import Program

COMPILE_S = 240.0


@dataclass
class Result:
    """Makespans [repeat] (slowest rank, ns) and clocks of one variant at one point. `exchange_ns` is
    what the exchanges took of one more sequential run, with events around every op (slowest rank)."""

    tokens: int
    comm_sms: int
    label: str
    makespans_ns: list[int] = field(default_factory=list)
    clocks: list[list[dict[str, Any] | None]] = field(default_factory=list)
    exchange_ns: int = 0


class Bench:
    """One rank's run of the whole plan."""

    def __init__(self, arguments: argparse.Namespace, watchdog: Any) -> None:
        import torch
        import torch.distributed as dist

        from executor.cuda import many_hardware_queues
        from executor.production_setup import open_session

        many_hardware_queues()
        self.arguments, self.watchdog = arguments, watchdog
        self.bounded = False
        self.rank = int(os.environ["RANK"])
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo", timeout=timedelta(seconds=600))
        self.points = list(points(arguments))
        self.checks = check_points(arguments.phase, self.points[0])
        self.session = open_session(
            self.points[0].deployment,
            self.rank,
            dist.group.WORLD,
            most_sms=max(point.comm_sms for point in self.points),
            beat=self.beat,
        )
        self.document: dict[str, Any] = {"checks": {}, "results": [], "spans": {}}
        self.began = time.monotonic()

    def beat(self, what: str) -> None:
        """Tell the watchdog; nothing is bounded while kernels are still compiled."""
        (self.watchdog.beat if self.bounded else self.watchdog.pause)(what)

    def unbounded(self, what: str) -> None:
        """From here on the rank may take as long as it likes."""
        self.bounded = False
        self.watchdog.pause(what)

    def say(self, text: str) -> None:
        """A line with the time, from rank 0."""
        if self.rank == 0:
            print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def eager(self, made: Point, layers: int) -> dict[str, Program]:
        """The point's programs without a graph, for compiling."""
        phase = self.arguments.phase
        return programs_of(phase, made.deployment, made.batch, made.routing, layers, "eager")

    def save(self) -> None:
        """Write what there is so far, from rank 0."""
        if self.rank == 0:
            folder = Path(os.environ.get("OUT", "."))
            (folder / f"production_{self.arguments.phase}.json").write_text(
                json.dumps(self.document)
            )

    def check(self, name: str) -> None:
        """One layer of every schedule against the plain model, and against sequential."""
        from executor.peers import gathered
        from executor.production_setup import (
            kernels_for,
            plain_output,
            relative_error,
            run_output,
        )

        self.unbounded(f"check {name}")
        made = self.checks[name]
        batch, routing = made.batch, made.routing
        self.session.exchange.set_num_sms(made.comm_sms)
        errors: dict[str, list[float]] = {}
        first = None
        for label, program in made.programs.items():
            kernels = kernels_for(self.session, batch, routing, layers=1, deadline_s=COMPILE_S)
            run_output(program, kernels, self.rank)
            out = run_output(program, kernels, self.rank)
            start = kernels.inputs["in.hidden"]
            plain = plain_output(self.session, kernels, batch, routing, 1)
            first = out if first is None else first
            pair = (relative_error(out, plain, start), relative_error(out, first, start))
            errors[label] = [max(both) for both in zip(*gathered(pair), strict=True)]
        self.document["checks"][name] = errors
        text = ", ".join(f"{k} {v[0]:.3f} (vs sequential {v[1]:.4f})" for k, v in errors.items())
        self.say(f"check {name}: {text}")
        self.save()

    def measure(self, made: Point) -> None:
        """All variants of a point in turn, `repeats` times after two warm-up rounds."""
        from executor.execute import execute
        from executor.production_setup import kernels_for, require_memory

        self.unbounded(f"warm-up of {made.tokens} tokens, {made.comm_sms} SMs")
        self.session.exchange.set_num_sms(made.comm_sms)
        layers = self.arguments.layers
        sets = {}
        for label, program in made.programs.items():
            require_memory(program, self.rank)
            sets[label] = kernels_for(
                self.session, made.batch, made.routing, layers=layers, deadline_s=COMPILE_S
            )
            if self.arguments.phase == "decode":
                execute(self.eager(made, 1)[label], sets[label], rank=self.rank)
            execute(program, sets[label], rank=self.rank)
        self.bounded = True
        gc.collect()
        gc.disable()
        results = {label: Result(made.tokens, made.comm_sms, label) for label in sets}
        for turn in range(self.arguments.repeats + 2):
            for label, program in made.programs.items():
                execute(program, sets[label], rank=self.rank)
                if turn >= 2:
                    results[label].makespans_ns.append(sets[label].makespan_ns)
                    samples = self.session.clocks.samples
                    results[label].clocks.append([asdict(samples[-1]) if samples else None])
        gc.enable()
        if self.arguments.phase == "prefill":
            kernels = sets["sequential"]
            kernels.spans = "events"
            spans = execute(made.programs["sequential"], kernels, rank=self.rank).spans
            took = sum(span.duration_ns for span in spans if span.kind in EXCHANGE_KINDS)
            results["sequential"].exchange_ns = took
        self._merge(results)

    def _merge(self, results: dict[str, Result]) -> None:
        from executor.peers import gathered

        sides = gathered(results)
        for label, mine in sides[0].items():
            others = [side[label] for side in sides]
            slowest = [max(times) for times in zip(*(o.makespans_ns for o in others), strict=True)]
            clocks = [
                list(chain.from_iterable(turn))
                for turn in zip(*(o.clocks for o in others), strict=True)
            ]
            took = max(other.exchange_ns for other in others)
            merged = replace(mine, makespans_ns=slowest, clocks=clocks, exchange_ns=took)
            self.document["results"].append(asdict(merged))
            self.say(line(merged, self.document["results"], self.arguments.layers))
        self.save()

    def trace(self, made: Point, label: str, layers: int) -> None:
        """Spans from events of one run, and a profiler trace of another."""
        import torch

        from executor.execute import execute
        from executor.peers import gathered
        from executor.production_setup import kernels_for

        self.unbounded("profiling")
        self.session.exchange.set_num_sms(made.comm_sms)
        program = programs_of(
            self.arguments.phase, made.deployment, made.batch, made.routing, layers
        )[label]
        kernels = kernels_for(self.session, made.batch, made.routing, layers=layers)
        if self.arguments.phase == "decode":
            execute(self.eager(made, 1)[label], kernels, rank=self.rank)
        else:
            kernels.spans = "events"
            execute(program, kernels, rank=self.rank)
            spans = execute(program, kernels, rank=self.rank).spans
            key = f"{label}, {made.tokens} tokens, {made.comm_sms} SMs"
            sides = gathered([asdict(span) for span in spans])
            self.document["spans"][key] = [span for side in sides for span in side]
        kernels.spans, kernels.annotate = "none", True
        execute(program, kernels, rank=self.rank)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            execute(program, kernels, rank=self.rank)
        if self.rank == 0:
            folder = Path(os.environ.get("OUT", "."))
            name = f"trace_{self.arguments.phase}_{label.replace(' ', '_')}.json.gz"
            profile.export_chrome_trace(str(folder / name))
        self.say(f"traced {label}, {layers} layers of {made.tokens} tokens")
        self.save()


def line(result: Result, results: Sequence[dict[str, Any]], layers: int) -> str:
    """One row: the median of a layer with its spread, and against sequential."""
    times = sorted(result.makespans_ns)
    reference = next(
        r["makespans_ns"]
        for r in results
        if r["label"] == "sequential"
        and (r["tokens"], r["comm_sms"]) == (result.tokens, result.comm_sms)
    )
    gain = median(times) / median(reference) - 1
    samples = [s for turn in result.clocks for s in turn if s is not None]
    clock = median(s["sm_mhz"] for s in samples) if samples else 0
    power = median(s["power_w"] for s in samples) if samples else 0
    share = f"  exchanges {result.exchange_ns / median(times):.0%}" if result.exchange_ns else ""
    unit = 1e3 * layers
    return (
        f"{result.tokens:>6} tokens {result.comm_sms:>3} SMs {result.label:<13}"
        f"{median(times) / unit:>9.1f} us a layer [{times[0] / unit:.1f}, {times[-1] / unit:.1f}]"
        f" {gain:>+7.1%}  {clock:.0f} MHz {power:.0f} W{share}"
    )


def run(arguments: argparse.Namespace) -> None:
    """The whole plan on this rank."""
    import torch

    from executor.cuda import device_facts
    from executor.peers import gathered
    from executor.watchdog import Watchdog

    watchdog = Watchdog(int(os.environ["RANK"]))
    bench = Bench(arguments, watchdog)
    bench.document |= {"facts": dict(device_facts()), "arguments": vars(arguments)}
    bench.document["facts"]["deep_gemm"] = bench.session.gemm.version
    everything = [*bench.points, *bench.checks.values()]
    if bench.rank == 0 and arguments.warm:
        jobs = gemms(everything)
        bench.say(f"compiling {len(jobs)} GEMMs")
        for problem in compile_all(jobs, RANKS):
            bench.say(problem)
    gathered(None)
    bench.say("compiled")
    bench.check("even")
    for made in bench.points:
        bench.measure(made)
        bench.say(f"memory reserved {torch.cuda.memory_reserved() / 2**30:.1f} GiB")
    for label in ("sequential", "tbo") if arguments.trace else ():
        bench.trace(
            bench.points[-1 if arguments.phase == "decode" else arguments.trace_at], label, 2
        )
    for name in ("uneven", "one expert"):
        bench.check(name)
    for result in bench.document["results"]:
        bench.say(line(Result(**result), bench.document["results"], arguments.layers))
    watchdog.stop()
    os._exit(0)


def gemms(made: Iterable[Point]) -> tuple[Job, ...]:
    """Every GEMM of all points once."""
    jobs: dict[Job, None] = {}
    for one in made:
        rows = RANKS * one.deployment.a2a.max_dispatch_tokens_per_rank
        jobs |= dict.fromkeys(jobs_of(one.programs.values(), one.batch, one.routing, rows))
    return tuple(jobs)


def dry_run(arguments: argparse.Namespace) -> None:
    """Build everything and print the plan."""
    made = list(points(arguments))
    programs = [program for one in made for program in one.programs.values()]
    for one in made:
        counts = {label: len(program.classes[0].ops) for label, program in one.programs.items()}
        print(f"{one.tokens} tokens, {one.comm_sms} SMs: ops {counts}")
    runs = len(programs) * (arguments.repeats + 3)
    print(f"{len(programs)} programs, {runs} runs, {len(gemms(made))} GEMMs to compile")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--phase", choices=("prefill", "decode"), default="prefill")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--comm-sms", type=int, nargs="+", default=[8, 12, 20, 32])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--trace-at", type=int, default=-4, help="index of the point to trace")
    parser.add_argument("--no-trace", dest="trace", action="store_false")
    parser.add_argument("--no-warm", dest="warm", action="store_false")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    arguments.tokens = arguments.tokens or (
        [4096, 8192] if arguments.phase == "prefill" else [64, 128]
    )
    (dry_run if arguments.dry_run else run)(arguments)


if __name__ == "__main__":
    main()
