"""Plotly figures as plain dictionaries, drawn by the page's script when they come near the screen.

The package's own figure classes would validate every value, which takes longer than the whole page.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def stacked_bars(
    chart: str,
    title: str,
    rows: Mapping[str, Mapping[str, float]],
    parts: list[tuple[str, str]],
    colours: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """A bar per row of stacked parts (key, label); a part's colour is in `colours`, else its family's."""
    names = list(rows)[::-1]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "y": names,
            "x": [rows[name].get(part, 0.0) for name in names],
            "marker": {"color": colours.get(part, part)},
            "hovertemplate": "%{y}, " + label + ": %{x:,.1f} µs<extra></extra>",
        }
        for part, label in parts
        if any(rows[name].get(part) for name in names)
    ]
    layout = {
        "barmode": "stack",
        "height": 120 + 30 * len(names),
        "title": {"text": title, "font": {"size": 13}, "x": 0, "xref": "paper"},
        "margin": {"l": 10, "r": 10, "t": 34, "b": 30},
        "legend": {"orientation": "h", "y": -0.25, "traceorder": "normal", "font": {"size": 11}},
        "bargap": 0.3,
        "xaxis": {"separatethousands": True, "exponentformat": "none"},
    }
    return {"id": chart, "traces": traces, "layout": layout}


def columns_by_rank(
    chart: str, title: str, series: Mapping[str, tuple[str, list[int]]]
) -> dict[str, Any]:
    """Grouped columns over ranks: label -> (colour or family, value of each rank)."""
    traces = [
        {
            "type": "bar",
            "name": label,
            "x": list(range(len(values))),
            "y": values,
            "marker": {"color": colour},
            "hovertemplate": "rank %{x}, " + label + ": %{y:,}<extra></extra>",
        }
        for label, (colour, values) in series.items()
    ]
    layout = {
        "barmode": "group",
        "showlegend": True,
        "height": 250,
        "title": {"text": title, "font": {"size": 13}, "x": 0, "xref": "paper"},
        "margin": {"l": 10, "r": 10, "t": 34, "b": 30},
        "legend": {"orientation": "h", "y": -0.2, "font": {"size": 11}},
        "xaxis": {"title": {"text": "rank"}, "nticks": 16},
        "yaxis": {"separatethousands": True, "exponentformat": "none"},
    }
    return {"id": chart, "traces": traces, "layout": layout}


def charts_html(charts: list[dict[str, Any]]) -> str:
    """The boxes that the charts are drawn into; empty when there are none."""
    if not charts:
        return ""
    boxes = "".join(
        f'<div class="card"><div class="chart" id="{chart["id"]}"></div></div>' for chart in charts
    )
    return f'<div class="charts">{boxes}</div>'
