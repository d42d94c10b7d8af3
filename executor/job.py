"""What `run` asks of the ranks, and what comes back; plain data that travels between processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from executor.kernel_set import ExecutorError
from models.deployment import Batch, Deployment
from models.routing import Routing
from schedules.json_form import program_to_json
from schedules.program import Program
from schedules.timeline import Timeline

KernelsName = Literal["recording", "reference", "production", "triton"]
KERNEL_SETS: tuple[KernelsName, ...] = ("recording", "reference", "production", "triton")
GpuSet = Literal["production", "triton"]
ON_GPU: tuple[GpuSet, ...] = ("production", "triton")
# What timelines of the sets that time nothing name as their machine.
RECORDING, REFERENCE = "recording", "reference (cpu)"
# Streams sleep for so long after all ranks have met, while the host launches ahead.
GATE_NS = 1_000_000


@dataclass(frozen=True)
class Job:
    """One program to run `repeats` times on a kernel set, with everything its ranks need."""

    program: Program
    deployment: Deployment
    batch: Batch
    routing: Routing
    layers: int
    kernels: KernelsName
    repeats: int = 5
    flush: bool = False
    seed: int = 0

    @property
    def digest(self) -> str:
        """A hash of all that ranks must agree on: the program, the token ids, the exchange, and how
        often it runs, since a rank that makes one exchange more waits for ever."""
        text = json.dumps(program_to_json(self.program), sort_keys=True)
        agreed = (
            self.deployment.a2a,
            self.layers,
            self.kernels,
            self.repeats,
            self.flush,
            self.seed,
        )
        sha = hashlib.sha256(f"{text} {agreed}".encode())
        for rows in self.routing.ids:
            sha.update(rows.tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class Measured:
    """Spans of all ranks of one run, makespans of the repeats (the slowest rank's, ns), the error of
    the result where it is checked, and what the measurement depends on."""

    timeline: Timeline
    makespans_ns: tuple[int, ...]
    error: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class DifferentJobs(ExecutorError):
    """Ranks were started with different scenarios."""


def joined(timelines: Sequence[Timeline]) -> Timeline:
    """Spans of all ranks in one timeline."""
    spans = sorted(
        (span for timeline in timelines for span in timeline.spans),
        key=lambda s: (s.start_ns, s.rank, s.lane, s.op),
    )
    error = max(timeline.clock_error_ns for timeline in timelines)
    return replace(timelines[0], spans=tuple(spans), clock_error_ns=error)
