"""Why a span started when it did: the time since its stream's previous span, cut by cause."""

from __future__ import annotations

from schedules.timeline import Cause, Waited
from simulator.held import Held
from simulator.kernel import Kernel, Stall


def before_start(kernel: Kernel) -> tuple[Waited, ...]:
    """The waits from the previous span's end (or 0) to the start, in order of time.

    First the launch gap after the predecessor, which nothing could shorten; then the host, as long as
    it had not launched the kernel; then its awaited event; then room on the SMs.
    """
    queued = kernel.queued
    now = queued.previous.end if queued.previous is not None else 0
    reasons: tuple[tuple[Cause, int, Kernel | None], ...] = (
        ("queued", queued.gap_end, queued.previous),
        ("host", kernel.launched, kernel.blocked_by),
        ("dependency", queued.awaited, queued.awaited_by),
        ("sm_wait", kernel.start, kernel.freed_by),
    )
    waits = []
    for cause, until, culprit in reasons:
        until = min(until, kernel.start)
        if until > now:
            waits.append(waited(cause, until - now, culprit))
            now = until
    return tuple(waits)


def inside(kernel: Kernel) -> tuple[Waited, ...]:
    """The stalls within the span: peers, flights, links, and the signals that it polled for."""
    stalls: tuple[Stall, ...] = kernel.stalls
    if isinstance(kernel, Held) and kernel.poll is not None and kernel.poll.idle_ns():
        stalls += (("dependency", kernel.poll.idle_ns(), kernel.poll.raiser),)
    return tuple(waited(*stall) for stall in stalls)


def waited(cause: Cause, ns: int, culprit: Kernel | None) -> Waited:
    """A `Waited` that names the culprit by op and rank."""
    if culprit is None:
        return Waited(cause, ns)
    return Waited(cause, ns, culprit.op.name, culprit.device.rank)
