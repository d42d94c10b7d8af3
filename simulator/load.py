"""How busy a schedule keeps the tensor cores, which decides the clock of a machine at its power limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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
    bound = bound_ops(program, machine)
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


def as_loaded(program: Program, machine: Machine, timeline: Timeline) -> Machine:
    """The machine under the load of this timeline of the program, whatever else runs on it."""
    return under_load(machine, load_of(timeline, bound_ops(program, machine)))


def bound_ops(program: Program, machine: Machine) -> frozenset[str]:
    """Names of the ops that are bound by arithmetic, where that decides anything."""
    law = machine.power
    if law is None:
        return frozenset()
    ops = (op for cls in program.classes for op in cls.ops)
    return frozenset(op.name for op in ops if law.bound(op.work))


def load_of(timeline: Timeline, bound: Collection[str]) -> float:
    """The share of the time, after the ranks' gates, in which one of the ops `bound` runs; mean of the
    ranks."""
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
