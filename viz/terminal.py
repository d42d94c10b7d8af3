"""Tables and timelines on a terminal, for people on a GPU node over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from viz.figures import COLUMNS, micro


def compare_table(document: Mapping[str, Any]) -> Table:
    """The schedules of a `compare` document as one table; the winner's row is bold, a refused schedule
    shows its rule and reason in place of figures."""
    table = Table(
        title=str(document["scenario"]), caption=_caption(document), box=None, padding=(0, 1)
    )
    table.add_column("schedule", no_wrap=True)
    shown = [c for c in COLUMNS if c.brief]
    for column in shown:
        table.add_column(column.title, justify="right")
    table.add_column("band", justify="right", no_wrap=True)
    refused = []
    for row in document["schedules"]:
        style = "bold green" if row["name"] == document.get("best") else ""
        cells = [column.text(row) for column in shown]
        if row.get("refused"):
            refused.append(row)
            style = "dim"
        table.add_row(_name(row), *cells, _band(row), style=style)
    return table


def refusals(document: Mapping[str, Any]) -> list[Text]:
    """One line per refused schedule: its name, the rule and the reason."""
    return [
        Text.assemble(
            (str(row["name"]), "bold"),
            f" refused ({row['refused']['rule']}): ",
            row["refused"]["reason"],
        )
        for row in document["schedules"]
        if row.get("refused")
    ]


def _name(row: Mapping[str, Any]) -> str:
    variant = row.get("variant")
    return str(row["name"]) if variant in (None, row["name"]) else f"{row['name']} ({variant})"


def _band(row: Mapping[str, Any]) -> str:
    band = row.get("band_us")
    return f"{micro(band[0])} to {micro(band[1])}" if band else "–"


def _caption(document: Mapping[str, Any]) -> str:
    return f"{document['hardware']} · SGLang {document['sglang']} rules"
