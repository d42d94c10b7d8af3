"""The page of `validate`: predicted above measured on one time axis, and the error of every op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from schedules.timeline import Timeline
from viz.figures import micro
from viz.page import Page, timelines_html, write_page
from viz.palette import FAMILIES
from viz.sections import section_data
from viz.validation import Compared, OpError, compare_ops
from viz.view import clock_note, timeline_note

TEXT_COLUMNS = ("kind", "can come from")
Pairs = Mapping[str, tuple[Timeline, Timeline]]


def write_validation(
    path: Path | str, heading: str, pairs: Pairs, notes: Sequence[str] = ()
) -> None:
    """Write the page of (predicted, measured) timelines by schedule name, with `notes` on how they were
    predicted. OSError when the file cannot be written."""
    write_page(Path(path), validation_page(heading, pairs, notes))


def validation_page(heading: str, pairs: Pairs, notes: Sequence[str] = ()) -> Page:
    """The page, not yet rendered."""
    compared = {name: compare_ops(*pair) for name, pair in pairs.items()}
    timelines = {f"{name}, {one.origin}": one for name, pair in pairs.items() for one in pair}
    data = section_data(timelines.values())
    data["validation"] = {name: _document(pairs[name], found) for name, found in compared.items()}
    titles = [(name, timeline_note(timeline)) for name, timeline in timelines.items()]
    tables = "".join(_ops_html(name, found) for name, found in compared.items())
    machines = " · ".join(dict.fromkeys(t.machine for t in timelines.values()))
    told = "".join(f'<p class="hint">{escape(note)}</p>' for note in notes)
    body = _totals_html(pairs) + told + timelines_html(titles) + tables
    return Page(heading, machines, body, clock_note(timelines), data)


def _document(pair: tuple[Timeline, Timeline], compared: Compared) -> dict[str, Any]:
    predicted, measured = pair
    return {
        "predicted_us": predicted.makespan_ns / 1000,
        "measured_us": measured.makespan_ns / 1000,
        "ops": [
            {
                "op": op.name,
                "predicted_us": op.predicted_us,
                "measured_us": op.measured_us,
                "pairs": op.pairs,
                "cause": op.cause,
            }
            for op in compared.ops
        ],
        "only_predicted": list(compared.only_predicted),
        "only_measured": list(compared.only_measured),
    }


def _totals_html(pairs: Pairs) -> str:
    rows = "".join(
        f'<tr data-schedule="{escape(name)}"><th scope="row">{escape(name)}</th>'
        f"{_numbers(p.makespan_ns / 1000, m.makespan_ns / 1000)}</tr>"
        for name, (p, m) in pairs.items()
    )
    return _table("totals", ("schedule", "predicted", "measured", "predicted / measured"), rows)


def _ops_html(name: str, compared: Compared) -> str:
    rows = "".join(_op_html(op) for op in compared.ops)
    columns = (
        "op",
        "predicted",
        "measured",
        "predicted / measured",
        "spans",
        "kind",
        "can come from",
    )
    missing = [
        f"Only {origin}: {', '.join(names)}."
        for origin, names in (
            ("predicted", compared.only_predicted),
            ("measured", compared.only_measured),
        )
        if names
    ]
    notes = "".join(f'<p class="hint">{escape(text)}</p>' for text in missing)
    table = _table(f"ops-{name}", columns, rows)
    return f"<h2>Operations of {escape(name)}, mean over layers and ranks</h2>{notes}{table}"


def _op_html(op: OpError) -> str:
    title = next(f.title for f in FAMILIES if f.name == op.family)
    return (
        f'<tr><th scope="row">{escape(op.name)}</th>{_numbers(op.predicted_us, op.measured_us)}'
        f'<td>{op.pairs}</td><td class="text">{escape(title)}</td>'
        f'<td class="text">{escape(op.cause)}</td></tr>'
    )


def _numbers(predicted_us: float, measured_us: float) -> str:
    ratio = f"×{predicted_us / measured_us:.2f}" if measured_us else "–"
    return (
        f'<td data-value="{predicted_us!r}">{micro(predicted_us)}</td>'
        f'<td data-value="{measured_us!r}">{micro(measured_us)}</td><td>{ratio}</td>'
    )


def _table(name: str, columns: tuple[str, ...], rows: str) -> str:
    head = "".join(
        f'<th scope="col"{" class=text" * (title in TEXT_COLUMNS)}>{escape(title)}</th>'
        for title in columns
    )
    return (
        f'<div class="table card"><table id="{escape(name)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
