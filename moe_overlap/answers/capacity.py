"""The largest batch that each schedule can hold, and what it yields there.

Half of why a split batch pays is that a larger one fits: activations live shorter, and a low-latency
buffer has to hold a child, not the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moe_overlap.answers.probe import refused_at, step_us
from moe_overlap.answers.variation import at_size, size_of, unrouted
from moe_overlap.row import Row
from scenarios.errors import BatchTooLarge
from scenarios.resolve import Resolved, ScheduleChoice

# Beyond it routing alone takes seconds to draw, and throughput has long settled.
MOST_TOKENS = 1 << 19
_BACK_OFF = 0.98
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Operating:
    """A schedule at one batch: `size` of the fullest rank, what keeps it from a larger one, the step."""

    size: int
    limited_by: str
    step_us: float
    tokens_per_s: float


@dataclass
class Sizes:
    """The scenario at other batches, each resolved once."""

    resolved: Resolved
    known: dict[int, Resolved]

    def __call__(self, size: int) -> Resolved:
        if size not in self.known:
            self.known[size] = at_size(self.resolved, size)
        return self.known[size]


def operating(sizes: Sizes, choice: ScheduleChoice, size: int, limit: str) -> Operating | None:
    """The schedule at this size; None when it cannot run there."""
    try:
        at = sizes(size)
    except BatchTooLarge:
        return None
    us = step_us(at, choice)
    return None if us is None else Operating(size, limit, us, at.tokens_per_step / us * 1e6)


def largest_batch(sizes: Sizes, row: Row) -> Operating | None:
    """A row's schedule at the largest batch that memory and the rules leave it; None when it has none."""
    if row.max_batch_per_rank is None or row.figures is None or not row.can_win:
        return None
    choice = sizes.resolved.choice(row.name)
    size, limit = _allowed(sizes.resolved, choice, row.max_batch_per_rank)
    if size == size_of(sizes.resolved):
        us = row.figures.step_ns / 1000
        return Operating(size, limit, us, sizes.resolved.tokens_per_step / us * 1e6)
    for _ in range(_TRIES):  # what memory takes was extrapolated; here it is built
        found = operating(sizes, choice, size, limit) if size else None
        if found is not None or size < 2:
            return found
        size, limit = int(size * _BACK_OFF), "memory"
    return None


def _allowed(resolved: Resolved, choice: ScheduleChoice, most: int) -> tuple[int, str]:
    """The largest size up to `most` that no rule forbids, and the rule (or `memory`) beyond it."""
    searched = max(size_of(resolved), MOST_TOKENS // resolved.deployment.ep_size)
    top = min(most, searched)
    beyond = refused_at(unrouted(resolved, top), choice)
    if beyond is None:
        return top, "memory" if top == most else "search"
    runs, fails = min(top, size_of(resolved)), top
    while fails - runs > 1:
        middle = (runs + fails) // 2
        refused = refused_at(unrouted(resolved, middle), choice)
        runs, fails = (middle, fails) if refused is None else (runs, middle)
        beyond = refused or beyond
    return runs, beyond.rule


def best_of(found: Mapping[str, Operating]) -> str | None:
    """The schedule with the highest throughput; the first of equals, None when there is none."""
    return max(found, key=lambda name: found[name].tokens_per_s, default=None)
