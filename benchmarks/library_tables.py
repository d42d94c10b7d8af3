"""docs/library.md, what is predicted for every scenario of the library: `python -m benchmarks.library_tables`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import moe_overlap as mo
from schedules.files import write_beside

PAGE = Path(__file__).resolve().parent.parent / "docs" / "library.md"
LABELS = ("measured", "interpolated", "fitted", "roofline")
HEAD = """\
# The scenarios of the library, predicted

`python -m benchmarks.library_tables` writes this page from `moe-overlap compare NAME` of every scenario, as it
stands. All of it is predicted and unmeasured here; what was measured is in [validation.md](validation.md). The
last columns are shares of the time of a schedule's kernels by the origin of their cost
([hardware-profiles.md](hardware-profiles.md)): the band follows from them.
"""
COLUMNS = (
    *("schedule", "step ms", "band ms", "over baseline", "layer µs", "exposed µs", "GiB"),
    *LABELS,
)


def main() -> None:
    """Write the page."""
    write_beside(
        PAGE, "\n".join([HEAD, *(line for name in mo.library() for line in section(name))])
    )


def section(name: str) -> Iterator[str]:
    """One scenario: its table, verdict, and what the report says beside them."""
    document = mo.compare(mo.load(name)).document()
    yield f"## {name}\n"
    yield _row(COLUMNS)
    yield _row(("---",) * len(COLUMNS))
    for row in document["schedules"]:
        yield _row(_cells(row))
    best = f"{document['best']}: " if document["best"] else ""
    lines = [f"{best}{document['verdict']}.", *document["answers"]["lines"]]
    lines += [f"{note['schedule']} ({note['rule']}): {note['text']}" for note in document["notes"]]
    yield "\n" + "\n".join(f"* {line}" for line in lines) + "\n"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    """A schedule's figures, or the rule that refuses it."""
    yield row["name"]
    if row["refused"]:
        yield f"refused: `{row['refused']['rule']}`"
        yield from ("–",) * (len(COLUMNS) - 2)
        return
    low, high = (us / 1000 for us in row["band_us"])
    yield f"{row['step_us'] / 1000:.2f}"
    yield f"{low:.2f} to {high:.2f}"
    gain = row["speedup_vs_baseline"]
    yield "–" if gain is None else f"{100 * (gain - 1):+.1f} %"
    yield f"{row['layer_us']:,.1f}"
    yield f"{row['exposed_comm_us']:,.1f}"
    yield f"{row['memory_gib']:.1f}"
    yield from (f"{row['cost_shares'].get(label, 0.0):.2f}" for label in LABELS)


def _row(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
