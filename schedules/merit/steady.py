"""The steady layer: how long one MoE layer takes amid its like."""

from __future__ import annotations

from dataclasses import dataclass

from models.work import EXCHANGE_KINDS
from schedules.merit.intervals import Interval
from schedules.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Steady:
    """The time from the end of one MoE layer to the end of another, `layers` of them."""

    start_ns: int
    end_ns: int
    layers: int

    @property
    def layer_ns(self) -> int:
        """One layer, rounded to the ns."""
        return round((self.end_ns - self.start_ns) / self.layers)

    @property
    def window(self) -> Interval:
        """The interval itself."""
        return self.start_ns, self.end_ns


def steady(timeline: Timeline) -> Steady | None:
    """The steady stretch of the MoE layers, those that have a kernel of an exchange.

    A layer ends with its last span on any rank. With four layers or more the stretch leaves out the
    first one, in which the pipeline fills, and the last one, in which it drains; with two or three
    only the first; with one it is that layer from its first start. None without an MoE layer.
    """
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    moe: set[int] = set()
    for span in timeline.spans:
        if span.layer < 0:
            continue
        starts[span.layer] = min(starts.get(span.layer, span.start_ns), span.start_ns)
        ends[span.layer] = max(ends.get(span.layer, 0), span.end_ns)
        if span.kind in EXCHANGE_KINDS:
            moe.add(span.layer)
    layers = sorted(moe)
    if not layers:
        return None
    if len(layers) == 1:
        return Steady(starts[layers[0]], ends[layers[0]], 1)
    last = layers[-2] if len(layers) >= 4 else layers[-1]
    return Steady(ends[layers[0]], ends[last], layers.index(last))


def layer_ns(timeline: Timeline) -> int | None:
    """Time of one MoE layer in steady state; None without an MoE layer."""
    found = steady(timeline)
    return None if found is None else found.layer_ns
