"""The page of `view`: any timelines under each other on one time axis."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from schedules.merit import exposed_ns, layer_ns
from schedules.timeline import Timeline
from viz.figures import micro
from viz.page import Page, timelines_html, write_page
from viz.sections import section_data


def write_view(path: Path | str, timelines: Mapping[str, Timeline]) -> None:
    """Write one page with all timelines by name. OSError when the file cannot be written."""
    write_page(Path(path), view_page(timelines))


def view_page(timelines: Mapping[str, Timeline]) -> Page:
    """The page, not yet rendered."""
    titles = [(name, timeline_note(timeline)) for name, timeline in timelines.items()]
    machines = " · ".join(dict.fromkeys(t.machine for t in timelines.values()))
    return Page(
        ", ".join(timelines),
        machines,
        timelines_html(titles),
        clock_note(timelines),
        section_data(timelines.values()),
    )


def timeline_note(timeline: Timeline) -> str:
    """Program, origin, length, the steady time of a layer, and what of the length is exposed communication
    on the rank that ends last, in one line."""
    layer = layer_ns(timeline)
    parts = [timeline.program, timeline.origin, f"whole {micro(timeline.makespan_ns / 1000)}"]
    if layer:
        parts.append(f"one layer {micro(layer / 1000)}")
    exposed = exposed_ns(timeline)
    if any(exposed.values()):
        last = max(timeline.spans, key=lambda span: span.end_ns).rank
        parts.append(f"exposed communication {micro(exposed[last] / 1000)} on rank {last}")
    return " · ".join(parts)


def clock_note(timelines: Mapping[str, Timeline]) -> str:
    """A paragraph on how far the ranks' clocks of measured timelines may be apart."""
    errors = {n: t.clock_error_ns for n, t in timelines.items() if t.clock_error_ns}
    words = "; ".join(f"{name}: {micro(ns / 1000)}" for name, ns in errors.items())
    text = f"Clocks of different ranks agree within: {words}." if words else ""
    return f"<p>{escape(text)}</p>" if text else ""
