"""The page of `explain`: figures that show what each optimisation changes, for the reader's own scenario."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from schedules.timeline import Timeline
from viz.charts import charts_html, columns_by_rank
from viz.explain_checkpoint import checkpoint_html
from viz.explain_figures import control_html, gains_html, paths_html, slots_html
from viz.explain_words import (
    checkpoint_words,
    control_words,
    gains_words,
    overlap_words,
    paths_words,
    slots_words,
)
from viz.figures import micro
from viz.page import Page, timelines_html, write_page
from viz.sections import section_data

Document = Mapping[str, Any]


def write_explanation(
    path: Path | str, document: Document, timelines: Mapping[str, Timeline]
) -> None:
    """Write the page of an `explain` document; `timelines` are the schedules of its fifth figure by name.
    OSError when the file cannot be written."""
    write_page(Path(path), explanation_page(document, timelines))


def explanation_page(document: Document, timelines: Mapping[str, Timeline]) -> Page:
    """The page, not yet rendered."""
    charts = _load_charts(document["gains"]["load"])
    shown = [(schedule, timelines[schedule["name"]]) for schedule in document["overlap"]]
    data: dict[str, Any] = {"explanation": document, "charts": charts}
    data |= section_data((timeline for _, timeline in shown), (_overlays(*one) for one in shown))
    titles = [(schedule["name"], _note(schedule)) for schedule, _ in shown]
    figures: tuple[str, ...] = (
        _figure(
            "1. From two paths to one grouped GEMM",
            paths_words(document["paths"]),
            paths_html(document["paths"]),
        ),
        _figure("2. Slots", slots_words(document["slots"]), slots_html(document["slots"])),
        _figure(
            "3. Three layers of control",
            control_words(document["control"]),
            control_html(document["control"], bool(document["slots"]["shared"])),
        ),
        _figure(
            "4. Three optimisations",
            gains_words(document["gains"]),
            gains_html(document["gains"]) + charts_html(charts),
        ),
        _figure(
            "5. SBO against TBO",
            overlap_words(document["overlap"], document["overlap_refused"]),
            timelines_html(titles),
        ),
    )
    fit = document["checkpoint"]
    if fit is not None:
        figures += (_figure("6. Checkpoint", checkpoint_words(fit), checkpoint_html(fit)),)
    return Page(
        heading=f"What overlap and fusion change: {document['scenario']}",
        facts=f"{document['model']} · {document['hardware']} · SGLang {document['sglang']} rules · predicted, unmeasured",
        body="".join(figures),
        footer=f"<p>Hardware profile {escape(document['hardware'])}, sha256 {escape(document['profile_sha256'])}. Times are predictions, unmeasured; in figure 1 each kernel is priced alone.</p>",
        data=data,
    )


def _figure(title: str, words: str, body: str) -> str:
    return f'<section class="figure"><h2>{escape(title)}</h2><p>{escape(words)}</p>{body}</section>'


def _note(schedule: Document) -> str:
    parts = [str(schedule["variant"])] if schedule["variant"] != schedule["name"] else []
    if schedule["layer_us"] is not None:
        parts.append(f"one layer {micro(schedule['layer_us'])}")
    budgets: dict[int, list[str]] = {}
    for entry in schedule["budgets"]:
        budgets.setdefault(entry["sms"], []).append(entry["op"])
    parts += [f"{sms} SMs: {', '.join(ops)}" for sms, ops in budgets.items()]
    if schedule["refused"]:
        parts.append(f"refused here ({schedule['refused']['rule']}), shown all the same")
    return " · ".join(parts)


def _overlays(schedule: Document, timeline: Timeline) -> dict[str, Any]:
    """What the figure draws beside the lanes; `events` are the spans that waited for one."""
    return {
        "yields": [[turn["rank"], turn["ns"]] for turn in schedule["yields"]],
        "events": [
            index
            for index, span in enumerate(timeline.spans)
            if any(wait.cause == "dependency" for wait in span.waits)
        ],
    }


def _load_charts(load: Document) -> list[dict[str, Any]]:
    if load["home"] is None:
        return []
    series = {"shared expert at home": ("gemm", load["home"])}
    if load["waterfill"] is not None:
        series["Waterfill chooses its rank"] = ("combine", load["waterfill"])
    title = "copies that each rank's grouped GEMM receives"
    return [columns_by_rank("chart-load", title, series)]
