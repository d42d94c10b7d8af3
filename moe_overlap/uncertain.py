"""A prediction with its band: what the costs on the critical path leave open, and the ranks' phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot

from models.machine import Machine
from moe_overlap.gated import gate_machine, gated, makespan_ns, predicted
from schedules.merit import critical_path
from schedules.merit.critical_path import HOST
from schedules.program import Begin, Program
from schedules.timeline import Timeline
from simulator.bands import band

SKEW_NS = 50_000
SEEDS = range(2)


@dataclass(frozen=True)
class Prediction:
    """ns of a whole program: the engine's, its band, and how much each kind of kernel leaves open."""

    ns: float
    low_ns: float
    high_ns: float
    doubt_ns: Mapping[str, float]

    def noise_against(self, other: Prediction) -> float:
        """Uncertainty of a difference: what both share of a kind's error cancels."""
        kinds = {*self.doubt_ns, *other.doubt_ns}
        own = (self.doubt_ns.get(kind, 0.0) - other.doubt_ns.get(kind, 0.0) for kind in kinds)
        return hypot(*own, self._phase, other._phase)

    @property
    def _phase(self) -> float:
        return max(0.0, (self.high_ns - self.low_ns) / 2 - hypot(*self.doubt_ns.values()))


def prediction(program: Program, machine: Machine) -> tuple[Prediction, Timeline]:
    """The program behind its gate, as it is measured; ranks out of step where it is launched op by op."""
    timeline = predicted(program, machine)
    ns = makespan_ns(timeline)
    doubts = doubts_of(program, machine, timeline)
    low = high = float(ns)
    if not _in_graph(program):
        low, high = _phases(program, machine, ns)
    noise = hypot(*doubts.values())
    return Prediction(ns, low - noise, high + noise, doubts), timeline


def _in_graph(program: Program) -> bool:
    steps = program.classes[0].steps
    return any(isinstance(step, Begin) and step.kind == "graph" for step in steps)


def _phases(program: Program, machine: Machine, ns: float) -> tuple[float, float]:
    """Least and most with ranks a little out of step."""
    spread = band(gated(program), gate_machine(machine), skew_ns=SKEW_NS, seeds=SEEDS)
    in_phase = spread.makespans_ns[0]
    return ns * spread.low_ns / in_phase, ns * spread.high_ns / in_phase


def doubts_of(program: Program, machine: Machine, timeline: Timeline) -> dict[str, float]:
    """Time on the critical path x the relative uncertainty of its cost: by kind, but for kernels that
    multiply, which share the clock and err together, and for the host."""
    ops = {(rank, op.name): op for rank in program.ranks for op in program.launches(rank)}
    spans = {(span.rank, span.op): span for span in timeline.spans}
    doubts: dict[str, float] = {}
    for item in critical_path(timeline):
        if item.op == HOST:
            doubts[HOST] = doubts.get(HOST, 0.0) + machine.host.error * item.ns
        op, span = ops.get((item.rank, item.op)), spans.get((item.rank, item.op))
        if op is None or span is None:
            continue
        error = machine.costs.alone(op.work, op.grid, span.sms or machine.num_sms).rel_error
        shared = machine.errs_with(op.work)
        doubts[shared] = doubts.get(shared, 0.0) + error * item.ns
    return doubts
