"""Latency as a user sees it, and the largest batch of each schedule under a limit on it.

A decode step yields one token of every sequence (more when drafts are accepted), so a step is the time
between tokens. A prefill step yields first tokens once a prompt has gone through: as many steps as it
has chunks. Neither counts queueing, scheduling or the network of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from moe_overlap.answers.capacity import Operating, Sizes, operating
from moe_overlap.answers.variation import size_of
from scenarios.resolve import Resolved, ScheduleChoice

# A step is no monotone function of the batch: each batch draws its own routing and splits its own way.
_LOOKED_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Within:
    """The largest batch that was found within a limit on latency, None where none was; `looked` has all
    sizes that were predicted, ascending."""

    found: Operating | None
    looked: tuple[int, ...]


def steps_to_token(resolved: Resolved, size: int | None = None) -> int:
    """Steps until a sequence's next token: 1 in decode; in prefill the chunks of a prompt when the
    fullest rank takes `size` tokens a step (the scenario's own where left out)."""
    prefill = resolved.scenario.phase.prefill
    if prefill is None:
        return 1
    return max(1, -(-prefill.sequence_tokens // (size or size_of(resolved))))


def latency_ms(resolved: Resolved, step_us: float, size: int | None = None) -> float:
    """ITL-like (decode) or TTFT-like (prefill) milliseconds of a step."""
    return step_us * steps_to_token(resolved, size) / 1000


def under_limit(sizes: Sizes, choice: ScheduleChoice, top: Operating, limit_ms: float) -> Within:
    """The schedule at the largest batch up to `top` that is found within the limit: `largest_within` over
    halves, from `top` down to one sequence or a prompt."""
    known = {top.size: top}

    @cache
    def within(size: int) -> bool:
        found = known.get(size) or operating(sizes, choice, size, "latency")
        looked.append(size)
        if found is None:
            return False
        known[size] = found
        return latency_ms(sizes(size), found.step_us) <= limit_ms

    looked: list[int] = []
    size = largest_within(within, top.size, _least(sizes.resolved, top.size))
    return Within(None if size is None else known[size], tuple(sorted(looked)))


def largest_within(within: Callable[[int], bool], top: int, least: int) -> int | None:
    """The largest size from `least` to `top` that is found to be `within`; None where neither `top` nor
    any `least` times a power of two is. It is `top`, or the next few sizes, a hundredth apart, are not
    within: those of a curve that falls and rises again further up are not all looked at."""
    high = top
    for low in _halves(top, least):
        if within(low):
            break
        high = low
    else:
        return None
    while high - low > _apart(low):
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    while further := next(filter(within, _ahead(low, top)), None):
        low = further
    return low


def _least(resolved: Resolved, top: int) -> int:
    """One sequence; in prefill a prompt, or its equal chunks where `top` tokens hold no whole one: less
    takes more steps."""
    prefill = resolved.scenario.phase.prefill
    if prefill is None:
        return 1
    return -(-prefill.sequence_tokens // steps_to_token(resolved, top))


def _halves(top: int, least: int) -> Iterator[int]:
    """`top`, and below it `least` times the powers of two, descending."""
    yield top
    size = least
    while 2 * size < top:
        size *= 2
    while least <= size < top:
        yield size
        size //= 2


def _ahead(low: int, top: int) -> Iterator[int]:
    """The next sizes above."""
    stop = min(top, low + _LOOKED_AHEAD * _apart(low) + 1)
    return iter(range(low + _apart(low), stop, _apart(low)))


def _apart(size: int) -> int:
    """Neighbouring sizes: a hundredth, and one at least."""
    return max(1, size // 100)
