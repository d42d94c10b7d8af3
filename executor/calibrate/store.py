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


class Store:
    """The records of one file, by task. ExecutorError names a line that is no task. A task that was
    begun twice and never done took its process with it; it is `hopeless`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, tuple[Record, ...]] = {}
        self._begun: Counter[str] = Counter()
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
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        """Finished tasks; a last line that was cut off is taken away."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ExecutorError(f"{self.path}: cannot be read: {error}") from error
        whole, _, rest = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                if "records" in entry:
                    self._records[entry["task"]] = tuple(map(dict, entry["records"]))
                else:
                    self._begun[entry["task"]] += 1
            except (KeyError, TypeError, ValueError) as error:
                where = f"{self.path}:{number}"
                raise ExecutorError(f"{where}: not a finished task: {line[:60]!r}") from error
        if rest:
            self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")
