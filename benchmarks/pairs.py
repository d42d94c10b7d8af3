"""Pairs of loops: what is predicted, written down before they are measured, and how far off it was.

    python -m benchmarks.pairs predict --seed 44 -o benchmarks/data/pairs_predicted_44.jsonl
    python -m benchmarks.pairs predict --seed 0 --like benchmarks/data/pairs_h200_2x.jsonl -o again.jsonl
    python -m benchmarks.pairs compare benchmarks/data/pairs_h200_2x_44.jsonl --seed 44 \\
        --again again.jsonl -o docs/measurements/pairs-h200-ep2.md

Seed 0 stands for the pairs chosen by hand, which were measured first; with `--like` they are predicted
for the calls that a file of measurements made.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from math import hypot
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.pairs_document import again_part, document, outcomes
from benchmarks.pairs_draw import FIRST, pairs
from benchmarks.pairs_plan import (
    RANKS,
    Pair,
    Parts,
    Period,
    alone_ns,
    call_counts,
    late_ns,
    loops,
    parts_of,
    period,
    sleep_ns,
)
from models.machine import Machine
from models.power import under_loads
from models.profile import load_machine
from moe_overlap.ensemble import Draw, moved
from moe_overlap.gated import gate_machine
from moe_overlap.uncertain import doubts_of, patterns
from schedules.merit import critical_path
from schedules.program import Op, Program
from schedules.timeline import Timeline
from simulator import simulate
from simulator.load import CLOSE, GUESS, Loads, bound_works, busy_ns, by_rank, settle

DATA = Path(__file__).with_name("data")
# What was learnt from the comparison, kept apart from what is computed.
NOTES = DATA / "pairs_notes.md"
# Members of the ensemble.
SEEDS = range(16)
Calls = tuple[tuple[int, int], int]


def predicted_file(seed: int) -> Path:
    """Where the predictions of a seed's pairs are kept."""
    return DATA / f"pairs_predicted{f'_{seed}' if seed != FIRST else ''}.jsonl"


def measured_file(seed: int) -> Path:
    """Where the measurements of a seed's pairs are kept."""
    return DATA / f"pairs_h200_2x{f'_{seed}' if seed != FIRST else ''}.jsonl"


def predictions(
    machine: Machine, wanted: Iterable[Pair], measured: Iterable[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """A record a pair: ns of one call of each loop alone and beside the other; of uncapped pairs also
    the makespan of both loops and its band. `measured` pairs are predicted for the calls they made."""
    made: dict[str, Calls] = {
        entry["pair"]: ((entry["counts"][0], entry["counts"][1]), entry["late_ns"])
        for entry in measured
        if "ranks" in entry
    }
    records, bands = [], dict[tuple[Pair, tuple[int, int]], dict[str, Any]]()
    for pair in wanted:
        record = predict(pair, machine, made.get(pair.name))
        if not pair.capped:
            in_step, counts = replace(pair, offset=0.0), record["counts"]
            if (in_step, counts) not in bands:
                bands[in_step, counts] = bands_of(in_step, machine, counts)
            record |= bands[in_step, counts]
        records.append(record)
    return records


def predict(pair: Pair, machine: Machine, made: Calls | None = None) -> dict[str, Any]:
    """The record of one pair, without bands; ValueError when the loops do not cover each other."""
    parts = parts_of(pair, machine)
    counts, late = made or (call_counts(pair, parts, machine), late_ns(pair, parts, machine))
    program = loops(pair, parts, counts, late)
    timed = as_repeated(program, gate_machine(machine), sleep_ns(counts))
    beside = simulate(program, timed, fold=False, counters=False)
    return {
        "pair": pair.name,
        "family": pair.compute.family,
        "exchange": pair.exchange,
        "capped": pair.capped,
        "offset": pair.offset,
        "profile": machine.name,
        "sha256": machine.profile_sha256,
        "counts": counts,
        "late_ns": late,
        "alone": {
            "compute": loop_period(pair, _alone(pair, parts, timed, (counts[0], 0)), 0),
            "exchange": loop_period(pair, _alone(pair, parts, timed, (0, counts[1])), 1),
        },
        "beside": {
            "compute": loop_period(pair, beside, 0),
            "exchange": loop_period(pair, beside, 1),
        },
        "error": {
            "compute": _error([parts.compute], machine),
            "exchange": _error(parts.exchange[0], machine),
        },
        "makespan_ns": makespan_ns(beside),
    }


def as_repeated(program: Program, machine: Machine, rest_ns: int) -> Machine:
    """The machine under the loads that the program has when it is repeated with `rest_ns` of sleep before
    each run: what it does for a second decides the power that single loops run at too."""
    law, works = machine.power, bound_works(program, machine)
    if law is None:
        return machine

    def run(loads: Loads) -> Timeline:
        return simulate(program, under_loads(machine, loads), fold=False, counters=False)

    def read(timeline: Timeline) -> Loads:
        took = makespan_ns(timeline) + rest_ns
        return {rank: busy_ns(own, works, law) / took for rank, own in by_rank(timeline).items()}

    timeline, _ = settle(run, read, dict.fromkeys(program.ranks, GUESS), CLOSE)
    return under_loads(machine, read(timeline))


def _alone(pair: Pair, parts: Parts, timed: Machine, counts: tuple[int, int]) -> Timeline:
    return simulate(loops(pair, parts, counts), timed, fold=False, counters=False)


def loop_period(pair: Pair, timeline: Timeline, which: int) -> dict[str, Any]:
    """One loop's period, the mean of the ranks'."""
    periods = []
    for rank in range(RANKS):
        ends: tuple[list[float], list[float]] = ([], [])
        for span in sorted(timeline.of_rank(rank), key=lambda span: span.end_ns):
            if span.op[0] in "cx" and not span.op.endswith("notify"):
                ends["cx".index(span.op[0])].append(span.end_ns)
        found = period(ends[which], ends[1 - which])
        if found is None:
            raise ValueError(f"{pair.name}: fewer than three calls ran beside the other loop")
        periods.append(found)
    return asdict(
        Period(
            mean(p.median_ns for p in periods),
            mean(p.mean_ns for p in periods),
            min(p.seen for p in periods),
        )
    )


def _error(ops: Sequence[Op], machine: Machine) -> float:
    """Relative uncertainty of the ops' time together."""
    total = sum(alone_ns(op, machine) for op in ops)
    return (
        hypot(
            *(
                alone_ns(op, machine)
                * machine.costs.alone(op.work, op.grid, _sms(op, machine)).rel_error
                for op in ops
            )
        )
        / total
    )


def _sms(op: Op, machine: Machine) -> int:
    return op.grid.enforced_budget or machine.num_sms


def makespan_ns(timeline: Timeline) -> int:
    gates = [span.end_ns for span in timeline.spans if span.op == "gate"]
    return timeline.makespan_ns - max(gates)


def bands_of(pair: Pair, machine: Machine, counts: tuple[int, int]) -> dict[str, Any]:
    """Bands of loops that wait for each other, from an ensemble whose ranks are up to one compute kernel
    out of step, in either order; they know nothing of the pair's own offset. `band_ns` is of the makespan,
    `bands_ns` of one call of each loop: the least and the most of any member."""
    parts = parts_of(pair, machine)
    program, skew_ns = loops(pair, parts, counts), alone_ns(parts.compute, machine)
    timed = as_repeated(program, gate_machine(machine), sleep_ns(counts))
    in_step = simulate(program, timed, fold=False, counters=False)
    timelines = [in_step]
    for seed in SEEDS:
        member = moved(timed, Draw(seed))
        timelines.append(
            simulate(program, member, fold=False, skew_ns=skew_ns, seed=seed, counters=False)
        )
    calls = {}
    for which, name in enumerate(("compute", "exchange")):
        times = [loop_period(pair, timeline, which)["mean_ns"] for timeline in timelines]
        calls[name] = (min(times), max(times))
    low, high = patterns(program, timed, in_step, skew_ns, SEEDS)
    noise = hypot(*doubts_of(program, timed, in_step, critical_path(in_step)).values())
    ns = makespan_ns(in_step)
    return {"band_ns": (ns + low - noise, ns + high + noise), "bands_ns": calls}


def main() -> None:
    """Parse; predict, or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "compare"))
    parser.add_argument("measured", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=44)
    parser.add_argument("--profile", default="h200-2x-nvlink-measured")
    parser.add_argument(
        "--like", type=Path, help="predict for the calls of this file of measurements"
    )
    parser.add_argument(
        "--again", type=Path, help="predictions of the pairs that were measured first"
    )
    parser.add_argument("--predicted", type=Path, help="compare with these; default: of the seed")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "predict":
        like = read(arguments.like) if arguments.like else []
        machine = load_machine(arguments.profile)
        found = predictions(machine, pairs(arguments.seed), like)
        text = "".join(json.dumps(record) + "\n" for record in found)
    elif arguments.measured is None:
        parser.error("compare needs the file of measured pairs")
    else:
        made = arguments.predicted or predicted_file(arguments.seed)
        text = compared(arguments.seed, made, arguments.measured, arguments.again)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        print(text)


def compared(seed: int, predicted: Path, measured: Path, again: Path | None) -> str:
    """The page; `again` are predictions of the first pairs."""
    entries = read(measured)
    text = document(outcomes(read(predicted), entries), entries, seed)
    if again is not None:
        first = read(measured_file(FIRST))
        then = outcomes(read(predicted_file(FIRST)), first)
        text += again_part(then, outcomes(read(again), first))
    if NOTES.exists():
        text += "\n" + NOTES.read_text(encoding="utf-8")
    return text


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of records."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


if __name__ == "__main__":
    main()
