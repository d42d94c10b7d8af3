"""All that a comparison answers beside its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from moe_overlap.answers.capacity import Operating, Sizes, best_of, largest_batch
from moe_overlap.answers.flip import Flip, Search, nearest_flip
from moe_overlap.answers.latency import Within, under_limit
from moe_overlap.fidelity import Fidelity
from moe_overlap.row import Row
from moe_overlap.verdict import CLOSE, judge
from scenarios.resolve import Resolved

_OCTAVES = {"decode": 2.0, "prefill": 1.0}


@dataclass(frozen=True)
class Answers:
    """Each schedule at its own largest batch and under the limit, the winners, and the nearest flip.

    `looked` has by key the values at which a flip was looked for, None where it was not; `octaves` is how
    far they may be.
    """

    largest: Mapping[str, Operating] = field(default_factory=dict)
    limit_ms: float | None = None
    within: Mapping[str, Within] = field(default_factory=dict)
    flip: Flip | None = None
    octaves: float | None = None
    looked: Mapping[str, tuple[float, ...]] | None = None

    @property
    def best_at_largest(self) -> str | None:
        """Highest throughput with every schedule at its own largest batch."""
        return best_of(self.largest)

    @property
    def under_limit(self) -> Mapping[str, Operating]:
        """The schedules of which a batch within the latency limit was found, there."""
        return {name: one.found for name, one in self.within.items() if one.found is not None}

    @property
    def best_under_limit(self) -> str | None:
        """Highest throughput within the latency limit."""
        return best_of(self.under_limit)


def answers_of(
    resolved: Resolved, rows: Sequence[Row], *, fidelity: Fidelity, limit_ms: float | None
) -> Answers:
    """The answers about these rows; `fast` leaves out what was not asked for."""
    sizes = Sizes(resolved, {})
    largest: dict[str, Operating] = {}
    if fidelity != "fast" or limit_ms is not None:
        found = ((row.name, largest_batch(sizes, row)) for row in rows)
        largest = {name: one for name, one in found if one is not None}
    within: dict[str, Within] = {}
    if limit_ms is not None:
        for name, top in largest.items():
            within[name] = under_limit(sizes, resolved.choice(name), top, limit_ms)
    octaves = None if fidelity == "fast" else _OCTAVES[resolved.batch.phase]
    search = _flip(resolved, rows, octaves, thorough=fidelity == "full") if octaves else None
    if search is None:
        return Answers(largest, limit_ms, within, None, octaves)
    return Answers(largest, limit_ms, within, search.flip, octaves, search.looked)


def _flip(
    resolved: Resolved, rows: Sequence[Row], octaves: float, *, thorough: bool
) -> Search | None:
    verdict = judge(rows)
    if verdict.best is None or verdict.runner_up is None or verdict.margin_ns is None:
        return None
    steps = {row.name: row.figures.step_ns for row in rows if row.figures is not None}
    return nearest_flip(
        resolved,
        resolved.choice(verdict.best),
        resolved.choice(verdict.runner_up),
        log(steps[verdict.runner_up] / steps[verdict.best]),
        octaves=octaves,
        close=verdict.verdict == CLOSE,
        thorough=thorough,
    )
