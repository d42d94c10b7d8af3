"""Programs and timelines in files. Writing goes to a file beside the target, then renames it, so
that a reader never sees half a document; reading turns every fault into one message with the path.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from schedules.codec import FormError
from schedules.json_form import (
    program_from_json,
    program_to_json,
    timeline_from_json,
    timeline_to_json,
)
from schedules.program import Program
from schedules.timeline import Timeline

T = TypeVar("T")


def write_beside(path: Path, content: str | bytes) -> None:
    """Writes `content` (text as UTF-8) beside `path`, then renames it onto `path`; a link is followed.

    OSError with the name of `path`; the file beside is removed then, and `path` is untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            file.write(data)
        beside.replace(target)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def read_json(path: Path) -> Any:
    """The JSON value in a file. ValueError, beginning with the path, when the file cannot be read,
    is not UTF-8, is not JSON, repeats a key, or holds NaN or an infinity."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise ValueError(f"{place}: is not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def save_program(program: Program, path: Path) -> None:
    """Writes the JSON document of a program."""
    write_beside(path, _text(program_to_json(program)))


def load_program(path: Path) -> Program:
    """The program in a JSON file; ValueError with file and key."""
    return _load(path, program_from_json)


def save_timeline(timeline: Timeline, path: Path) -> None:
    """Writes the JSON document of a timeline."""
    write_beside(path, _text(timeline_to_json(timeline)))


def load_timeline(path: Path) -> Timeline:
    """The timeline in a JSON file; ValueError with file and key."""
    return _load(path, timeline_from_json)


def _load(path: Path, read: Callable[[object], T]) -> T:
    document = read_json(path)
    try:
        return read(document)
    except FormError as error:
        raise ValueError(f"{path}: {error}") from None


def _text(document: dict[str, Any]) -> str:
    """One line for each top-level key and for each item of a top-level list: diffs stay readable."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            items = ",\n".join("  " + _dump(item) for item in value)
            lines.append(f"{json.dumps(key)}: [\n{items}\n ]")
        else:
            lines.append(f"{json.dumps(key)}: {_dump(value)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _dump(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(", ", ": "))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")
