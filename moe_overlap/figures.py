"""The figures of one schedule, from its program and its predicted timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from models.errors import InputError
from models.machine import Machine
from models.work import Grid
from moe_overlap.row import Figures
from scenarios.resolve import Resolved
from schedules.merit import (
    Bounds,
    PathItem,
    Steady,
    bounds,
    cost_shares,
    critical_path,
    exposed_ns,
    sm_resident_fraction,
    sm_spinning_fraction,
    steady,
    stream_times,
)
from schedules.merit.critical_path import HOST
from schedules.merit.fastest import Fastest
from schedules.program import Program
from schedules.timeline import Span, Timeline
from simulator.steady import Step

_MAIN = "main"
_FLIGHT = "flight"


@dataclass(frozen=True)
class Predicted:
    """A simulated step with its program, and the same program with one MoE layer, which tells what a
    further layer adds to a bound."""

    program: Program
    one_layer: Program
    step: Step

    @property
    def timeline(self) -> Timeline:
        """The layers that were simulated."""
        return self.step.timeline

    @property
    def more_layers(self) -> int:
        """The layers that were extrapolated."""
        return self.step.layers - self.step.simulated


def figures_of(resolved: Resolved, predicted: Predicted) -> Figures:
    """Figures of the step: the simulated layers, and the steady layer for each of the others."""
    deployment, timeline = resolved.deployment, predicted.timeline
    stretch = steady(timeline)
    if stretch is None:
        raise InputError(deployment.model.name, "num_layers", 0, "at least one MoE layer")
    layer = (stretch.end_ns - stretch.start_ns) / stretch.layers
    overhead = 1000 * resolved.scenario.runtime.step_overhead_us
    rank = max(timeline.spans, key=lambda span: span.end_ns).rank
    path = critical_path(timeline)
    one = (stretch.start_ns, stretch.start_ns + round(layer))
    return Figures(
        step_ns=predicted.step.ns + overhead,
        layer_ns=layer,
        exposed_ns=exposed_ns(timeline, stretch.window)[rank] / stretch.layers,
        sm_resident=sm_resident_fraction(timeline, deployment.machine.num_sms, stretch.window),
        sm_spinning=sm_spinning_fraction(timeline, deployment.machine.num_sms, stretch.window),
        bounds_ns=_bounds(predicted, deployment.machine),
        critical_path=_clipped(path, *one),
        bubbles_ns=_bubbles(timeline, rank, stretch),
        cost_shares=cost_shares(timeline),
        doubt_ns=_doubt(predicted, deployment.machine, path, stretch),
    )


def _bounds(predicted: Predicted, machine: Machine) -> dict[str, float]:
    """Bounds of the whole step: each further layer adds what one simulated layer adds."""
    fastest = Fastest(machine)
    many = _by_name(bounds(predicted.program, machine, fastest))
    if not predicted.more_layers:
        return many
    one = _by_name(bounds(predicted.one_layer, machine, fastest))
    further = predicted.more_layers / (predicted.step.simulated - 1)
    return {name: ns + further * (ns - one[name]) for name, ns in many.items()}


def _by_name(found: Bounds) -> dict[str, float]:
    return {
        "compute": found.compute_ns,
        "communication": found.communication_ns,
        "chain": found.chain_ns,
    }


def _clipped(path: Iterable[PathItem], start: int, end: int) -> tuple[PathItem, ...]:
    return tuple(
        PathItem(item.op, item.rank, max(item.start_ns, start), min(item.end_ns, end))
        for item in path
        if item.start_ns < end and item.end_ns > start
    )


def _bubbles(timeline: Timeline, rank: int, stretch: Steady) -> dict[str, float]:
    """Idle time of the compute stream per layer, by cause."""
    for stream in stream_times(timeline, stretch.window):
        if (stream.rank, stream.stream) == (rank, _MAIN):
            return {cause: ns / stretch.layers for cause, ns in stream.bubbles_ns.items() if ns}
    return {}


def _doubt(
    predicted: Predicted,
    machine: Machine,
    path: tuple[PathItem, ...],
    stretch: Steady,
) -> dict[str, float]:
    """By kind, or by what kinds have in common: time on the step's critical path x the relative
    uncertainty of its cost."""
    spans = {(span.rank, span.op): span for span in predicted.timeline.spans}
    errors = _errors(predicted.program, machine, spans.values())
    common = {
        (cls.ranks[0], op.name): machine.errs_with(op.work)
        for cls in predicted.program.classes
        for op in cls.ops
    }
    doubts: dict[str, float] = {}
    inside = _clipped(path, *stretch.window)
    for items, weight in ((path, 1.0), (inside, predicted.more_layers / stretch.layers)):
        for item in items:
            span = spans.get((item.rank, item.op))
            if item.op == HOST:
                error, kind = machine.host.error, HOST
            elif span is not None:
                error = errors[item.rank, item.op]
                kind = common.get((item.rank, item.op), span.kind)
            else:
                continue
            doubts[kind] = doubts.get(kind, 0.0) + weight * item.ns * error
    return doubts


def _errors(
    program: Program, machine: Machine, spans: Iterable[Span]
) -> Mapping[tuple[int, str], float]:
    """Relative uncertainty of each span's cost, asked at the SMs that it held."""
    ops = {(cls.ranks[0], op.name): op for cls in program.classes for op in cls.ops}
    flights = {exchange.name: exchange.flight for exchange in program.exchanges}
    errors = {}
    for span in spans:
        if span.lane == _FLIGHT:
            work, grid = flights.get(span.op.removesuffix(f".{_FLIGHT}")), Grid()
        else:
            op = ops[span.rank, span.op]
            work, grid = op.work, op.grid
        sms = span.sms or machine.num_sms
        cost = machine.costs.alone(work, grid, sms) if work is not None else None
        errors[span.rank, span.op] = cost.rel_error if cost else 0.0
    return errors
