"""Which part of a timeline a picture shows: one layer in steady state, or all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.work import EXCHANGE_KINDS
from schedules.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Window:
    """Times in ns; `layer` is None for the whole timeline."""

    start_ns: int
    end_ns: int
    layer: int | None = None


def layer_windows(timeline: Timeline) -> Mapping[int, tuple[int, int]]:
    """First start and last end of every layer over all ranks, in order of layer."""
    found: dict[int, tuple[int, int]] = {}
    for span in timeline.spans:
        if span.layer >= 0:
            start, end = found.get(span.layer, (span.start_ns, span.end_ns))
            found[span.layer] = min(start, span.start_ns), max(end, span.end_ns)
    return dict(sorted(found.items()))


def steady_layer(timeline: Timeline) -> int | None:
    """The layer to show first: the middle one of the MoE layers that another one follows (of all
    layers, when none has an exchange); None without layers."""
    windows = layer_windows(timeline)
    moe = {span.layer for span in timeline.spans if span.kind in EXCHANGE_KINDS}
    layers = [layer for layer in windows if layer in moe] or list(windows)
    inner = layers[:-1] or layers
    return inner[len(inner) // 2] if inner else None


def steady_window(timeline: Timeline, layer: int | None = None) -> Window:
    """The window of `layer`, by default of the steady one; the whole timeline when it has no layers.
    KeyError for a layer that it does not have."""
    windows = layer_windows(timeline)
    if not windows:
        return Window(0, timeline.makespan_ns)
    chosen = steady_layer(timeline) if layer is None else layer
    if chosen is None or chosen not in windows:
        raise KeyError(f"no layer {layer}; the timeline has {min(windows)} to {max(windows)}")
    return Window(*windows[chosen], chosen)
