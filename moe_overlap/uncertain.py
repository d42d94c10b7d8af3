"""What a prediction leaves open: costs on its critical path, the ranks' phases, and folded ranks.

One rule for a step that is compared and for a program that is measured behind a gate: kinds of kernels
err independently, one kind errs alike as far as its error is shared (of two GPUs, say), the same work on as
many SMs errs alike in how it was read between points, slowdowns err by victim, and ranks that the host
launches kernel by kernel are up to half a layer apart. What costs and slowdowns change in proportion is
told from the critical path; an ensemble of machines that err (`moe_overlap.ensemble`) tells what they
change beyond that: another pattern that overlapped loops lock into.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import hypot

from models.machine import Cost, Machine
from models.work import EXCHANGE_KINDS, Grid, Work
from moe_overlap.ensemble import Draw, moved, own_name, slowdown_of
from moe_overlap.gated import gate_machine, gated, makespan_ns, predicted
from moe_overlap.prediction import launch_of
from schedules.merit import PathItem, critical_path, layer_ns
from schedules.merit.bubbles import FLIGHT_LANE
from schedules.merit.critical_path import HOST
from schedules.program import Op, Program
from schedules.timeline import Span, Timeline
from simulator.bands import band
from simulator.load import as_loaded

PHASE_SEEDS = range(4)
POWER = "power limit"
IN_PHASE = (1.0, 1.0)


@dataclass(frozen=True)
class Prediction:
    """A predicted time in ns and what it leaves open.

    `doubt_ns` is, by kind of kernel or by what kinds have in common, how much of it would change if that
    cost were off by its stated uncertainty. `phase` are the least and the most that it is multiplied by
    when ranks start apart; `shortcuts` is the relative error that folded ranks may have.
    """

    ns: float
    doubt_ns: Mapping[str, float]
    phase: tuple[float, float] = IN_PHASE
    shortcuts: float = 0.0

    @property
    def noise_ns(self) -> float:
        """Half width of the band of a phase: what is called differently errs independently."""
        return hypot(*self.doubt_ns.values(), self.shortcuts * self.ns)

    @property
    def band_ns(self) -> tuple[float, float]:
        """Least and most. A bound does not end it: it is made of the same costs and errs with them."""
        low, high = (self.ns * factor for factor in self.phase)
        return low - self.noise_ns, high + self.noise_ns

    @property
    def spread_ns(self) -> float:
        """Half of what the phase between ranks moves it by."""
        return self.ns * (self.phase[1] - self.phase[0]) / 2

    def noise_against(self, other: Prediction) -> float:
        """Uncertainty of the difference of two: what both share of a kind's error cancels."""
        kinds = {*self.doubt_ns, *other.doubt_ns}
        gaps = (self.doubt_ns.get(kind, 0.0) - other.doubt_ns.get(kind, 0.0) for kind in kinds)
        folded = (one.shortcuts * one.ns for one in (self, other))
        return hypot(*gaps, self.spread_ns, other.spread_ns, *folded)


def prediction(program: Program, machine: Machine) -> tuple[Prediction, Timeline]:
    """The program behind its gate, as it is measured, every rank by itself; and its timeline with the
    gate. Ranks are out of step where it is launched kernel by kernel."""
    timeline = predicted(program, machine)
    ns = makespan_ns(timeline)
    phase, layer = IN_PHASE, layer_ns(timeline)
    if launch_of(program) == "eager" and layer is not None:
        before_ns = timeline.makespan_ns - ns
        phase = phase_of(gated(program), gate_machine(machine), timeline, layer, before_ns)
    doubts = doubts_of(program, machine, timeline, critical_path(timeline))
    return Prediction(ns, doubts, phase), timeline


def phase_of(
    program: Program, machine: Machine, in_phase: Timeline, layer: float, before_ns: int = 0
) -> tuple[float, float]:
    """Least and most of a makespan, over the one in phase, with ranks up to half a layer of `layer` ns
    apart: hosts that launch kernel by kernel are not in step, and overlapped loops can lock into other
    patterns. The first `before_ns` of each makespan do not count."""
    low, high = patterns(program, machine, in_phase, round(layer / 2), PHASE_SEEDS)
    ns = in_phase.makespan_ns - before_ns
    return 1.0 + low / ns, 1.0 + high / ns


def patterns(
    program: Program, machine: Machine, in_phase: Timeline, skew_ns: int, seeds: Iterable[int]
) -> tuple[float, float]:
    """Least and most ns, 0 among them, that an ensemble adds to a makespan whose ranks start up to
    `skew_ns` apart, beyond what its moved costs add in proportion."""
    chosen = tuple(seeds)
    machine = as_loaded(program, machine, in_phase)
    spread = band(
        program,
        machine,
        skew_ns=skew_ns,
        seeds=chosen,
        in_phase_ns=in_phase.makespan_ns,
        member=lambda seed: moved(machine, Draw(seed)),
    )
    doubts = doubts_of(program, machine, in_phase, critical_path(in_phase))
    for kept in (HOST, POWER):
        doubts.pop(kept, None)
    added = [0.0]
    for seed, ns in zip(chosen, spread.makespans_ns[1:], strict=True):
        added.append(ns - in_phase.makespan_ns - Draw(seed).linear(doubts))
    return min(added), max(added)


def doubts_of(
    program: Program,
    machine: Machine,
    timeline: Timeline,
    path: Iterable[PathItem],
    further: Iterable[PathItem] = (),
    times: float = 0.0,
) -> dict[str, float]:
    """Time of the path's items x the relative uncertainty of their costs: by kind, but for kernels that
    multiply on a machine whose points share a clock, and for the host. Items in `further` count so many
    `times`: the layers that were extrapolated."""
    costs = _SpanCosts(program, machine, timeline)
    spans = {(span.rank, span.op): span for span in timeline.spans}
    doubts: dict[str, float] = {}
    for items, weight in ((path, 1.0), (further, times)):
        for item in items:
            found: Iterable[tuple[str, float]] = ()
            if item.op == HOST:
                found = ((HOST, machine.host.error),)
            elif (item.rank, item.op) in spans:
                found = costs.doubts(spans[item.rank, item.op])
            for name, error in found:
                doubts[name] = doubts.get(name, 0.0) + weight * item.ns * error
    return doubts


class _SpanCosts:
    """Uncertainties of a program's costs, asked at the SMs that each span held, and of slowdowns."""

    def __init__(self, program: Program, machine: Machine, timeline: Timeline) -> None:
        self.machine, self.timeline = machine, timeline
        self.loads = dict(as_loaded(program, machine, timeline).loads)
        self.ops: dict[int, dict[str, Op]] = {}
        for cls in program.classes:
            ops = {op.name: op for op in cls.ops}
            self.ops |= dict.fromkeys(cls.ranks, ops)
        self.flights = {exchange.name: exchange.flight for exchange in program.exchanges}
        self.families = {exchange.name: exchange.family for exchange in program.exchanges}

    def doubts(self, span: Span) -> Iterable[tuple[str, float]]:
        """What the span errs with, and its relative uncertainties; nothing of a gate, which is no part of
        the program."""
        sms = span.sms or self.machine.num_sms
        if span.lane == FLIGHT_LANE:
            flight = self.flights.get(span.op.removesuffix(f".{FLIGHT_LANE}"))
            yield span.kind, self._cost(flight, Grid(), sms).rel_error if flight else 0.0
            return
        op = self.ops[span.rank].get(span.op)
        if op is None:
            return
        cost = self._cost(op.work, op.grid, sms)
        yield self.machine.errs_with(op.work), cost.shared
        if cost.own:
            yield own_name(self.machine, op.work, op.grid), cost.own
        law = self.machine.power
        if law is not None and law.gain(op.work) is not None and span.rank in self.loads:
            yield POWER, law.doubt(op.work, cost.ns, self.loads[span.rank])
        near = self.machine.interference
        family = self.families[op.exchange] if op.exchange is not None else ""
        victim = near.victim(family, op.work.kind)
        if victim and self._beside(span):
            yield slowdown_of(victim), dict(near.errors)[victim]

    def _beside(self, span: Span) -> bool:
        """Whether an exchange runs beside compute meanwhile, or compute beside the exchange."""
        exchange = span.kind in EXCHANGE_KINDS
        return any(
            (other.kind in EXCHANGE_KINDS) is not exchange
            and other.start_ns < span.end_ns
            and other.end_ns > span.start_ns
            for other in self._kernels.get(span.rank, ())
        )

    @cached_property
    def _kernels(self) -> dict[int, list[Span]]:
        """Kernels of each rank, whose flights hold no SMs."""
        kernels: dict[int, list[Span]] = {}
        for span in self.timeline.spans:
            if span.lane != FLIGHT_LANE and span.op in self.ops[span.rank]:
                kernels.setdefault(span.rank, []).append(span)
        return kernels

    def _cost(self, work: Work, grid: Grid, sms: int) -> Cost:
        return self.machine.costs.alone(work, grid, sms)
