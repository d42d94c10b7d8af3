"""Prefill schedules once the power control has settled: makespans with and without a profiler, and kernels.

    torchrun --nproc-per-node 2 -m benchmarks.layer_modes --out modes.jsonl
    python -m benchmarks.layer_modes modes.jsonl

The second form prints, by GEMM shape, what a kernel takes in each schedule. At the power limit one kernel
takes up to a fifth longer in a schedule that hides its exchanges than in one that waits for them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.ranks import joined
from benchmarks.validation_cases import Group, groups

CASES = Path(__file__).with_name("layer_modes.yaml")
COUNTED, KEPT, WARM_UPS = 10, 5, 2
SETTLE_NS, LEAST, MOST = 1_600_000_000, 10, 60
LIMIT_S = 90.0
LAYERS = 4
SHORTEST_US = 60.0
# A GEMM's name ends with its template arguments, its shape among them.
LONGEST_NAME = 400


class Bench:
    """One rank."""

    def __init__(self) -> None:
        self.rank, self.ranks, self.watchdog = joined(LIMIT_S)
        import torch.distributed as dist

        from executor.calibrate.clocks import nvml_reader
        from executor.sessions import Sessions

        self.reader = nvml_reader(self.rank)
        world, beat = dist.group.WORLD, self.watchdog.beat
        self.sessions = Sessions(self.rank, self.ranks, world, 32, 0, beat, "production", 12288)

    def settled(self, group: Group, schedule: str) -> dict[str, Any]:
        """us of plain and traced runs once power has settled, clock and power of both, and the kernels
        of the last traced runs: [name, us, CTAs]."""
        from executor.calibrate.clocks import Watch
        from executor.execute import execute
        from executor.peers import gathered

        program = group.program(schedule, eager=True)
        session = self.sessions.of(group.deployment)
        kernels = self.sessions.kernel_set(
            session,
            group.batch,
            group.routing,
            layers=LAYERS,
            deadline_s=LIMIT_S,
            poison=False,
        )
        gc.collect()

        def run(times: int) -> list[float]:
            taken = []
            for _ in range(times):
                execute(program, kernels, rank=self.rank)
                taken.append(round(kernels.makespan_ns / 1e3, 1))
            return taken

        run(WARM_UPS)
        count = max(LEAST, min(MOST, -(-SETTLE_NS // max(gathered(kernels.makespan_ns)))))
        gc.disable()
        with Watch(self.reader) as plain:
            makespans = run(count + COUNTED)
        with Watch(self.reader) as traced:
            names, last = kernels_of(lambda: run(count + KEPT), KEPT / (count + KEPT))
        gc.enable()
        states = [watch.state for watch in (plain, traced)]
        return {
            "first": makespans[:KEPT],
            "settled": makespans[count:],
            "states": [[s.mhz, s.watts, s.celsius] if s else None for s in states],
            "names": names,
            "kernels": last,
        }


def kernels_of(
    run: Callable[[], object], share: float
) -> tuple[list[str], list[tuple[int, float, int]]]:
    """Names, and of the last `share` of all kernels that `run` launches (name's index, us, CTAs)."""
    from executor.calibrate.kernel_times import kernel_runs, traced

    kernels = kernel_runs(traced(run, host=False))
    names: dict[str, int] = {}
    kept = [
        (names.setdefault(k.name[:LONGEST_NAME], len(names)), round(k.ns / 1e3, 3), k.ctas)
        for k in kernels[-round(len(kernels) * share) :]
    ]
    return list(names), kept


def measure(out: Path) -> None:
    """Every schedule of every group; rank 0 writes."""
    from benchmarks.validation_run import compile_ahead, write
    from executor.peers import barrier, gathered

    bench, every = Bench(), list(groups(CASES))
    if bench.rank == 0:
        compile_ahead(every, bench.ranks)
    barrier()
    for group in every:
        for schedule in group.schedules:
            bench.watchdog.beat(group.name)
            sides = gathered(bench.settled(group, schedule))
            if bench.rank == 0:
                write(out, {"group": group.name, "schedule": schedule, "ranks": sides})
    bench.watchdog.stop()
    os._exit(0)


def table(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """By kernel (GEMMs by their shape) and CTAs the median us in every schedule."""
    found: dict[str, dict[str, float]] = {}
    for entry in entries:
        side = entry["ranks"][0]
        times: dict[str, list[float]] = {}
        for name, us, ctas in side["kernels"]:
            times.setdefault(f"{short(side['names'][name])} on {ctas}", []).append(us)
        for name, values in times.items():
            if median(values) > SHORTEST_US:
                case = f"{entry['group']}, {entry['schedule']}"
                found.setdefault(name, {})[case] = median(values)
    return [
        f"{name:<44} {us:9.1f}  {case}"
        for name in sorted(found)
        for case, us in found[name].items()
    ]


def short(name: str) -> str:
    """A GEMM by its columns, depth and groups, others by what they are."""
    if "sm90_fp8_gemm" in name:
        sizes: Sequence[str] = re.findall(r"(\d+)u", name.partition("_impl<")[2])
        return f"gemm n {sizes[1]} k {sizes[2]} x {sizes[3]}"
    known = ("sdpa", "notify", "dispatch", "combine")
    return next((word for word in known if word in name), name[:30])


def main() -> None:
    """Measure where torchrun started this, else print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("measured", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("modes.jsonl"))
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        measure(arguments.out)
    if arguments.measured is None:
        parser.error("needs torchrun, or the file of what it measured")
    lines = arguments.measured.read_text(encoding="utf-8").splitlines()
    sys.stdout.write("\n".join(table(json.loads(line) for line in lines)) + "\n")


if __name__ == "__main__":
    main()
