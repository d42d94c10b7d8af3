"""The six figures of `explain`, as one JSON document computed by the code that predictions use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_overlap import __version__
from moe_overlap.explanation.checkpoint import checkpoint_fit
from moe_overlap.explanation.control import control
from moe_overlap.explanation.gains import gains
from moe_overlap.explanation.overlap import Overlapped, overlap
from moe_overlap.explanation.paths import two_paths
from moe_overlap.explanation.slots import slots
from scenarios.resolve import resolve
from scenarios.schema import Scenario
from schedules.timeline import Timeline

SCHEMA = 1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Explanation:
    """The document, and the schedules of its fifth figure with their timelines."""

    document: Mapping[str, Any]
    overlapped: tuple[Overlapped, ...]

    @property
    def timelines(self) -> Mapping[str, Timeline]:
        """Timelines of the fifth figure by schedule."""
        return {one.document["name"]: one.timeline for one in self.overlapped}


def explain(
    scenario: Scenario,
    *,
    checkpoint: Path | None = None,
    progress: Progress = lambda message: None,
) -> Explanation:
    """The figures of a scenario; the sixth is None without the folder of a checkpoint.

    ScenarioError or InputError where scenario or checkpoint cannot be used.
    """
    resolved = resolve(scenario)
    progress("two paths or one")
    paths = two_paths(resolved)
    progress("slots and control")
    rows, decisions = slots(resolved), control(resolved)
    progress("three optimisations")
    gained = gains(resolved)
    progress("SBO and TBO")
    overlapped, missing = overlap(resolved)
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "sglang": resolved.rules.version,
        "scenario": scenario.name,
        "model": resolved.deployment.model.name,
        "hardware": resolved.deployment.machine.name,
        "profile_sha256": resolved.deployment.machine.profile_sha256,
        "paths": paths,
        "slots": rows,
        "control": decisions,
        "gains": gained,
        "overlap": [one.document for one in overlapped],
        "overlap_refused": missing,
        "checkpoint": None if checkpoint is None else checkpoint_fit(resolved, checkpoint),
    }
    return Explanation(document, overlapped)
