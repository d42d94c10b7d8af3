"""The nearest change of the scenario that would make another schedule the better of the best two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import log

from models.errors import InputError
from moe_overlap.answers.probe import refused_at, step_us
from moe_overlap.answers.variation import at_alpha, at_ep, at_kv, at_size, size_of, unrouted
from scenarios.resolve import Resolved, ScheduleChoice

ALPHA_STEP = 0.4
_REFINEMENTS = 2
_SHORTER = 2


@dataclass(frozen=True, slots=True)
class Flip:
    """`key` of the scenario at `value` instead of `instead_of`: `winner` is then the faster. `octaves` is
    how far that is, in doublings (of the exponent of skew: in steps of ALPHA_STEP)."""

    key: str
    value: float
    instead_of: float
    winner: str
    octaves: float


@dataclass(frozen=True)
class Direction:
    """One key changed one way: `at(t)` is the scenario `t` octaves from where it is, `value(t)` the key's
    value there; `unrouted(t)` is enough for the rules, and sooner made."""

    key: str
    now: float
    at: Callable[[float], Resolved]
    value: Callable[[float], float]
    divisible: bool = True
    unrouted: Callable[[float], Resolved] | None = None


def nearest_flip(
    resolved: Resolved,
    best: ScheduleChoice,
    rival: ScheduleChoice,
    lead: float,
    *,
    octaves: float,
    thorough: bool = False,
) -> Flip | None:
    """The nearest change within `octaves` after which `rival` is faster than `best`, whose step it is now
    longer than by exp(`lead`); None when batch, KV length, skew and EP size each leave the order as it
    is (or one of the two cannot run). Once a batch is found the others are looked at only if `thorough`."""
    found: list[Flip] = []
    for direction in directions(resolved):
        if found and not thorough and direction.key != found[0].key:
            break
        reach = min([octaves, *(flip.octaves for flip in found)])
        if direction.divisible or reach >= 1:
            reach = reach if direction.divisible else 1.0
            flip = _along(direction, best, rival, lead, reach)
            found += [flip] if flip else []
    return min(found, key=lambda flip: flip.octaves, default=None)


def directions(resolved: Resolved) -> Iterator[Direction]:
    """The changes that are looked at, the batch first."""
    decode = resolved.batch.phase == "decode"
    size, kv = size_of(resolved), 0
    if decode:
        kv = max(max(lens, default=0) for lens in resolved.batch.prefix_tokens)
    for sign in (-1, 1):
        value = partial(_times, size, sign)
        key = "batch per rank" if decode else "tokens per rank"
        at, rules = partial(_at_size, resolved, value), partial(_unrouted, resolved, value)
        yield Direction(key, size, at, value, unrouted=rules)
    for sign in (-1, 1) if kv else ():
        value = partial(_times, kv, sign)
        yield Direction("KV tokens", kv, partial(_at_kv, resolved, sign), value)
    yield from _skews(resolved)
    yield from _ep_sizes(resolved)


def _times(now: int, sign: int, octaves: float) -> int:
    return max(1, round(now * 2 ** (sign * octaves)))


def _at_size(resolved: Resolved, value: Callable[[float], float], octaves: float) -> Resolved:
    return at_size(resolved, round(value(octaves)))


def _unrouted(resolved: Resolved, value: Callable[[float], float], octaves: float) -> Resolved:
    return unrouted(resolved, round(value(octaves)))


def _at_kv(resolved: Resolved, sign: int, octaves: float) -> Resolved:
    return at_kv(resolved, 2 ** (sign * octaves))


def _skews(resolved: Resolved) -> Iterator[Direction]:
    spec = resolved.scenario.routing
    if spec.distribution not in ("uniform", "power_law"):
        return
    alpha = spec.alpha if spec.distribution == "power_law" else 0.0
    for sign in (-1, 1) if alpha > 0 else (1,):
        value = partial(_skewed, alpha, sign)
        yield Direction("routing skew (alpha)", alpha, partial(_at_alpha, resolved, value), value)


def _skewed(alpha: float, sign: int, octaves: float) -> float:
    return round(max(0.0, alpha + ALPHA_STEP * sign * octaves), 2)


def _at_alpha(resolved: Resolved, value: Callable[[float], float], octaves: float) -> Resolved:
    return at_alpha(resolved, value(octaves))


def _ep_sizes(resolved: Resolved) -> Iterator[Direction]:
    """Half and twice the ranks, where all ranks hold the same and the experts divide."""
    batch, ep = resolved.batch, resolved.deployment.ep_size
    if len(set(zip(batch.new_tokens, batch.prefix_tokens, strict=True))) > 1:
        return
    for ranks in (ep // 2, ep * 2):
        if ranks > 1 and resolved.deployment.physical_experts % ranks == 0:
            at = partial(_at_ep, resolved, ranks)
            yield Direction("EP size", ep, at, partial(_constant, ranks), divisible=False)


def _at_ep(resolved: Resolved, ranks: int, _octaves: float) -> Resolved:
    return at_ep(resolved, ranks)


def _constant(value: int, _octaves: float) -> int:
    return value


def _along(
    direction: Direction, best: ScheduleChoice, rival: ScheduleChoice, lead: float, reach: float
) -> Flip | None:
    """The flip in one direction, narrowed down as if the lead changed evenly. Where the two cannot both
    run at the end of the reach, it is looked at half way."""
    end = _lead(direction, best, rival, reach)
    for _ in range(_SHORTER if direction.divisible else 0):
        if end is None:
            reach /= 2
            end = _lead(direction, best, rival, reach)
    if end is None or end >= 0:
        return None
    low, high = (0.0, lead), (reach, end)
    for _ in range(_REFINEMENTS if direction.divisible else 0):
        share = min(0.9, max(0.1, low[1] / (low[1] - high[1])))
        octaves = low[0] + share * (high[0] - low[0])
        found = _lead(direction, best, rival, octaves)
        if found is None:
            break
        if found >= 0:  # then aim beyond the next guess, to bracket it from the other side
            low, high = (octaves, found), (high[0], high[1] / 2)
        else:
            high = (octaves, found)
    return Flip(direction.key, direction.value(high[0]), direction.now, rival.name, high[0])


def _lead(
    direction: Direction, best: ScheduleChoice, rival: ScheduleChoice, octaves: float
) -> float | None:
    """By how much the rival's step is longer there, as a logarithm; None when one of the two cannot run."""
    try:
        if direction.unrouted is not None:
            rules = direction.unrouted(octaves)
            if refused_at(rules, best) is not None or refused_at(rules, rival) is not None:
                return None
        there = direction.at(octaves)
    except InputError:  # the scenario has no such variation
        return None
    ours = step_us(there, best)
    theirs = step_us(there, rival) if ours is not None else None
    return None if ours is None or theirs is None else log(theirs / ours)
