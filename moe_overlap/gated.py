"""Programs as they are measured: every stream held by a gate while the host launches ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace

from executor.job import GATE_NS
from models.machine import Cost, Costs, Footprint, Machine
from models.spin import SpinCosts, spin
from models.work import Grid, Work
from schedules.program import Launch, Op, Program, RankClass, Record, Step, Wait
from schedules.timeline import Span, Timeline
from simulator import simulate

GATE = "gate"


@dataclass(frozen=True)
class GateCosts:
    """A machine's costs, and exact ones for the gate."""

    below: Costs
    spins: SpinCosts

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """See `models.machine.Costs`."""
        return (self.spins if work.kind == "spin" else self.below).alone(work, grid, sms)

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """See `models.machine.Costs`."""
        return (self.spins if work.kind == "spin" else self.below).footprint(work, grid)


def gated(program: Program) -> Program:
    """The program behind a kernel of `GATE_NS` on its first stream, which all streams wait for."""
    return replace(program, classes=tuple(_gated(cls, program) for cls in program.classes))


def _gated(cls: RankClass, program: Program) -> RankClass:
    first, *others = (stream.name for stream in program.streams)
    gate = Op(GATE, first, spin(1, GATE_NS, threads=32, smem_bytes=0))
    before: list[Step] = [Launch(gate, "cpp"), Record(GATE, first)]
    before += [Wait(GATE, stream) for stream in others]
    return replace(cls, steps=(*before, *cls.steps))


def predicted(program: Program, machine: Machine) -> Timeline:
    """The timeline of the gated program, the gate included, every rank by itself."""
    return simulate(gated(program), gate_machine(machine), fold=False, counters=False)


def gate_machine(machine: Machine) -> Machine:
    """The machine with costs for the gate."""
    return replace(machine, costs=GateCosts(machine.costs, SpinCosts(machine.num_sms)))


def makespan_ns(timeline: Timeline) -> int:
    """From the end of the last rank's gate to the end of everything."""
    gates = [span.end_ns for span in timeline.spans if span.op == GATE]
    return max(span.end_ns for span in timeline.spans) - max(gates)


def ungated(timeline: Timeline) -> Timeline:
    """What follows the gates, its time counted from the last gate's end."""
    opened = max(span.end_ns for span in timeline.spans if span.op == GATE)
    spans = (_shifted(span, opened) for span in timeline.spans if span.op != GATE)
    return replace(timeline, spans=tuple(spans))


def _shifted(span: Span, ns: int) -> Span:
    """Waits that lie before the new origin are cut off."""
    start = max(0, span.start_ns - ns)
    room, waits = start, []
    for waited in reversed(span.waits):
        if room:
            waits.append(replace(waited, ns=min(room, waited.ns)))
            room -= waits[-1].ns
    return replace(
        span,
        ready_ns=max(0, span.ready_ns - ns),
        start_ns=start,
        end_ns=max(start, span.end_ns - ns),
        waits=tuple(reversed(waits)),
    )
