"""Measures the whole-program cases on this machine's GPUs with production kernels.

    torchrun --nproc-per-node 2 -m benchmarks.validation_run --out measured.jsonl

One line a group, written when all its schedules are measured; what the file holds is not measured
again. The schedules of a group are run in turn, so that clock and temperature drift meets all alike.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.production_warm import gemm_shapes, warm
from benchmarks.validation_cases import Group, groups

RANKS = 2
MOST_SMS = 32
WARM_UPS = 2
LIMIT_S = 90.0


def done(path: Path) -> set[str]:
    """Names of the groups that a file holds."""
    if not path.exists():
        return set()
    return {json.loads(line)["group"] for line in path.read_text().splitlines() if line.strip()}


class Bench:
    """One rank's part."""

    def __init__(self, watchdog: Any) -> None:
        import torch
        import torch.distributed as dist

        from executor.calibrate.layers import Sessions

        self.rank = int(os.environ["RANK"])
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo", timeout=timedelta(seconds=600))
        self.watchdog = watchdog
        self.sessions = Sessions(self.rank, RANKS, dist.group.WORLD, MOST_SMS, 0, watchdog.beat)

    def measure(self, group: Group, repeats: int) -> dict[str, Any]:
        """Makespans of the slowest rank [schedule][repeat] in ns, clocks, and spans of one run each."""
        from executor.execute import execute
        from executor.peers import gathered
        from executor.production_setup import kernels_for

        session = self.sessions.of(group.deployment)
        if group.deployment.a2a.mode == "normal":
            session.exchange.set_num_sms(group.deployment.a2a.num_sms)
        programs = {name: group.program(name) for name in group.schedules}
        sets = {}
        for name in programs:
            sets[name] = kernels_for(
                session, group.batch, group.routing, layers=group.layers, deadline_s=LIMIT_S
            )
            self.watchdog.beat(f"{group.name}, {name}")
            execute(group.program(name, eager=True), sets[name], rank=self.rank)
        times: dict[str, list[int]] = {name: [] for name in programs}
        clocks: dict[str, list[Any]] = {name: [] for name in programs}
        gc.collect()
        gc.disable()
        for turn in range(repeats + WARM_UPS):
            for name, program in programs.items():
                execute(program, sets[name], rank=self.rank)
                if turn >= WARM_UPS:
                    times[name].append(sets[name].makespan_ns)
                    samples = session.clocks.samples
                    clocks[name].append(asdict(samples[-1]) if samples else None)
        gc.enable()
        spans = {name: self._spans(group, name, sets[name]) for name in programs}
        sides = gathered((times, spans))
        return {
            "group": group.name,
            "layers": group.layers,
            "makespans_ns": {
                name: [max(t) for t in zip(*(side[0][name] for side in sides), strict=True)]
                for name in programs
            },
            "clocks": clocks,
            "spans": {name: [s for side in sides for s in side[1][name]] for name in programs},
        }

    def _spans(self, group: Group, name: str, kernels: Any) -> list[tuple[str, int, int, int]]:
        """(op, rank, start, end) of an eager run between events."""
        from executor.execute import execute

        kernels.spans = "events"
        timeline = execute(group.program(name, eager=True), kernels, rank=self.rank)
        kernels.spans = "none"
        return [(s.op, s.rank, s.start_ns, s.end_ns) for s in timeline.spans]


def run(arguments: argparse.Namespace) -> None:
    """All groups that are missing, until the time is up; rank 0 decides and writes."""
    from executor.calibrate.gaps import library_versions
    from executor.cuda import device_facts
    from executor.peers import gathered
    from executor.watchdog import Watchdog

    watchdog = Watchdog(int(os.environ["RANK"]), LIMIT_S)
    watchdog.pause("compiling")
    began = time.monotonic()
    wanted = [group for group in groups() if group.name not in done(arguments.out)]
    bench = Bench(watchdog)
    facts = dict(device_facts()) | {"libraries": library_versions()}
    if bench.rank == 0:
        programs = [group.program(name) for group in wanted for name in group.schedules]
        shapes = gemm_shapes(programs, 132, 256)
        print(f"compiling {len(shapes)} GEMMs", flush=True)
        warm(shapes, 256, RANKS)
    for group in wanted:
        if not gathered(time.monotonic() - began < 60 * arguments.minutes)[0]:
            break
        entry = bench.measure(group, arguments.repeats)
        if bench.rank == 0:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry | {"facts": facts}) + "\n")
            medians = {
                name: sorted(values)[len(values) // 2] / 1e3 / group.layers
                for name, values in entry["makespans_ns"].items()
            }
            text = ", ".join(f"{name} {us:.1f}" for name, us in medians.items())
            print(
                f"[{time.monotonic() - began:6.1f} s] {group.name}: us a layer: {text}", flush=True
            )
    watchdog.stop()
    os._exit(0)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("measured.jsonl"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--minutes", type=float, default=4.0)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
