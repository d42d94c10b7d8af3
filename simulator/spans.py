"""From what happened to a `Timeline`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.machine import Machine
from schedules.program import Program
from schedules.timeline import Counter, Span, Timeline
from simulator.kernel import Kernel
from simulator.low_latency import Flown
from simulator.waits import before_start, inside, waited

FLIGHT = "flight"


def timeline(
    program: Program,
    machine: Machine,
    kernels: Iterable[Kernel],
    flights: Sequence[tuple[str, Flown]],
    counters: tuple[Counter, ...],
) -> Timeline:
    """Spans of all kernels and flights in order of (start, rank, lane, op)."""
    spans = [_kernel_span(kernel) for kernel in kernels]
    spans += [_flight_span(name, flown) for name, flown in flights]
    spans.sort(key=lambda span: (span.start_ns, span.rank, span.lane, span.op))
    return Timeline(program.name, machine.name, "predicted", tuple(spans), counters)


def _kernel_span(kernel: Kernel) -> Span:
    op = kernel.op
    return Span(
        op.name,
        kernel.device.rank,
        op.stream,
        kernel.ready,
        kernel.start,
        kernel.end,
        op.work.kind,
        op.layer,
        op.child,
        before_start(kernel),
        inside(kernel),
        kernel.peak_sms,
        kernel.alone.ns,
        kernel.alone.label,
    )


def _flight_span(name: str, flown: Flown) -> Span:
    """The flight of an exchange to one rank: `<exchange>.flight`, from when the last send writes."""
    op = flown.send.op
    stalls = []
    lost_ns = min(flown.lost_ns, flown.landed - flown.start)  # the shares of an instant round up
    if lost_ns:
        stalls.append(waited("link_wait", lost_ns, None))
    if flown.end > flown.landed:
        stalls.append(waited("dependency", flown.end - flown.landed, flown.last_send))
    return Span(
        f"{name}.{FLIGHT}",
        flown.rank,
        FLIGHT,
        flown.start,
        flown.start,
        flown.end,
        FLIGHT,
        op.layer,
        op.child,
        (),
        tuple(stalls),
        0,
        flown.alone_ns,
        flown.label,
    )
