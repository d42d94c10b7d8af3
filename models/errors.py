"""The one error of floor 0 for input that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """A file or value was refused. The message names file, key, value (None: it is missing) and what is
    allowed, where anything is."""

    def __init__(self, source: str, key: str, value: object, allowed: str, line: int = 0) -> None:
        where = f"{source}:{line}" if line else source
        rest = f"; allowed: {allowed}" if allowed else ""
        fault = "is missing" if value is None else f"{_short(value)} is not usable"
        super().__init__(f"{where}: {key}: {fault}{rest}")
        self.source = source
        self.key = key
        self.value = value
        self.allowed = allowed
        self.line = line


def choices(known: Iterable[str], value: object = None) -> str:
    """The known names as text, and the one that is closest to `value`; nothing where none is known."""
    names = sorted(known)
    close = get_close_matches(str(value), names, n=1) if value is not None else []
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return ", ".join(names) + hint


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
