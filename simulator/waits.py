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
    previous, gap_end, awaited, awaited_by = kernel.queued
    now = previous.end if previous is not None else 0
    waits = []
    if gap_end > now:
        waits.append(waited("queued", gap_end - now, previous))
        now = gap_end
    if kernel.launched > now:
        waits.append(waited("host", kernel.launched - now, kernel.blocked_by))
        now = kernel.launched
    if awaited > now:
        waits.append(waited("dependency", awaited - now, awaited_by))
        now = awaited
    if kernel.start > now:
        waits.append(waited("sm_wait", kernel.start - now, kernel.freed_by))
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
