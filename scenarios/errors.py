"""The error of a refused scenario, and how values and lines are shown in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from models.errors import InputError

Key = str | int
KeyPath = tuple[Key, ...]
Mark = tuple[int, int]

ABSENT = object()
_SHOWN_VALUE = 80
_SHOWN_LINE = 160


class ScenarioError(InputError):
    """An input that is refused; `str()` is the whole message for the user.

    `where` is `file:line:column` or the option that carried the input; `key` is dotted; `value` is
    shown as written; `allowed` says what would be accepted; `near` are the names among which a close
    match of `word` (else of `value`) is looked for; `excerpt` is the line with a mark under the fault.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str = "",
        key: str = "",
        value: object = ABSENT,
        allowed: str = "",
        near: Iterable[str] = (),
        word: str | int = "",
        excerpt: str = "",
    ) -> None:
        self.problem, self.where, self.excerpt = problem, where, excerpt
        self.source, self.key, self.value, self.allowed = where, key, value, allowed
        self.close = close_match(str(word or value), near)
        ValueError.__init__(self, self._message())

    def with_note(self, note: str) -> ScenarioError:
        """The same error with one more line."""
        self.args = (f"{self}\n({note})",)
        return self

    def _message(self) -> str:
        key = self.key if len(self.key) <= _SHOWN_LINE else f"{self.key[:_SHOWN_LINE]}..."
        key = key if self.value is ABSENT else f"{key} = {shown(self.value)}"
        head = ": ".join(part for part in (self.where, key, self.problem) if part)
        if self.allowed:
            head += f"; allowed: {self.allowed}"
        if self.close:
            head += f"; did you mean {self.close!r}?"
        return f"{head}\n{self.excerpt}" if self.excerpt else head


class BatchTooLarge(ScenarioError):
    """A batch that is larger than the KV pool of a rank, the file of its ids, or what is built at all."""


def close_match(word: str, names: Iterable[str]) -> str | None:
    """The name most like `word`, or None when none is close."""
    by_lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def shown(value: object) -> str:
    """A value as a user would write it, cut to a readable length."""
    if isinstance(value, str):
        text = repr(value)
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key}: ..." for key in value) + "}"
    elif isinstance(value, tuple):
        text = "[" + ", ".join(shown(item) for item in value[:8]) + "]"
    else:
        text = str(value)
    return text if len(text) <= _SHOWN_VALUE else text[: _SHOWN_VALUE - 3] + "..."


def dotted(path: KeyPath) -> str:
    """`("schedules", 2, "ops")` as `schedules.2.ops`."""
    return ".".join(str(part) for part in path)


def marked_line(text: str, line: int, column: int) -> str:
    """The line with its number, and a mark under `column`; both count from 1."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ""
    start = max(0, column - _SHOWN_LINE // 2)
    shown_line = lines[line - 1][start : start + _SHOWN_LINE]
    return f"{line:5} | {shown_line}\n      | {' ' * (column - 1 - start)}^"
