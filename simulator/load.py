"""How busy a schedule keeps the tensor cores, which decides the clock of a machine at its power limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean

from models.machine import Machine
from models.power import under_load
from models.power_law import PowerLaw
from models.work import Work
from schedules.program import Program
from schedules.timeline import Timeline

# The first guess; a load is found when it changes by less than `CLOSE`, which times follow by a third.
GUESS, CLOSE, PASSES = 0.75, 0.005, 6
_GATE = "spin"


def settled(program: Program, machine: Machine, run: Callable[[Machine], Timeline]) -> Timeline:
    """The timeline of `run` on the machine under the load that the timeline itself has."""
    law, works = machine.power, bound_works(program, machine)
    if law is None or not works:
        return run(under_load(machine, 0.0))
    load = GUESS
    for _ in range(PASSES):
        timeline = run(under_load(machine, load))
        found = load_of(timeline, works, law)
        if abs(found - load) < CLOSE:
            break
        load = found
    return timeline


def as_loaded(program: Program, machine: Machine, timeline: Timeline) -> Machine:
    """The machine under the load of this timeline of the program, whatever else runs on it."""
    law = machine.power
    if law is None:
        return machine
    return under_load(machine, load_of(timeline, bound_works(program, machine), law))


def bound_works(program: Program, machine: Machine) -> dict[tuple[int, str], Work]:
    """The works of the ops that are bound by arithmetic, by rank and name."""
    law = machine.power
    if law is None:
        return {}
    return {
        (rank, op.name): op.work
        for cls in program.classes
        for op in cls.ops
        if law.sheet.bound(op.work)
        for rank in cls.ranks
    }


def load_of(timeline: Timeline, works: Mapping[tuple[int, str], Work], law: PowerLaw) -> float:
    """What the ops with these `works` weigh over the time after the ranks' gates; mean of the ranks."""
    loads = []
    for rank in {span.rank for span in timeline.spans}:
        spans = [s for s in timeline.spans if s.rank == rank and s.kind != _GATE]
        began = min((s.start_ns for s in spans), default=0)
        ended = max((s.end_ns for s in spans), default=0)
        busy = sum(
            law.sheet.weight(works[rank, s.op], s.sms) * (s.end_ns - s.start_ns)
            for s in spans
            if (rank, s.op) in works
        )
        loads.append(min(1.0, busy / max(1, ended - began)))
    return fmean(loads) if loads else 0.0
