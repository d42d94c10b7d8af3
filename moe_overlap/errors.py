"""How a command ends when it does not end well. Bad input is `models.errors.InputError`."""

from __future__ import annotations

from models.errors import InputError

DONE, REFUSED, USAGE, MISSING, FAILED = range(5)


class Refused(InputError):
    """A well-formed input that is refused (a schedule the rules forbid): exit status 1."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)
        self.source = self.key = self.allowed = ""
        self.value = None
        self.line = 0


class MachineLacks(RuntimeError):
    """The machine lacks something (a GPU, a library); says what and how to get it: exit status 3."""


class RunFailed(RuntimeError):
    """The run started and failed: exit status 4."""
