"""Predicted against measured, op by op: the numbers behind the page of `validate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from schedules.timeline import Span, Timeline
from viz.palette import family_name
from viz.terminal_timeline import short_name


@dataclass(frozen=True, slots=True)
class OpError:
    """One op over all layers and ranks that both timelines have: mean durations in µs, and how many
    pairs of spans they are the mean of. `name` has the child but no layer (`b.dispatch.send`); `cause`
    is what of the prediction the difference can come from."""

    name: str
    family: str
    predicted_us: float
    measured_us: float
    pairs: int
    cause: str = ""

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_us / self.measured_us

    @property
    def off_us(self) -> float:
        """Predicted less measured, all spans together."""
        return (self.predicted_us - self.measured_us) * self.pairs


@dataclass(frozen=True, slots=True)
class Compared:
    """Ops in order of measured time, longest first, and the spans that only one timeline has."""

    ops: tuple[OpError, ...]
    only_predicted: tuple[str, ...]
    only_measured: tuple[str, ...]


def compare_ops(predicted: Timeline, measured: Timeline) -> Compared:
    """Pairs spans by rank, op and lane; a measured span without duration is left out of the ratios."""
    left, right = _by_key(predicted.spans), _by_key(measured.spans)
    groups: dict[str, list[tuple[Span, Span]]] = {}
    for key in left.keys() & right.keys():
        if right[key].duration_ns > 0:
            groups.setdefault(_name(left[key]), []).append((left[key], right[key]))
    ops = sorted((_error(name, pairs) for name, pairs in groups.items()), key=_longest_first)
    return Compared(tuple(ops), _names(left, right), _names(right, left))


def _by_key(spans: Iterable[Span]) -> dict[tuple[int, str, bool], Span]:
    return {(span.rank, span.op, span.lane == "flight"): span for span in spans}


def _name(span: Span) -> str:
    name = f"{span.child}.{short_name(span)}" if span.child else short_name(span)
    return f"{name} (flight)" if span.lane == "flight" else name


def _error(name: str, pairs: list[tuple[Span, Span]]) -> OpError:
    one = pairs[0][0]
    return OpError(
        name,
        family_name(one.kind, one.op, one.lane),
        fmean(p.duration_ns for p, _ in pairs) / 1000,
        fmean(m.duration_ns for _, m in pairs) / 1000,
        len(pairs),
        cause_of(pairs),
    )


def cause_of(pairs: Sequence[tuple[Span, Span]]) -> str:
    """What half of the difference, or all of it, can come from: a wait or a slowdown that was predicted
    inside the op; else what the op costs alone, with the label of that cost. Where it was measured
    longer than predicted, also the waits that a measured span holds: it begins when its stream comes
    to it."""
    off = fmean(p.duration_ns - m.duration_ns for p, m in pairs)
    stalls: dict[str, float] = {}
    for predicted, _ in pairs:
        for stall in predicted.stalls:
            stalls[stall.cause] = stalls.get(stall.cause, 0.0) + stall.ns / len(pairs)
    slowed = fmean(p.duration_ns - (p.alone_ns or p.duration_ns) for p, _ in pairs)
    slowed -= sum(stalls.values())
    label = pairs[0][0].label or "not known"
    if off > 0:
        cause, most = max(stalls.items(), key=lambda item: item[1], default=("", 0.0))
        if most >= off / 2:
            return f"predicted {cause.replace('_', ' ')} inside it"
        if slowed >= off / 2:
            return "predicted slowdown beside others"
        return f"time alone ({label})"
    if slowed > 0 or stalls:
        return f"slowdown or waits beside others, or time alone ({label})"
    return f"time alone ({label}), or waits of the measured span"


def _longest_first(op: OpError) -> tuple[float, str]:
    return -op.measured_us * op.pairs, op.name


def _names(
    one: dict[tuple[int, str, bool], Span], other: dict[tuple[int, str, bool], Span]
) -> tuple[str, ...]:
    return tuple(sorted({_name(one[key]) for key in one.keys() - other.keys()}))
