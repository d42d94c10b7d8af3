"""How busy a schedule keeps the tensor cores, which decides the clock of a machine at its power limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean

from models.machine import Machine
from models.power import under_load
from schedules.program import Program
from schedules.timeline import Timeline

# The first guess; a load is found when it changes by less than `CLOSE`, which times follow by a third.
GUESS, CLOSE, PASSES = 0.75, 0.005, 6
_GATE = "spin"


def settled(program: Program, machine: Machine, run: Callable[[Machine], Timeline]) -> Timeline:
    """The timeline of `run` on the machine under the load that the timeline itself has."""
    law = machine.power
    if law is None:
        return run(machine)
    bound = {
        op.name
        for cls in program.classes
        for op in cls.ops
        if law.gain(op.work) is not None or (op.exchange is None and law.bound(op.work))
    }
    if not bound:
        return run(under_load(machine, 0.0))
    load = GUESS
    for _ in range(PASSES):
        timeline = run(under_load(machine, load))
        found = load_of(timeline, bound)
        if abs(found - load) < CLOSE:
            break
        load = found
    return timeline


def load_of(timeline: Timeline, bound: Iterable[str]) -> float:
    """The share of the time, after the ranks' gates, in which one of the ops `bound` runs; mean of the
    ranks."""
    bound = frozenset(bound)
    loads = []
    for rank in {span.rank for span in timeline.spans}:
        spans = [s for s in timeline.spans if s.rank == rank and s.kind != _GATE]
        began = min((s.start_ns for s in spans), default=0)
        ended = max((s.end_ns for s in spans), default=0)
        busy = union_ns((s.start_ns, s.end_ns) for s in spans if s.op in bound)
        loads.append(busy / max(1, ended - began))
    return fmean(loads) if loads else 0.0


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of intervals."""
    total, end = 0, None
    for start, stop in sorted(intervals):
        total += max(0, stop - (start if end is None else max(start, end)))
        end = stop if end is None else max(end, stop)
    return total
