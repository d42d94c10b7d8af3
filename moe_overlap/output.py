"""Where commands write: one document or a table on standard output, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from moe_overlap.errors import Refused

Progress = Callable[[str], None]


def stdout() -> Console:
    """The console of tables; plain text when standard output is no terminal."""
    return Console(highlight=False)


def print_json(document: dict[str, Any]) -> None:
    """One JSON document and a newline."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def progress() -> Iterator[Progress]:
    """A line on standard error that says what is being done; silent when that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda message: None
        return
    with console.status("") as status:
        yield lambda message: status.update(message)


def writable(target: Path) -> Path:
    """The target, its folder made; Refused when it is a folder, a device or a pipe (writing renames
    onto the target, which would replace those), or its folder cannot be made."""
    if target.is_dir():
        raise Refused(f"{target}: is a directory, a file is needed")
    if target.exists() and not target.is_file():
        raise Refused(f"{target}: is not a regular file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{target.parent}: cannot be made: {error.strerror or error}") from error
    return target
