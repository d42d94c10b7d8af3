"""Errors of the text grammars: the faulty line with a mark under the fault."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GrammarError(ValueError):
    """A text that does not parse. The message shows the line and a caret under `column`.

    `line` and `column` count from 1, so that editors agree with them.
    """

    def __init__(self, message: str, source: str, line: int, column: int) -> None:
        self.reason = message
        self.line = line
        self.column = column
        mark = " " * (column - 1) + "^"
        super().__init__(f"line {line}, column {column}: {message}\n    {source}\n    {mark}")


def allowed(value: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown `value`: a close match, and all that is allowed."""
    names = sorted(known)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (allowed: {', '.join(names) or 'none'})"
