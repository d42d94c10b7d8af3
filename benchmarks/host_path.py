"""What a launch costs the host, by kind of kernel, in programs that are launched op by op.

    torchrun --nproc-per-node 2 -m benchmarks.host_path

Four layers of a prefill on the production kernels, in sequence and as two-batch overlap. The first rank
prints the median us of a launch by kind, then a run's launches in all and its makespan; a dispatch waits
for the peers' counts, and is left out of the sum.
"""

from __future__ import annotations

import gc
import os
import sys
from statistics import median
from typing import Any

from benchmarks.ranks import joined
from benchmarks.validation_cases import Group
from benchmarks.validation_run import compile_ahead
from executor.calibrate.cases import DEFAULT_SCENARIOS, case_of
from executor.calibrate.plan import task

CASES = (("sequential", 768), ("tbo", 1536))
LAYERS, WARM_UPS, RUNS, NUM_SMS = 4, 10, 20, 16
LIMIT_S = 90.0
Table = dict[str, list[int]]


def group_of(schedule: str, tokens: int, ranks: int) -> Group:
    """One schedule of a prefill with so many tokens a rank."""
    asked = task("layers", phase="prefill", tokens=tokens, num_sms=NUM_SMS, cap=0)
    case = case_of(asked, DEFAULT_SCENARIOS, ranks)
    return Group("", case.deployment, case.batch, case.routing, "eager", (schedule,), LAYERS)


def measured(sessions: Any, group: Group, rank: int) -> tuple[Table, list[int]]:
    """ns of all launches by kind, and makespans in ns, of runs that follow warm-ups."""
    from executor.calibrate.layers import timed_run
    from executor.execute import execute

    (schedule,) = group.schedules
    program, session = group.program(schedule), sessions.of(group.deployment)
    kernels = sessions.kernel_set(
        session, group.batch, group.routing, layers=LAYERS, deadline_s=LIMIT_S, poison=False
    )
    for _ in range(WARM_UPS):
        execute(program, kernels, rank=rank)
    gc.collect()
    gc.disable()
    table: Table = {}
    makespans = []
    for _ in range(RUNS):
        for op, ns in timed_run(program, kernels, rank).launches:
            table.setdefault(op.work.kind, []).append(ns)
        makespans.append(kernels.makespan_ns)
    gc.enable()
    return table, makespans


def lines(name: str, table: Table, makespans: list[int]) -> str:
    """A line for each kind, dearest first, and one of sums."""
    medians = {kind: median(values) / 1e3 for kind, values in table.items()}
    shown = [
        f"{name:16} {kind:20} {us:7.1f} us {len(table[kind]) // RUNS:4} launches"
        for kind, us in sorted(medians.items(), key=lambda item: -item[1])
    ]
    total = sum(us * len(table[kind]) / RUNS for kind, us in medians.items() if kind != "dispatch")
    shown.append(f"{name:16} all {total:.0f} us, makespan {median(makespans) / 1e3:.0f} us")
    return "\n".join(shown) + "\n"


def main() -> None:
    """Both cases on every rank; the first compiles before and prints."""
    rank, ranks, watchdog = joined(LIMIT_S)
    import torch.distributed as dist

    from executor.peers import barrier
    from executor.sessions import Sessions

    groups = [group_of(schedule, tokens, ranks) for schedule, tokens in CASES]
    if rank == 0:
        compile_ahead(groups, ranks)
    barrier()
    sessions = Sessions(rank, ranks, dist.group.WORLD, NUM_SMS, 0, watchdog.beat)
    for group, (schedule, tokens) in zip(groups, CASES, strict=True):
        table, makespans = measured(sessions, group, rank)
        if rank == 0:
            sys.stdout.write(lines(f"{schedule} {tokens}", table, makespans))
            sys.stdout.flush()
        barrier()
    watchdog.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
