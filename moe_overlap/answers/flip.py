"""The nearest change of the scenario that would make another schedule the better of the best two.

The batch is looked at outward, in steps of half a doubling up and down by turns, and where the order of the
two has changed between two looks, in between. A flip and its reversal between two looks is not seen, so that
an answer comes with all that was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log, log2

from models.errors import InputError
from moe_overlap.answers.probe import refused_at, step_us
from moe_overlap.answers.variation import at_alpha, at_ep, at_kv, at_size, size_of, unrouted
from scenarios.resolve import Resolved, ScheduleChoice

ALPHA_STEP = 0.4
STRIDE = 0.5
_REFINEMENTS = 2
_SIZE_REFINEMENTS = 3
_SHORTER = 2
Place = tuple[float, float]  # octaves from where the scenario is, and the lead there


@dataclass(frozen=True, slots=True)
class Flip:
    """`key` of the scenario at `value` instead of `instead_of`: `winner` is then the faster. `octaves` is
    how far that is, in doublings (of the exponent of skew: in steps of ALPHA_STEP)."""

    key: str
    value: float
    instead_of: float
    winner: str
    octaves: float


@dataclass(frozen=True, slots=True)
class Search:
    """The nearest flip of those that were found, None without any, and by key the values at which the two
    were compared, ascending."""

    flip: Flip | None
    looked: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Direction:
    """One key changed one way: `at(t)` is the scenario `t` octaves from where it is, `value(t)` the key's
    value there; `unrouted(t)` is enough for the rules, and sooner made. Where values `alternate`, even ones
    may flip before odd ones or after."""

    key: str
    now: float
    at: Callable[[float], Resolved]
    value: Callable[[float], float]
    divisible: bool = True
    unrouted: Callable[[float], Resolved] | None = None
    alternate: bool = False


@dataclass
class Looks:
    """By how much the rival's step is longer than the best's, as a logarithm: each value of a key is looked
    at once."""

    best: ScheduleChoice
    rival: ScheduleChoice
    known: dict[tuple[str, float], float | None] = field(default_factory=dict)

    def lead(self, direction: Direction, octaves: float) -> float | None:
        """None when one of the two cannot run there."""
        at = (direction.key, direction.value(octaves))
        if at not in self.known:
            self.known[at] = _lead(direction, self.best, self.rival, octaves)
        return self.known[at]

    def flip(self, direction: Direction, octaves: float) -> Flip:
        """The change that makes the rival the winner."""
        value = direction.value(octaves)
        return Flip(direction.key, value, direction.now, self.rival.name, octaves)

    @property
    def looked(self) -> dict[str, tuple[float, ...]]:
        """By key the values at which both run, ascending."""
        values: dict[str, list[float]] = {}
        for (key, value), lead in self.known.items():
            if lead is not None:
                values.setdefault(key, []).append(value)
        return {key: tuple(sorted(found)) for key, found in values.items()}


def nearest_flip(
    resolved: Resolved,
    best: ScheduleChoice,
    rival: ScheduleChoice,
    lead: float,
    *,
    octaves: float,
    close: bool = False,
    thorough: bool = False,
) -> Search:
    """The nearest change within `octaves` after which `rival` is faster than `best`, whose step it is now
    longer than by exp(`lead`); none when batch, KV length, skew and EP size each leave the order as it is
    where they were looked at (or one of the two cannot run). Where the two are `close`, the next sizes are
    looked at first. Once a batch is found the other keys are looked at only if `thorough`."""
    looks = Looks(best, rival)
    found = along_sizes(looks, tuple(sizes(resolved)), lead, octaves, close=close)
    for direction in others(resolved) if thorough or not found else ():
        reach = min([octaves, *(flip.octaves for flip in found)])
        if direction.divisible or reach >= 1:
            reach = reach if direction.divisible else 1.0
            flip = _along(looks, direction, lead, reach)
            found += [flip] if flip else []
    return Search(min(found, key=lambda flip: flip.octaves, default=None), looks.looked)


def along_sizes(
    looks: Looks, ways: Sequence[Direction], lead: float, octaves: float, *, close: bool
) -> list[Flip]:
    """The first flip of each of these ways, looked at outward until one of them has any."""
    same: dict[int, Place] = dict.fromkeys(range(len(ways)), (0.0, lead))
    for reach in _outward(ways[0].now, octaves, close=close):
        found = []
        for way, before in tuple(same.items()):
            there = _ahead(looks, ways[way], before[0], reach)
            if there is not None and there[1] < 0:
                found.append(_narrowed(looks, ways[way], before, there))
            if there is not None and there[0] == reach:
                same[way] = there
            else:  # the way ends here
                del same[way]
        if found:
            return found
    return []


def _ahead(looks: Looks, way: Direction, before: float, reach: float) -> Place | None:
    """The lead at the end of the reach, or half way to it where the two cannot both run there."""
    lead = looks.lead(way, reach)
    if lead is not None:
        return reach, lead
    half = _between(way, before, reach, 0.5)
    lead = looks.lead(way, half) if half is not None else None
    return None if half is None or lead is None else (half, lead)


def _outward(now: float, octaves: float, *, close: bool) -> Iterator[float]:
    """Distances to look at, in octaves: the next size, if it is `close`, and every stride."""
    next_size = log2((now + 1) / now)
    if close and next_size < STRIDE:
        yield next_size
    yield from (STRIDE * k for k in range(1, round(octaves / STRIDE) + 1))


def _narrowed(looks: Looks, way: Direction, same: Place, flipped: Place) -> Flip:
    """The size next to one at which the order is as it was, aimed at as if the lead changed evenly. The end
    that stays counts half from then on. Where sizes alternate, the next of the same kind is looked at last."""
    ends = {True: same, False: flipped}
    stayed: bool | None = None
    for _ in range(_SIZE_REFINEMENTS):
        (near, lead), (far, behind) = ends[True], ends[False]
        between = _between(way, near, far, lead / (lead - behind))
        found = looks.lead(way, between) if between is not None else None
        if between is None or found is None:
            break
        ends[found >= 0] = (between, found)
        if stayed is (found < 0):
            octaves, counted = ends[stayed]
            ends[stayed] = (octaves, counted / 2)
        stayed = found < 0
    far = ends[False][0]
    return looks.flip(way, _of_one_parity(looks, way, far) if way.alternate else far)


def _between(way: Direction, near: float, far: float, share: float) -> float | None:
    """Octaves of a size between two others, so much of the way; None where there is none."""
    low, high = sorted((way.value(near), way.value(far)))
    if high - low <= 1:
        return None
    octaves = near + min(0.9, max(0.1, share)) * (far - near)
    return _octaves(way, min(max(way.value(octaves), low + 1), high - 1))


def _of_one_parity(looks: Looks, way: Direction, octaves: float) -> float:
    """Nearer by two sizes, where that flips too."""
    size = way.value(octaves)
    nearer = _octaves(way, size + (2 if size < way.now else -2))
    between = min(size, way.now) < way.value(nearer) < max(size, way.now)
    lead = looks.lead(way, nearer) if between else None
    return nearer if lead is not None and lead < 0 else octaves


def _octaves(way: Direction, value: float) -> float:
    return abs(log2(value / way.now))


def sizes(resolved: Resolved) -> Iterator[Direction]:
    """Smaller and larger batches."""
    size = size_of(resolved)
    decode = resolved.batch.phase == "decode"  # two halves of an odd batch differ
    key = "batch per rank" if decode else "tokens per rank"
    for sign in (-1, 1):
        value = partial(_times, size, sign)
        at, rules = partial(_at_size, resolved, value), partial(_unrouted, resolved, value)
        yield Direction(key, size, at, value, unrouted=rules, alternate=decode)


def others(resolved: Resolved) -> Iterator[Direction]:
    """The other changes that are looked at."""
    kv = 0
    if resolved.batch.phase == "decode":
        kv = max(max(lens, default=0) for lens in resolved.batch.prefix_tokens)
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


def _along(looks: Looks, direction: Direction, lead: float, reach: float) -> Flip | None:
    """The flip in one direction, narrowed down as if the lead changed evenly. Where the two cannot both
    run at the end of the reach, it is looked at half way."""
    end = looks.lead(direction, reach)
    for _ in range(_SHORTER if direction.divisible else 0):
        if end is None:
            reach /= 2
            end = looks.lead(direction, reach)
    if end is None or end >= 0:
        return None
    low, high = (0.0, lead), (reach, end)
    for _ in range(_REFINEMENTS if direction.divisible else 0):
        share = min(0.9, max(0.1, low[1] / (low[1] - high[1])))
        octaves = low[0] + share * (high[0] - low[0])
        found = looks.lead(direction, octaves)
        if found is None:
            break
        if found >= 0:  # then aim beyond the next guess, to bracket it from the other side
            low, high = (octaves, found), (high[0], high[1] / 2)
        else:
            high = (octaves, found)
    return looks.flip(direction, high[0])


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
