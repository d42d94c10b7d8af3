"""Latency as a user sees it, and the largest batch of each schedule under a limit on it.

A decode step yields one token of every sequence (more when drafts are accepted), so a step is the time
between tokens. A prefill step yields first tokens once a prompt has gone through: as many steps as it
has chunks. Neither counts queueing, scheduling or the network of the client.
"""

from __future__ import annotations

from math import inf

from moe_overlap.answers.capacity import Operating, Sizes, operating
from moe_overlap.answers.variation import size_of
from scenarios.resolve import Resolved, ScheduleChoice

_STEPS = 12


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


def under_limit(
    sizes: Sizes, choice: ScheduleChoice, top: Operating, limit_ms: float
) -> Operating | None:
    """The schedule at the largest batch up to `top` whose latency is within the limit, to a hundredth;
    None when not even one sequence (or prompt) is."""
    if latency_ms(sizes(top.size), top.step_us) <= limit_ms:
        return top
    prefill = sizes.resolved.scenario.phase.prefill
    least = 1 if prefill is None else min(prefill.sequence_tokens, top.size)
    best = _within(sizes, choice, least, limit_ms)
    if best is None:
        return None
    high, high_ms = top.size, latency_ms(sizes(top.size), top.step_us)
    for _ in range(_STEPS):
        if high - best.size <= max(1, best.size // 100):
            break
        low_ms = latency_ms(sizes(best.size), best.step_us)
        middle = _between(best.size, high, (limit_ms - low_ms) / (high_ms - low_ms))
        found = operating(sizes, choice, middle, "latency")
        ms = inf if found is None else latency_ms(sizes(middle), found.step_us)
        if found is not None and ms <= limit_ms:
            best = found
        else:
            high, high_ms = middle, min(ms, high_ms)
    return best


def _within(sizes: Sizes, choice: ScheduleChoice, size: int, limit_ms: float) -> Operating | None:
    found = operating(sizes, choice, size, "latency")
    late = found is None or latency_ms(sizes(size), found.step_us) > limit_ms
    return None if late else found


def _between(low: int, high: int, share: float) -> int:
    """A size strictly inside, where latency would reach the limit if it grew evenly, and a little
    further so that the limit is bracketed from both sides."""
    guess = low + share * (high - low)
    room = max(1.0, 0.05 * (high - low))
    return min(high - 1, max(low + 1, round(min(guess + room / 2, high - room))))
