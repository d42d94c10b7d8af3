"""The report of `compare`: verdict, figures, timelines, limits, in one HTML file that opens offline."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schedules.program import Program
from schedules.timeline import Timeline
from viz.answers import answers_html
from viz.charts import charts_html, stacked_bars
from viz.figures import COLUMNS, Column, gain_words, micro
from viz.page import Page, timelines_html, write_page
from viz.palette import CAUSE_COLOURS, FAMILIES, family_name
from viz.sections import section_data
from viz.work_text import work_columns

Document = Mapping[str, Any]


def write_report(
    path: Path | str,
    document: Document,
    timelines: Mapping[str, Timeline],
    programs: Mapping[str, Program] = MappingProxyType({}),
) -> None:
    """Write the report of a `compare` document (DESIGN section 7) and of the timelines by schedule name.

    Schedules without a timeline (refused ones) appear in the table only; with its program a timeline's
    hover also tells each kernel's work. OSError when the file
    cannot be written; an existing file is replaced whole or left alone.
    """
    write_page(Path(path), report_page(document, timelines, programs))


def report_page(
    document: Document,
    timelines: Mapping[str, Timeline],
    programs: Mapping[str, Program] = MappingProxyType({}),
) -> Page:
    """The report as a page, not yet rendered."""
    rows = {row["name"]: row for row in document["schedules"]}
    data: dict[str, Any] = {"document": document, "charts": _charts(document, timelines)}
    works = (work_columns(timeline, programs.get(name)) for name, timeline in timelines.items())
    data |= section_data(timelines.values(), works)
    titles = [(name, _note(rows.get(name, {}), timeline)) for name, timeline in timelines.items()]
    lanes = timelines_html(titles) if titles else ""
    return Page(
        heading=str(document["scenario"]),
        facts=f"{document['hardware']} · SGLang {document['sglang']} rules · "
        f"moe-overlap {document['version']} · predicted, unmeasured",
        body=verdict_html(document)
        + answers_html(document)
        + table_html(document)
        + lanes
        + charts_html(data["charts"]),
        footer=footer_html(document),
        data=data,
    )


def _note(row: Document, timeline: Timeline) -> str:
    parts = [str(row["variant"])] if row.get("variant") not in (None, row.get("name")) else []
    if row.get("layer_us") is not None:
        parts.append(f"one layer {micro(row['layer_us'])}")
    if row.get("step_us") is not None:
        parts.append(f"step {micro(row['step_us'])}")
    if row.get("launch"):
        parts.append(str(row["launch"]).replace("_", " "))
    return " · ".join([*parts, timeline.origin])


def verdict_html(document: Document) -> str:
    """The winner, its gain, how sure that is, and the reason in words."""
    best = document.get("best")
    rows = {row["name"]: row for row in document["schedules"]}
    verdict = document.get("verdict") or ""
    kind = "clear" if verdict == "clear" else "close"
    badge = f'<span class="badge {kind}" data-key="verdict">{escape(str(verdict))}</span>'
    gain = gain_words(rows[best]) if best in rows else ""
    return (
        '<div class="verdict card"><div>'
        f'<div class="best" data-key="best">{escape(str(best or "none can run"))}</div>'
        f'<div class="gain">{escape(gain)}</div>'
        f"{badge if verdict else ''}</div>"
        f'<p class="why" data-key="why">{escape(str(document.get("why") or ""))}</p></div>'
    )


def table_html(document: Document) -> str:
    """One row per schedule. Each cell holds its JSON number in `data-value` and its key in `data-key`."""
    shown = [c for c in COLUMNS if any(c.values(row) for row in document["schedules"])]
    head = "".join(f'<th scope="col">{escape(c.title)}</th>' for c in shown)
    longest = max((_high(row) for row in document["schedules"]), default=0.0)
    body = "".join(
        _row_html(row, shown, document.get("best"), longest) for row in document["schedules"]
    )
    return (
        '<div class="table card"><table id="figures"><thead><tr><th scope="col">schedule</th>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _high(row: Document) -> float:
    band = row.get("band_us")
    return float(band[1] if band else row.get("step_us") or 0.0)


def _row_html(row: Document, columns: list[Column], best: object, longest: float) -> str:
    name = escape(str(row["name"]))
    variant = row.get("variant")
    if variant and variant != row["name"]:
        name += f' <span class="facts">{escape(str(variant))}</span>'
    opening = f'<tr data-schedule="{escape(str(row["name"]))}"'
    opening += ' class="best">' if row["name"] == best else ">"
    cells = [f'<th scope="row">{name}</th>']
    if row.get("refused"):
        refused = row["refused"]
        reason = f"refused ({refused['rule']}): {refused['reason']}"
        if row.get("step_us") is None:
            return f'{opening}{cells[0]}<td class="text" colspan="40">{escape(reason)}</td></tr>'
        cells = [f'<th scope="row">{name} <span class="facts">{escape(reason)}</span></th>']
    for column in columns:
        cell = "–".join(
            f'<span data-key="{key}" data-value="{value!r}">{escape(column.form(value))}</span>'
            for key, value in zip(column.keys, column.values(row), strict=False)
        )
        bar = _bar_html(row, longest) if column.keys == ("step_us",) else ""
        cells.append(f"<td>{cell or '–'}{bar}</td>")
    return f"{opening}{''.join(cells)}</tr>"


def _bar_html(row: Document, longest: float) -> str:
    """The step time as a bar and its band as a line across the bar's end."""
    step, band = row.get("step_us"), row.get("band_us")
    if not step or longest <= 0:
        return ""
    low, high = band or (step, step)
    left, width = 100 * low / longest, 100 * (high - low) / longest
    return (
        f'<span class="bar" aria-hidden="true"><i style="width:{100 * step / longest:.1f}%"></i>'
        f'<b style="left:{left:.1f}%;width:{width:.1f}%"></b></span>'
    )


def _charts(document: Document, timelines: Mapping[str, Timeline]) -> list[dict[str, Any]]:
    """Plotly figures, as plain dictionaries; a colour names a family or is a CSS colour."""
    rows = [row for row in document["schedules"] if row["name"] in timelines]
    charts = []
    path = {row["name"]: _path_us(row, timelines[row["name"]]) for row in rows}
    if any(path.values()):
        parts = [(f.name, f.title) for f in FAMILIES]
        title = "critical path of one layer by kind of operation, µs"
        charts.append(stacked_bars("chart-path", title, path, parts))
    bubbles = {row["name"]: row.get("bubbles_us") or {} for row in rows}
    if any(any(one.values()) for one in bubbles.values()):
        causes = sorted({cause for one in bubbles.values() for cause in one})
        parts = [(cause, cause.replace("_", " ")) for cause in causes]
        title = "bubbles of one layer by cause, µs"
        charts.append(stacked_bars("chart-bubbles", title, bubbles, parts, CAUSE_COLOURS))
    return charts


def _path_us(row: Document, timeline: Timeline) -> dict[str, float]:
    spans = {span.op: span for span in timeline.spans}
    total: Tally[str] = Tally()
    for entry in row.get("critical_path") or ():
        span = spans.get(entry["op"])
        name = family_name(span.kind, span.op, span.lane) if span else "other"
        total[name] += entry["us"]
    return dict(total)


def footer_html(document: Document) -> str:
    """What these figures rest on and what they leave out."""
    lines = []
    for row in document["schedules"]:
        shares = row.get("cost_shares") or {}
        if shares:
            words = ", ".join(f"{label} {share:.0%}" for label, share in shares.items())
            lines.append(f"{row['name']}: {words}")
    shares_text = "Time by origin of its figures — " + "; ".join(lines) + "." if lines else ""
    limits = (
        "Every time on this page is a prediction, unmeasured. Kernel times come "
        "from the hardware profile; a share labelled fitted or roofline has no measurement at its own "
        "shape. Bands follow from those labels. Two bands may overlap and the verdict still be clear: "
        "what both schedules share of an error cancels in their difference, and that is too close to "
        "call where it is within its own uncertainty."
    )
    left_out = (
        "Not modelled: programmatic dependent launch, clocks and power, the memory allocator, gaps of "
        "the serving engine's scheduler, queueing, sampling, accepted drafts, L2 reuse, loads that "
        "change from layer to layer, network congestion, prefill and decode in one batch "
        "(docs/limits.md)."
    )
    profile = f"Hardware profile {document['hardware']}, sha256 {document['profile_sha256']}."
    return "".join(
        f"<p>{escape(text)}</p>" for text in (limits, shares_text, left_out, profile) if text
    )
