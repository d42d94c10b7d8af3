"""The figures of one schedule, from its program and its predicted timeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from models.errors import InputError
from models.machine import Machine
from moe_overlap.row import Figures
from moe_overlap.uncertain import doubts_of
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
from schedules.merit.fastest import Fastest
from schedules.program import Program
from schedules.timeline import Timeline
from simulator.steady import Step

_MAIN = "main"


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
        doubt_ns=doubts_of(
            predicted.program,
            deployment.machine,
            timeline,
            path,
            further=_clipped(path, *stretch.window),
            times=predicted.more_layers / stretch.layers,
        ),
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
