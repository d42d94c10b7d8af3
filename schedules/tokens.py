"""Tokens of the stream grammar: one line at a time, with the column of every token for errors.

A word is bare (`L3.b.dispatch.send`, `counts`) or quoted as in JSON; `#` starts a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from schedules.caret import GrammarError, allowed

_BARE = r"[A-Za-z_][A-Za-z0-9_./-]*"
_TOKEN = re.compile(
    rf'(?P<space>\s+|\#.*)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<word>{_BARE})'
    r"|(?P<range>\d+\.\.\d+)|(?P<int>-?\d+)|(?P<mark>[:@+?=,()\[\]])"
)
_PLAIN = re.compile(rf"{_BARE}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is word, int, range, a mark's own character, or end; `value` is read, not spelled."""

    kind: str
    value: Any
    column: int
    quoted: bool = False


def quoted(word: str, reserved: Collection[str] = ()) -> str:
    """`word` as the grammar writes it: bare when it may be, quoted otherwise."""
    plain = _PLAIN.match(word) and word not in reserved
    return word if plain else json.dumps(word)


class Cursor:
    """Reads the tokens of one line from left to right."""

    def __init__(self, source: str, line: int) -> None:
        self.source = source
        self.line = line
        self._tokens = list(self._scan())
        self._at = 0

    def _scan(self) -> Iterator[Token]:
        at = 0
        while at < len(self.source):
            match = _TOKEN.match(self.source, at)
            if match is None:
                self.fail(f"unexpected character {self.source[at]!r}", at + 1)
            kind, text = match.lastgroup or "", match.group()
            if kind in ("quoted", "word"):
                yield self._word(kind, text, at + 1)
            elif kind == "int":
                yield Token("int", self._int(text, at + 1), at + 1)
            elif kind == "range":
                low, high = (self._int(end, at + 1) for end in text.split(".."))
                yield Token("range", (low, high), at + 1)
            elif kind == "mark":
                yield Token(text, text, at + 1)
            at = match.end()

    def _word(self, kind: str, text: str, column: int) -> Token:
        if kind == "word":
            return Token("word", text, column)
        try:
            return Token("word", json.loads(text), column, quoted=True)
        except json.JSONDecodeError:
            self.fail("not a quoted text as in JSON", column)

    def _int(self, text: str, column: int) -> int:
        try:
            return int(text)
        except ValueError:
            self.fail("the number is too long", column)

    @property
    def here(self) -> Token:
        """The next token; its kind is `end` after the last one."""
        if self._at < len(self._tokens):
            return self._tokens[self._at]
        return Token("end", "the end of the line", len(self.source.rstrip()) + 1)

    @property
    def at_end(self) -> bool:
        """Whether nothing but a comment is left."""
        return self.here.kind == "end"

    def follows(self, mark: str) -> bool:
        """Whether the token after the next one is `mark`."""
        after = self._at + 1
        return after < len(self._tokens) and self._tokens[after].kind == mark

    def accept(self, kind: str) -> bool:
        """Steps over the next token if it is of this kind."""
        if self.here.kind != kind:
            return False
        self._at += 1
        return True

    def take(self, kind: str, what: str) -> Token:
        """The next token, which must be of this kind; `what` names it in the error."""
        token = self.here
        if token.kind != kind:
            self.fail(f"expected {what}, found {token.value!r}")
        self._at += 1
        return token

    def word(self, what: str) -> str:
        """The next token as a name."""
        value: str = self.take("word", what).value
        return value

    def integer(self, what: str) -> int:
        """The next token as an integer."""
        value: int = self.take("int", what).value
        return value

    def one_of(self, choices: Collection[str], what: str) -> str:
        """The next token as one of `choices`; the error lists them."""
        token = self.take("word", what)
        if token.value not in choices:
            self.fail(
                f"unknown {what} {token.value!r}{allowed(token.value, choices)}", token.column
            )
        value: str = token.value
        return value

    def items(self, read: Callable[[], Any]) -> tuple[Any, ...]:
        """One or more values with commas between."""
        found = [read()]
        while self.accept(","):
            found.append(read())
        return tuple(found)

    def finish(self) -> None:
        """Nothing may be left on the line."""
        if not self.at_end:
            self.fail(f"unexpected {self.here.value!r}")

    def fail(self, message: str, column: int | None = None) -> NoReturn:
        """Raises GrammarError at `column`, by default at the next token."""
        raise GrammarError(message, self.source, self.line, column or self.here.column)
