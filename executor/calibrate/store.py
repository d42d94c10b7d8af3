"""What a calibration has measured so far, as JSON lines: nothing is lost when it is interrupted.

A finished task is one line, so that a line that was cut off is a task that is not done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from executor.kernel_set import ExecutorError

Record = Mapping[str, Any]


class Store:
    """The records of one file, by task. ExecutorError names a line that is no task."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: dict[str, tuple[Record, ...]] = {}
        if path.exists():
            self._read()

    @property
    def done(self) -> frozenset[str]:
        """Names of the tasks that are done."""
        return frozenset(self._records)

    def records(self) -> tuple[Record, ...]:
        """All records of finished tasks, in order, each with its `task`."""
        return tuple(
            {**record, "task": task} for task, part in self._records.items() for record in part
        )

    def add(self, task: str, records: Iterable[Record]) -> None:
        """Write a finished task's records through to the disk."""
        kept = tuple(records)
        line = json.dumps({"task": task, "records": kept}, sort_keys=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._records[task] = kept

    def _read(self) -> None:
        """Finished tasks; a last line that was cut off is taken away."""
        text = self.path.read_text(encoding="utf-8")
        whole, _, rest = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                self._records[entry["task"]] = tuple(entry["records"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                where = f"{self.path}:{number}"
                raise ExecutorError(f"{where}: not a finished task: {line[:60]!r}") from error
        if rest:
            self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")
