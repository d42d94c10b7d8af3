"""Distinct values by index: how the written forms of a program share works and matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Table:
    """Grows by `index`. With `by_identity` equal but separate objects get an entry each, so that
    reading restores which exchanges share one matrix object."""

    def __init__(self, items: Iterable[Any] = (), by_identity: bool = False) -> None:
        self.items: list[Any] = list(items)
        self._by_identity = by_identity
        self._index: dict[Any, int] = {}

    def index(self, value: Any) -> int:
        """The index of `value`, which is added when it is new."""
        key = id(value) if self._by_identity else value
        if key not in self._index:
            self._index[key] = len(self.items)
            self.items.append(value)
        return self._index[key]
