"""A timeline as columns of integers and string tables: small to embed, quick to write and to read.

The page's script and the tests read the same columns; `docs/formats.md` describes timeline files,
which are another thing (complete, and stable across versions).
"""

from __future__ import annotations

from typing import Any

from schedules.merit.critical_path import PathItem, critical_path
from schedules.timeline import CAUSES, Timeline, Waited
from viz.palette import FAMILIES, family_name

_CAUSE_INDEX = {cause: index for index, cause in enumerate(CAUSES)}
_CHILD_INDEX = {"": 0, "a": 1, "b": 2}
_FAMILY_INDEX = {one.name: index for index, one in enumerate(FAMILIES)}


class Table:
    """Strings numbered in order of first appearance."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def add(self, text: str) -> int:
        """The number of `text`."""
        return self.index.setdefault(text, len(self.index))

    @property
    def strings(self) -> list[str]:
        """The strings, by number."""
        return list(self.index)


def timeline_columns(timeline: Timeline) -> dict[str, Any]:
    """The timeline as JSON-ready columns, one entry per span and column.

    `critical` lists the spans of the critical path, in a predicted timeline only: the waits of a
    measured one do not name who ended them. Column `waits` and `stalls` hold, for
    each span, the number of entries that it has in the flat columns `wait_*` and `stall_*`. Times are
    integer nanoseconds; a culprit of -1 is none.
    """
    ops, lanes, kinds, labels = Table(), Table(), Table(), Table()
    spans = timeline.spans
    columns: dict[str, Any] = {
        "program": timeline.program,
        "machine": timeline.machine,
        "origin": timeline.origin,
        "clock_error_ns": timeline.clock_error_ns,
        "op": [ops.add(s.op) for s in spans],
        "rank": [s.rank for s in spans],
        "lane": [lanes.add(s.lane) for s in spans],
        "start": [s.start_ns for s in spans],
        "end": [s.end_ns for s in spans],
        "kind": [kinds.add(s.kind) for s in spans],
        "family": [_FAMILY_INDEX[family_name(s.kind, s.op, s.lane)] for s in spans],
        "layer": [s.layer for s in spans],
        "child": [_CHILD_INDEX.get(s.child, 2) for s in spans],
        "sms": [s.sms for s in spans],
        "alone": [s.alone_ns for s in spans],
        "label": [labels.add(s.label) for s in spans],
    }
    columns |= _waited("wait", [s.waits for s in spans], ops)
    columns |= _waited("stall", [s.stalls for s in spans], ops)
    wanted = {(item.rank, item.op) for item in _critical_path(timeline)}
    columns["critical"] = [i for i, s in enumerate(spans) if (s.rank, s.op) in wanted]
    columns |= {"ops": ops.strings, "lanes": lanes.strings}
    columns |= {"kinds": kinds.strings, "labels": labels.strings}
    return columns


def counter_columns(timeline: Timeline) -> dict[int, list[dict[str, Any]]]:
    """Counters by rank: `name`, and the points as times `t` in ns and values `v`."""
    found: dict[int, list[dict[str, Any]]] = {}
    for counter in timeline.counters:
        found.setdefault(counter.rank, []).append(
            {
                "name": counter.name,
                "t": [ns for ns, _ in counter.points],
                "v": [round(value, 2) for _, value in counter.points],
            }
        )
    return found


def _critical_path(timeline: Timeline) -> tuple[PathItem, ...]:
    return critical_path(timeline) if timeline.origin == "predicted" else ()


def _waited(prefix: str, rows: list[tuple[Waited, ...]], ops: Table) -> dict[str, list[int]]:
    flat = [entry for row in rows for entry in row]
    return {
        f"{prefix}s": [len(row) for row in rows],
        f"{prefix}_cause": [_CAUSE_INDEX[w.cause] for w in flat],
        f"{prefix}_ns": [w.ns for w in flat],
        f"{prefix}_op": [-1 if w.culprit is None else ops.add(w.culprit) for w in flat],
        f"{prefix}_rank": [-1 if w.culprit_rank is None else w.culprit_rank for w in flat],
    }
