"""Optional parts: what to say when the package behind one is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingExtra(RuntimeError):
    """An optional package is not installed; the message says what needs it and how to get it."""

    def __init__(self, extra: str, needs: str) -> None:
        super().__init__(f"{needs} needs the extra {extra!r}: pip install 'moe-overlap[{extra}]'")
        self.extra = extra


def optional(module: str, extra: str, needs: str) -> Any:
    """The module, imported now; MissingExtra when its package is absent."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(extra, needs) from error
