"""The data of a page's timeline sections: columns per timeline, and a summary of each.

The summaries say all that the page needs before a timeline is looked at, so that the columns of one
that is off the screen are not even parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from schedules.merit import exposed_intervals
from schedules.timeline import Timeline
from viz.columns import counter_columns, timeline_columns
from viz.window import layer_windows, steady_layer

_DRAWN = ("critical", "exposed", "yields", "events")


def section_data(
    timelines: Iterable[Timeline], overlays: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Embedded documents `timeline-0`, ..., `counters-0-7` of each rank, and `summaries`. `overlays` are, timeline by timeline, further
    columns that a page draws: `yields` (rank, ns), `events` (spans), `work`. Exposed communication is always
    there, as (rank, start, end)."""
    given = list(timelines)
    extra = list(overlays) or [{} for _ in given]
    data: dict[str, Any] = {"summaries": []}
    for index, (timeline, overlay) in enumerate(zip(given, extra, strict=True)):
        columns = timeline_columns(timeline) | {"exposed": _exposed(timeline)} | dict(overlay)
        data["summaries"].append(_summary(timeline, columns))
        data[f"timeline-{index}"] = columns
        data |= {f"counters-{index}-{r}": one for r, one in counter_columns(timeline).items()}
    return data


def _exposed(timeline: Timeline) -> list[list[int]]:
    return [
        [rank, start, end]
        for rank in timeline.ranks
        for start, end in exposed_intervals(timeline, rank)
    ]


def _summary(timeline: Timeline, columns: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layers": [[layer, *window] for layer, window in layer_windows(timeline).items()],
        "steady": steady_layer(timeline),
        "makespan": timeline.makespan_ns,
        "ranks": list(timeline.ranks),
        "families": sorted(set(columns["family"])),
        "split": 2 in columns["child"],
        "has": [name for name in _DRAWN if columns.get(name)]
        + ["counters"] * bool(timeline.counters),
    }
