"""What a calibration has measured so far, as JSON lines: nothing is lost when it is interrupted.

A finished task is one line, so that a line that was cut off is a task that is not done.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from executor.kernel_set import ExecutorError

Record = Mapping[str, Any]

MOST_TRIES = 2
TASK = 'an object with "task", text, and, once it is done, "records", a list of objects'


class Store:
    """The records of one file, by task. ExecutorError names a line that is no task. A task that was
    begun twice and never done took its process with it; it is `hopeless`. A last line that was
    `cut_off` (0: none was) is left out, and taken away when something is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, tuple[Record, ...]] = {}
        self._lines: dict[str, int] = {}
        self._begun: Counter[str] = Counter()
        self.cut_off = 0
        if path.exists():
            self._read()

    @property
    def done(self) -> frozenset[str]:
        """Names of the tasks that are done."""
        return frozenset(self._records)

    @property
    def hopeless(self) -> frozenset[str]:
        """Names of the tasks that are not tried again."""
        tried = {task for task, times in self._begun.items() if times >= MOST_TRIES}
        return frozenset(tried - self._records.keys())

    def records(self) -> tuple[Record, ...]:
        """All records of finished tasks, in order, each with its `task`."""
        return tuple(
            {**record, "task": task} for task, part in self._records.items() for record in part
        )

    def places(self) -> tuple[tuple[int, str], ...]:
        """Of each of `records` the line of the file that holds it, and its name there."""
        return tuple(
            (self._lines.get(task, 0), f"records[{index}]")
            for task, part in self._records.items()
            for index in range(len(part))
        )

    def add(self, task: str, records: Iterable[Record]) -> None:
        """Write a finished task's records through to the disk."""
        kept = tuple(records)
        self._write({"task": task, "records": kept})
        self._records[task] = kept

    def begin(self, task: str) -> None:
        """Note that a task is tried."""
        self._write({"task": task})
        self._begun[task] += 1

    def _write(self, entry: Record) -> None:
        if self.cut_off:
            kept = self.path.read_bytes().rpartition(b"\n")
            os.truncate(self.path, len(kept[0]) + len(kept[1]))
            self.cut_off = 0
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        """Finished tasks, and a last line that was cut off."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ExecutorError(f"{self.path}: cannot be read: {error}") from error
        whole, end, rest = text.rpartition("\n")
        lines = whole.split("\n") if end else []
        for number, line in enumerate(lines, start=1):
            try:
                self._take(json.loads(line), number)
            except (ValueError, RecursionError) as error:
                raise ExecutorError(
                    f"{self.path}:{number}: not a finished task: {line[:60]!r}; allowed: {TASK}"
                ) from error
        self.cut_off = len(lines) + 1 if rest else 0

    def _take(self, entry: Any, line: int) -> None:
        """A task that was begun, or is done; ValueError for what is neither."""
        task = entry.get("task") if isinstance(entry, dict) else None
        records = entry.get("records") if isinstance(entry, dict) else None
        if not isinstance(task, str):
            raise ValueError("no task")
        if "records" not in entry:
            self._begun[task] += 1
        elif isinstance(records, list) and all(isinstance(record, dict) for record in records):
            self._records[task], self._lines[task] = tuple(records), line
        else:
            raise ValueError("no records")
