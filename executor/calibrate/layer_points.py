"""From the kernels that a sequential program launched to records of times alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from executor.calibrate.kernel_times import Run, Runs
from executor.calibrate.store import Record
from executor.kernel_set import kernel_name
from models.calibration_records import work_record
from models.measured import spread_of
from models.work import EXCHANGE_KINDS, Work
from schedules.program import Op

Calls = Mapping[str, tuple[tuple[str, str], ...]]
# What a call of DeepEP's normal mode launches, by a part of the kernel's name; the first match holds.
CALL_PARTS: Calls = {
    "dispatch": (
        ("notify_dispatch", "dispatch.notify"),
        ("layout", "layout"),
        ("dispatch", "dispatch"),
    ),
    "combine": (("notify_combine", "combine.notify"), ("combine", "combine")),
}
# A gap longer than this is the host's, or a wait; a graph's gap is shorter than a stream's by what spin
# kernels show on an H200 (1.5 against 0.8 us).
LONGEST_GAP_NS = 3000.0
GRAPH_SAVES_NS = 700.0
# A GEMM's name ends with its template arguments, its block among them.
LONGEST_NAME = 400
Times = dict[str, list[float]]


def launch_gap_ns(runs: Runs) -> float:
    """The usual gap between two kernels of a stream while the host is ahead, as the profiler sees it; 0
    where there is none."""
    kernels = sorted(
        (kernel for repeats in runs.values() for run in repeats for kernel in run),
        key=lambda kernel: kernel.start_ns,
    )
    gaps = [b.start_ns - a.end_ns for a, b in pairwise(kernels) if a.stream == b.stream]
    short = [gap for gap in gaps if 0.0 <= gap < LONGEST_GAP_NS]
    return median(short) if short else 0.0


def times_by_op(
    runs: Runs, ops: Mapping[str, Op], gap_ns: float, calls: Calls = CALL_PARTS
) -> Times:
    """ns of every run of every op. Kernels of one library call are told apart by their names, where a
    set makes such `calls`; an op of several kernels takes the sum of them and `gap_ns` between each two:
    the trace's own gaps may be the host's, which is measured apart."""
    times = {name: _whole(repeats, gap_ns) for name, repeats in _by_part(runs, ops, calls)}
    return {name: values for name, values in times.items() if values}


def launched_nothing(runs: Runs, ops: Mapping[str, Op]) -> list[Record]:
    """Points of 1 ns for the ops of a set's exchanges that launch no kernel, since another op does their
    work."""
    idle = {
        ops[name].work
        for name, repeats in runs.items()
        if ops[name].exchange is not None and not any(repeats)
    }
    return [
        {"what": "alone", "work": work_record(work), "sms": 1, "ns": 1.0, "spread": 0.0, "runs": 0}
        for work in sorted(idle, key=lambda work: work.dims)
    ]


def launches_by_op(
    runs: Runs, ops: Mapping[str, Op], calls: Calls = CALL_PARTS
) -> dict[str, list[Record]]:
    """What every op launched, in order: name, median ns, CTAs and what each of them takes."""
    result: dict[str, list[Record]] = {}
    for name, repeats in _by_part(runs, ops, calls):
        full = [run for run in repeats if run]
        if full:
            alike = [run for run in full if len(run) == len(full[-1])]
            result[name] = [_launch(kernels) for kernels in zip(*alike, strict=True)]
    return result


def _launch(kernels: Sequence[Run]) -> Record:
    last = kernels[-1]
    return {
        "kernel": last.name[:LONGEST_NAME],
        "ns": round(median(kernel.ns for kernel in kernels), 1),
        "ctas": last.ctas,
        "threads": last.threads,
        "registers": last.registers,
        "smem_bytes": last.smem_bytes,
    }


def _by_part(
    runs: Runs, ops: Mapping[str, Op], calls: Calls
) -> Iterator[tuple[str, Sequence[tuple[Run, ...]]]]:
    """Each op's kernels, run by run; a library call's by what they are part of."""
    for name, repeats in runs.items():
        parts = calls.get(kernel_name(ops[name]))
        if parts is None:
            yield name, repeats
            continue
        prefix = name.removesuffix(kernel_name(ops[name]))
        for part_name in dict.fromkeys(part for _, part in parts):
            selected = [tuple(r for r in run if _part(r, parts) == part_name) for run in repeats]
            if any(selected):
                yield prefix + part_name, selected


def _part(run: Run, parts: Iterable[tuple[str, str]]) -> str:
    return next((part for word, part in parts if word in run.name), "")


def _whole(repeats: Iterable[tuple[Run, ...]], gap_ns: float) -> list[float]:
    return [sum(kernel.ns for kernel in run) + gap_ns * (len(run) - 1) for run in repeats if run]


def without_peers(mine: Times, ranks: Sequence[Times], ops: Mapping[str, Op]) -> Times:
    """Of an exchange kernel's runs on all ranks the shortest each: the last to arrive waited for
    nobody."""
    result = dict(mine)
    for name, values in mine.items():
        if ops[name].exchange is None:
            continue
        others = [times[name] for times in ranks if len(times.get(name, ())) == len(values)]
        result[name] = [min(run) for run in zip(values, *others, strict=True)]
    return result


def run_ns(runs: Runs) -> float:
    """From the first kernel's start to the last one's end, median of all runs of a program."""
    return median(end - start for start, end in _bounds(runs))


def period_ns(runs: Runs) -> float:
    """From a run's first kernel to the next run's first, median of all runs that another follows: a run
    and the pause behind it. A single run is its own period."""
    starts = [start for start, _ in _bounds(runs)]
    return median(b - a for a, b in pairwise(starts)) if len(starts) > 1 else run_ns(runs)


def _bounds(runs: Runs) -> list[tuple[float, float]]:
    """Start and end of every run of a program that launched anything."""
    every = [
        [kernel for kernels in at_once for kernel in kernels]
        for at_once in zip(*runs.values(), strict=True)
    ]
    return [
        (min(k.start_ns for k in kernels), max(k.end_ns for k in kernels))
        for kernels in every
        if kernels
    ]


def slowest_rank(ranks: Sequence[Times], ops: Mapping[str, Op]) -> int:
    """The rank whose kernels take longest, exchanges apart: GPUs of one model differ at their power
    limit, and the others wait for the slowest."""
    return max(range(len(ranks)), key=lambda rank: _compute_ns(ranks[rank], ops))


def _compute_ns(times: Times, ops: Mapping[str, Op]) -> float:
    return sum(median(values) for name, values in times.items() if ops[name].exchange is None)


def point_records(
    times: Times,
    ops: Mapping[str, Op],
    num_sms: int,
    state: Mapping[str, Any],
    launches: Mapping[str, Sequence[Record]],
) -> list[Record]:
    """One record for each distinct work: median and spread of all its runs in all layers, and what one
    of its ops launched. `state` is the GPU's clock and power, added to each."""
    groups: dict[tuple[Work, int], list[float]] = {}
    kernels: dict[tuple[Work, int], Sequence[Record]] = {}
    for name, values in times.items():
        op = ops[name]
        key = (op.work, held_sms(op, num_sms))
        groups.setdefault(key, []).extend(values)
        kernels.setdefault(key, launches.get(name, ()))
    return [
        {
            "what": "alone",
            "work": work_record(work),
            "sms": sms,
            "ns": round(median(values), 1),
            "spread": round(spread_of(values), 4),
            "runs": len(values),
            "launches": kernels[work, sms],
            **state,
        }
        for (work, sms), values in groups.items()
    ]


def held_sms(op: Op, num_sms: int) -> int:
    """SMs that the launch could hold: its budget, the exchange's own number, else all."""
    if op.work.kind in EXCHANGE_KINDS and op.grid.sm_budget is None and op.role == "whole":
        return int(dict(op.work.dims).get("num_sms", num_sms))
    return op.grid.enforced_budget or num_sms
