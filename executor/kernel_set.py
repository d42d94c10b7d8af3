"""The narrow interface between a program and whatever runs it, and the errors of a run.

A kernel set knows how to launch an op on a stream and how streams, events and the host wait for
each other. `executor.execute` walks a program's steps and calls nothing else.
"""

from __future__ import annotations

from typing import Protocol

from schedules.program import Op, Program, RegionKind
from schedules.timeline import Span


class ExecutorError(Exception):
    """A run that cannot start, or that did not finish; the message is one line for the user."""


class MissingResource(ExecutorError):
    """This machine lacks something that the run needs: a GPU, memory, a library, peer access."""


class MissingKernel(ExecutorError):
    """The kernel set has no kernel for an op of the program."""


class PeerLost(ExecutorError):
    """A peer did not take part in an exchange in time, or is gone; names rank, op and exchange."""


def kernel_name(op: Op) -> str:
    """The op's name without its layer and child: `gemm1` for `L3.b.gemm1`."""
    parts = op.name.split(".")
    if parts[0].startswith("L") and parts[0][1:].isdigit():
        parts = parts[1:]
    if op.child and parts[0] == op.child:
        parts = parts[1:]
    return ".".join(parts)


class KernelSet(Protocol):
    """What a program is run on. All calls come from one host thread, in host order.

    `prepare` refuses what it cannot run (MissingKernel, MissingResource) before anything is
    launched. `wait` for an event that has not been recorded does nothing, as in CUDA. Inside a
    `call` region a set may make one library call at `begin` and ignore the steps up to `end`.
    `finish` blocks until all work is done and returns the spans in ns from the run's origin.
    """

    @property
    def machine(self) -> str:
        """Name of what the spans were measured on."""
        ...

    @property
    def clock_error_ns(self) -> int:
        """Bound on the misalignment of this rank's clock with the others'."""
        ...

    def prepare(self, program: Program, rank: int) -> None:
        """Check and allocate; launches nothing."""
        ...

    def launch(self, op: Op) -> None:
        """Put a kernel on its stream."""
        ...

    def record(self, event: str, stream: str) -> None:
        """Record an event behind the stream's earlier work."""
        ...

    def wait(self, event: str, stream: str) -> None:
        """Make later work of a stream wait for an event."""
        ...

    def host_wait(self, event: str) -> None:
        """Block the host until an event completes."""
        ...

    def host_work(self, kind: str) -> None:
        """Spend the host's time on something that launches nothing."""
        ...

    def begin(self, kind: RegionKind, name: str) -> None:
        """Open a region."""
        ...

    def end(self, kind: RegionKind, name: str) -> None:
        """Close a region."""
        ...

    def finish(self) -> tuple[Span, ...]:
        """Wait for everything and return the spans of this rank."""
        ...
