"""Where commands write: one document or a table on standard output, progress on standard error."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def tell(notes: Iterable[object]) -> None:
    """A line on standard error for each thing that a user should know before trusting the result."""
    for note in notes:
        sys.stderr.write(f"note: {note}\n")


def check_writable(target: Path, endings: Sequence[str] = ()) -> Path:
    """The target; Refused when it will not be possible to write it, or its name has none of `endings`.
    Asked before long work, so it leaves no folder behind: a file is tried in the nearest folder that
    there is, and removed."""
    _check_kind(target)
    if endings and target.suffix not in endings:
        allowed = ", ".join(endings)
        raise Refused(f"{target}: its ending names no format; allowed: {allowed}")
    folder = Path(os.path.realpath(target)).parent
    while not folder.exists():
        folder = folder.parent
    trial = folder / f".{target.name[:32]}.{secrets.token_hex(4)}.part"
    try:
        trial.open("xb").close()
        trial.unlink()
    except OSError as error:
        raise Refused(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def writable(target: Path) -> Path:
    """The target, its folder made; Refused when it is a folder, a device or a pipe (writing renames
    onto the target, which would replace those), or its folder cannot be made."""
    _check_kind(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{target.parent}: cannot be made: {error.strerror or error}") from error
    return target


def _check_kind(target: Path) -> None:
    if target.is_dir():
        raise Refused(f"{target}: is a directory, a file is needed")
    if target.exists() and not target.is_file():
        raise Refused(f"{target}: is not a regular file")
