"""One YAML file as plain data that remembers the place of every key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from scenarios.errors import ABSENT, KeyPath, Mark, ScenarioError, dotted, marked_line, shown
from scenarios.yaml_tree import build_tree

MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Document:
    """One YAML mapping: `data` holds dicts, tuples and scalars; `keys` and `values` give line and
    column (from 1) of each key and of its value; `origins` names what replaced a value later."""

    file: str
    text: str
    data: dict[str, Any]
    keys: Mapping[KeyPath, Mark] = field(default_factory=dict)
    values: Mapping[KeyPath, Mark] = field(default_factory=dict)
    origins: Mapping[KeyPath, str] = field(default_factory=dict)

    def error(
        self,
        path: KeyPath,
        problem: str,
        *,
        at_key: bool = False,
        value: object = ABSENT,
        allowed: str = "",
        near: Iterable[str] = (),
        word: str | int = "",
        kind: type[ScenarioError] = ScenarioError,
    ) -> ScenarioError:
        """An error of this `kind`, at the value (or the key) of `path`, else at its nearest parent."""
        where, excerpt = self._place(path, at_key)
        return kind(
            problem,
            where=where,
            key=dotted(path),
            value=value,
            allowed=allowed,
            near=near,
            word=word,
            excerpt=excerpt,
        )

    def _place(self, path: KeyPath, at_key: bool) -> tuple[str, str]:
        parts = [path[:length] for length in range(len(path), -1, -1)]
        for part in parts:
            if part in self.origins:
                return self.origins[part], ""
        for part in parts:
            marks = self.keys if at_key and part == path else self.values
            if part in marks:
                line, column = marks[part]
                return f"{self.file}:{line}:{column}", marked_line(self.text, line, column)
        return self.file, ""


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """The text of a regular UTF-8 file of at most `max_bytes`; ScenarioError otherwise."""
    where = str(path)
    try:
        if path.is_dir():
            raise ScenarioError("is a directory, a file is needed", where=where)
        if not path.exists():
            raise ScenarioError("no such file", where=where)
        if not path.is_file():
            raise ScenarioError("is not a regular file", where=where)
        size = path.stat().st_size
        if size > max_bytes:
            raise ScenarioError(f"has {size} bytes, at most {max_bytes} are read", where=where)
        raw = path.read_bytes()
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error.strerror or error}", where=where) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(
            f"is not UTF-8 text (byte 0x{raw[error.start]:02x} at offset {error.start})",
            where=where,
        ) from error
    if "\0" in text:
        raise ScenarioError("is not text (it holds NUL bytes)", where=where)
    return text


def read_document(path: Path, *, max_bytes: int = MAX_BYTES) -> Document:
    """The YAML mapping in `path`; ScenarioError for anything else."""
    return parse_document(read_text(path, max_bytes=max_bytes), str(path))


@lru_cache(maxsize=32)
def parse_document(text: str, file: str) -> Document:
    """The YAML mapping in `text`, `file` naming it in errors; nobody may change it, since the same text
    is the same object.

    Refuses duplicate keys, keys that are not text, foreign tags, several documents, and more than
    MAX_NODES values (aliases counted each time) or MAX_DEPTH levels.
    """
    data, keys, values = build_tree(text, file)
    if data is None:
        raise ScenarioError("is empty, a mapping of keys is needed", where=file)
    if not isinstance(data, dict):
        raise ScenarioError(f"holds {shown(data)}, a mapping of keys is needed", where=file)
    return Document(file, text, data, keys, values)
