"""Files of predictions and of measurements, a JSON object a line, and whether they are of the same cases."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from models.errors import InputError

Record = dict[str, Any]
Line = tuple[int, Record]
# What every prediction states; later ones state more.
KEYS = (
    "group", "schedule", "ranks", "layers", "overlapped", "profile", "sha256", "ns", "low_ns",
    "high_ns", "doubt_ns", "others", "unseen",
)  # fmt: skip


def read(path: Path) -> list[Record]:
    """The records of a file; InputError names the file and the line that is none."""
    return [record for _, record in numbered(path)]


def numbered(path: Path) -> list[Line]:
    """The records of a file, each with its line; InputError as `read`, and for a file without any."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "records", str(error), "a readable file of JSON") from error
    found = [(i, _record(path, i, line)) for i, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise InputError(str(path), "records", None, "a JSON object a line")
    return found


def _record(path: Path, number: int, line: str) -> Record:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InputError(str(path), "record", line, f"a JSON object ({error})", number) from error
    if not isinstance(found, dict):
        raise InputError(str(path), "record", found, "a JSON object", number)
    return found


def matched(predicted: Path, measured: Path) -> tuple[list[Record], list[Record], str]:
    """Predictions, measurements, and a message if groups were predicted only, else none.

    InputError, with file and line, where a group was not predicted, or is measured with other schedules
    than were: nothing that was measured is left out."""
    records, entries = numbered(predicted), numbered(measured)
    known = _schedules(predicted, records)
    found = set()
    for number, entry in entries:
        group = entry.get("group")
        if group not in known:
            raise InputError(str(measured), "group", group, f"a group of {predicted}", number)
        if "makespans_ns" in entry:
            _check(measured, number, entry, list(known[group]))
            found.add(group)
    if not found:
        raise InputError(str(measured), "makespans_ns", None, "at least one measured group")
    alone = [group for group in known if group not in found]
    told = ""
    if alone:
        line, more = min(known[alone[0]].values()), f" and {len(alone) - 1} more" * (len(alone) > 1)
        told = f"{predicted}:{line}: group {alone[0]!r}{more}: not measured in {measured}"
    return [record for _, record in records], [entry for _, entry in entries], told


def _schedules(path: Path, records: Iterable[Line]) -> dict[str, dict[str, int]]:
    """The line of each schedule, by group; InputError for a record that is no prediction."""
    known: dict[str, dict[str, int]] = {}
    for number, record in records:
        for key in KEYS:
            if key not in record:
                raise InputError(str(path), key, None, "a prediction", number)
        known.setdefault(record["group"], {})[record["schedule"]] = number
    return known


def _check(path: Path, number: int, entry: Record, schedules: list[str]) -> None:
    times = entry["makespans_ns"]
    found = sorted(times) if isinstance(times, dict) else times
    if found != sorted(schedules):
        allowed = f"times of {', '.join(schedules)}, which were predicted"
        raise InputError(str(path), "makespans_ns", found, allowed, number)
    for name, ns in times.items():
        if not ns:
            raise InputError(str(path), f"makespans_ns.{name}", ns, "at least one time", number)
