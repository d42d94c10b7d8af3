"""The comparison as a table on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from viz.figures import COLUMNS

Document = Mapping[str, Any]


def compare_table(document: Document) -> Group:
    """A title, and the schedules of a `compare` document as one table; where the terminal is narrow
    long names wrap, never figures.

    The winner's row is bold. A refused schedule has dashes for figures; `refusals` gives the reasons.
    """
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("schedule", overflow="fold", min_width=10)
    shown = [column for column in COLUMNS if column.short]
    for column in shown:
        table.add_column(column.short, justify="right", no_wrap=True)
    for row in document["schedules"]:
        style = "bold green" if row["name"] == document.get("best") else ""
        style = "dim" if row.get("refused") else style
        table.add_row(_name(row), *(column.text(row) for column in shown), style=style)
    return Group(Text(_title(document), style="italic"), table)


def refusals(document: Document) -> list[Text]:
    """One line per refused schedule: its name, the rule and the reason."""
    return [
        Text.assemble(
            (str(row["name"]), "bold"),
            f" refused ({row['refused']['rule']}): {row['refused']['reason']}",
        )
        for row in document["schedules"]
        if row.get("refused")
    ]


def _name(row: Document) -> str:
    variant = row.get("variant")
    return str(row["name"]) if variant in (None, row["name"]) else f"{row['name']} ({variant})"


def _title(document: Document) -> str:
    return f"{document['scenario']} · {document['hardware']} · SGLang {document['sglang']} rules · predicted, unmeasured"
