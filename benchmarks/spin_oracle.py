"""The engine against hardware on random spin programs: how far off are the starts it predicts?

    python -m benchmarks.spin_oracle                                    one GPU
    torchrun --nproc-per-node 2 -m benchmarks.spin_oracle               two GPUs
    python -m benchmarks.spin_oracle --dry-run --ranks 2                no GPU: predictions only
    python -m benchmarks.spin_oracle --again FILE                       this engine, an earlier run

Programs are drawn by seed and kept when the engine says that a span waits for SMs (and, with two
ranks, for a peer) and that small changes of times and gaps do not change the order of things; nothing
measured decides which are kept. The gaps are measured first, on the same GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.spin_programs import random_program, scaled
from models.machine import Gaps, Machine, SmResources
from models.measured import percentile
from models.spin import spin_machine
from schedules.json_form import program_from_json, program_to_json
from schedules.program import Program
from schedules.timeline import Span, Timeline
from simulator import Deadlock, simulate

NUM_SMS = 132
# CUDA C++ Programming Guide, "Compute Capability 9.0": what shared memory can be configured to, in KB
H200_SM = SmResources(
    carveouts=tuple(kb * 1024 for kb in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228))
)
TOLERANCE_NS = 4_000
GAP_TOLERANCE_NS = 30_000
REPEATED_NS = 15_000
WATCHDOG_S = 240
Key = tuple[int, str]


@dataclass(frozen=True)
class Row:
    """One program's errors in ns over the spans that waited: starts, ends, and the worst start."""

    name: str
    spans: int
    waited: int
    median_start_ns: float
    p90_start_ns: float
    worst_start_ns: int
    worst_op: str
    median_end_ns: float
    repeat_spread_ns: int
    makespan_error: float


def predicted(program: Program, on: Machine) -> Timeline:
    """The engine's timeline."""
    return simulate(program, on, fold=False)


def machine(gaps: Gaps, front_ends: Sequence[int] = (0, 1), pull_ns: int = 0) -> Machine:
    """A spin machine of these gaps without host costs, with the shared memory of an H200's SM."""
    return spin_machine(
        NUM_SMS,
        gaps=gaps,
        host_ns=0,
        sm=H200_SM,
        pull_ns=pull_ns,
        front_ends=tuple(front_ends),
    )


def starts(timeline: Timeline) -> dict[Key, Span]:
    """Spans by rank and op, times from the end of the rank's own gate: gates end together, within a
    message's flight, so that drifting clocks of the GPUs do not count."""
    gates = {s.rank: s.end_ns for s in timeline.spans if s.op == "gate"}
    return {
        (s.rank, s.op): replace(
            s, start_ns=s.start_ns - gates[s.rank], end_ns=s.end_ns - gates[s.rank]
        )
        for s in timeline.spans
        if s.op != "gate"
    }


def waits(span: Span) -> bool:
    """Whether the engine says that the span waited for SMs before, or for peers after, its start."""
    return any(w.cause == "sm_wait" and w.ns > 0 for w in span.waits) or any(
        w.cause == "peer_wait" and w.ns > 0 for w in span.stalls
    )


def chosen(seed: int, ranks: int, on: Machine) -> Program | None:
    """The program of this seed if it waits as it should and is not on a knife's edge."""
    program = random_program(seed, ranks=ranks, num_sms=NUM_SMS)
    try:
        nominal = starts(predicted(program, on))
        before = {w.cause for s in nominal.values() for w in s.waits if w.ns > 0}
        inside = {w.cause for s in nominal.values() for w in s.stalls if w.ns > 0}
        if "sm_wait" not in before or (ranks > 1 and "peer_wait" not in inside):
            return None
        for other, tolerance in _varied(program, on):
            if any(
                abs(other[key].start_ns - span.start_ns) > tolerance + 0.006 * abs(span.start_ns)
                for key, span in nominal.items()
            ):
                return None
    except Deadlock:
        return None
    return program


def _varied(program: Program, on: Machine) -> Iterator[tuple[dict[Key, Span], int]]:
    """What the engine says of slightly other times, and of other latencies: what is ready first must
    not depend on which of two gaps is the longer one. With the difference that is allowed, in ns."""
    gaps = on.gaps
    for factor in (0.996, 1.004):
        stretched = Gaps(**{k: int(v * (1 + 50 * (factor - 1))) for k, v in asdict(gaps).items()})
        other = replace(on, gaps=stretched)
        yield starts(predicted(scaled(program, factor), other)), TOLERANCE_NS
    for same, across in ((0.4, 2.5), (2.5, 0.4)):
        varied = replace(
            gaps,
            stream=int(gaps.stream * same),
            event=int(gaps.event * same),
            cross_stream=int(gaps.cross_stream * across),
            turn=int(gaps.turn * same),
        )
        yield starts(predicted(program, replace(on, gaps=varied))), GAP_TOLERANCE_NS


def compare(program: Program, on: Machine, runs: Sequence[Timeline]) -> Row:
    """Errors of the engine over the spans that it says waited; measured is the median of `runs`."""
    expected = starts(predicted(program, on))
    measured = [starts(run) for run in runs]
    watched = [key for key, span in expected.items() if waits(span)]
    start = {k: _middle(measured, k, "start_ns") - expected[k].start_ns for k in watched}
    end = {k: _middle(measured, k, "end_ns") - expected[k].end_ns for k in watched}
    spread = max(_range(measured, key) for key in expected)
    worst = max(watched, key=lambda key: abs(start[key]))
    last = max(span.end_ns for span in expected.values())
    last_measured = median(max(s.end_ns for s in run.values()) for run in measured)
    late = [abs(value) for value in start.values()]
    return Row(
        name=program.name,
        spans=len(expected),
        waited=len(watched),
        median_start_ns=median(late),
        p90_start_ns=percentile(late, 0.9),
        worst_start_ns=round(start[worst]),
        worst_op=f"{worst[1]} on rank {worst[0]}",
        median_end_ns=median(abs(value) for value in end.values()),
        repeat_spread_ns=spread,
        makespan_error=last_measured / last - 1,
    )


def _middle(measured: Sequence[dict[Key, Span]], key: Key, field: str) -> float:
    return float(median(getattr(run[key], field) for run in measured))


def _range(measured: Sequence[dict[Key, Span]], key: Key) -> int:
    values = [run[key].start_ns for run in measured]
    return max(values) - min(values)


def summary(rows: Sequence[Row]) -> str:
    """The last line: programs that the hardware itself repeats, and how many it does not."""
    repeated = [row for row in rows if row.repeat_spread_ns <= REPEATED_NS]
    if not repeated:
        return f"none of {len(rows)} programs repeats within {REPEATED_NS / 1e3:.0f} us"
    worst = max(repeated, key=lambda row: abs(row.worst_start_ns))
    overall = median(row.median_start_ns for row in repeated)
    return (
        f"{len(repeated)} of {len(rows)} programs repeat within {REPEATED_NS / 1e3:.0f} us on the GPU; "
        f"of these, {sum(r.waited for r in repeated)} spans waited: median of the programs' median "
        f"start errors {overall / 1e3:.2f} us; worst {worst.worst_start_ns / 1e3:.2f} us "
        f"({worst.worst_op} of {worst.name})"
    )


def table(rows: Sequence[Row]) -> str:
    """One aligned line a program."""
    lines = [
        f"{'program':<12}{'spans':>6}{'waited':>7}{'median us':>11}{'p90 us':>9}{'worst us':>10}"
        f"{'end us':>8}{'spread':>8}{'makespan':>10}  worst op"
    ]
    for r in rows:
        lines.append(
            f"{r.name:<12}{r.spans:>6}{r.waited:>7}{r.median_start_ns / 1e3:>11.2f}"
            f"{r.p90_start_ns / 1e3:>9.2f}{r.worst_start_ns / 1e3:>10.2f}"
            f"{r.median_end_ns / 1e3:>8.2f}{r.repeat_spread_ns / 1e3:>8.2f}"
            f"{r.makespan_error:>+10.2%}  {r.worst_op}"
        )
    return "\n".join(lines)


def draw(ranks: int, count: int, on: Machine, first: int) -> tuple[list[Program], int]:
    """The first `count` programs from seed `first` on that are kept, and how many seeds were tried."""
    kept: list[Program] = []
    seed = first
    while len(kept) < count and seed - first < 60 * count:
        program = chosen(seed, ranks, on)
        kept += [program] if program is not None else []
        seed += 1
    return kept, seed - first


def measured(count: int, repeats: int, first: int) -> None:
    """Run on the GPUs of this process group and print, on rank 0, the table."""
    import torch
    import torch.distributed as dist

    from executor.cuda import device_facts
    from executor.execute import execute
    from executor.peers import gathered
    from executor.spin import Spin
    from executor.spin_gaps import measure_figures, measure_meeting

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if world_size > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    kernels = Spin(rank, world_size)
    if kernels.num_sms != NUM_SMS:
        raise SystemExit(f"the programs are for {NUM_SMS} SMs; this GPU has {kernels.num_sms}")
    figures = gathered(measure_figures(kernels, rank))[0]
    kernels.cta_overhead_ns, kernels.pull_ns = figures.cta_overhead_ns, figures.pull_ns
    if world_size > 1:
        kernels.meeting_ns = gathered(measure_meeting(kernels, rank, world_size))[0]
    on = machine(figures.gaps, figures.front_ends)
    drawn = draw(world_size, count, on, first) if rank == 0 else None
    programs, tried = gathered(drawn)[0]
    rows, runs_of = [], {}
    for program in programs:
        runs = []
        for _ in range(repeats + 1):
            parts = gathered(execute(program, kernels, rank=rank).spans)
            spans = tuple(span for part in parts for span in part)
            runs.append(Timeline(program.name, kernels.machine, "measured", spans))
        rows.append(compare(program, on, runs[1:]))
        runs_of[program.name] = [[asdict(span) for span in run.spans] for run in runs[1:]]
    errors = gathered(kernels.clock_error_ns)
    if rank == 0:
        facts: dict[str, Any] = dict(device_facts()) | {
            "ranks": world_size,
            "gaps_ns": asdict(figures.gaps),
            "cta_overhead_ns": figures.cta_overhead_ns,
            "pull_ns": figures.pull_ns,
            "meeting_ns": kernels.meeting_ns,
            "front_ends": figures.front_ends,
            "clock_error_ns": max(errors),
            "first_seed": first,
            "seeds_tried": tried,
            "repeats": repeats,
            "programs": {program.name: program_to_json(program) for program in programs},
        }
        report(facts, rows, runs_of, f"spin_oracle_{world_size}gpu.json")
    kernels.close()


def report(facts: dict[str, Any], rows: Sequence[Row], runs: dict[str, Any], name: str) -> None:
    """Write everything beside the table, and print the table last."""
    folder = Path(os.environ.get("OUT", "."))
    document = facts | {"rows": [asdict(row) for row in rows], "runs": runs}
    (folder / name).write_text(json.dumps(document))
    print(json.dumps({key: value for key, value in facts.items() if key != "programs"}))
    print(table(rows))
    print(summary(rows))


def dry_run(ranks: int, count: int, first: int) -> None:
    """Draw the programs and print what the engine predicts, with the gaps of an H200."""
    on = machine(Gaps())
    programs, tried = draw(ranks, count, on, first)
    rows = [compare(program, on, [predicted(program, on)]) for program in programs]
    print(table(rows))
    print(f"{len(programs)} programs kept of {tried} seeds; nothing was measured")


def again(path: Path, turn: int | None, pull_ns: int, front_ends: str) -> None:
    """Compare this engine with the runs that an earlier measurement wrote."""
    document = json.loads(path.read_text())
    gaps, ranks = Gaps(**document["gaps_ns"]), int(document["ranks"])
    gaps = gaps if turn is None else replace(gaps, turn=turn)
    on = machine(gaps, [int(number) for number in front_ends.split(",")], pull_ns)
    rows = []
    for name, runs in document["runs"].items():
        if "programs" in document:
            program = program_from_json(document["programs"][name])
        else:
            seed = int(name.split()[1])
            program = random_program(seed, ranks=ranks, num_sms=NUM_SMS, fan_out=True)
        timelines = [
            Timeline(name, document["gpu"], "measured", tuple(_span(item) for item in run))
            for run in runs
        ]
        if any(waits(span) for span in starts(predicted(program, on)).values()):
            rows.append(compare(program, on, timelines))
    print(table(rows))
    print(summary(rows))


def _span(item: dict[str, Any]) -> Span:
    return Span(**{key: value for key, value in item.items() if key not in ("waits", "stalls")})


def main() -> None:
    """Parse, arm the watchdog and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1, help="with --dry-run: ranks to predict")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--again", type=Path, help="a result of an earlier run")
    parser.add_argument(
        "--turn", type=int, help="with --again: ns, where the run did not measure it"
    )
    parser.add_argument(
        "--pull", type=int, default=0, help="with --again: ns, where the run did not take it off"
    )
    parser.add_argument(
        "--front-ends", default="0,1,0", help="with --again: of main, side and comm"
    )
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.again is not None:
        again(arguments.again, arguments.turn, arguments.pull, arguments.front_ends)
        return
    if arguments.dry_run:
        dry_run(arguments.ranks, arguments.programs, arguments.first_seed)
        return
    watchdog = threading.Timer(WATCHDOG_S, lambda: os._exit(4))
    watchdog.daemon = True
    watchdog.start()
    measured(arguments.programs, arguments.repeats, arguments.first_seed)


if __name__ == "__main__":
    main()
