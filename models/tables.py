"""Point tables: measured values along series, interpolated in log space."""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from models.errors import InputError

Key = tuple[float, ...]
Where = Literal["point", "inside", "outside"]
_SAME = 1e-9
_NEIGHBOURS = 4


@dataclass(frozen=True, slots=True)
class Point:
    """One row of a table: its series, its place along it, and the time in us."""

    key: Key
    x: float
    us: float


@dataclass(frozen=True, slots=True)
class Reading:
    """A looked-up value, and whether it is a point, between points, or beyond them (the nearest
    point's value)."""

    value: float
    where: Where


def read_table(path: Path, key: Sequence[str], x: str) -> tuple[Point, ...]:
    """Points of a CSV file with a header, after lines that start with #. InputError names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "table", str(error), "a readable CSV file") from error
    return _points(path, text, tuple(key), x)


@lru_cache(maxsize=64)  # many machines are read from the same tables
def _points(path: Path, text: str, key: tuple[str, ...], x: str) -> tuple[Point, ...]:
    lines = text.splitlines()
    skipped = sum(1 for line in lines if line.startswith("#"))
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    points = []
    for number, row in enumerate(reader, start=skipped + 2):
        try:
            values = tuple(float(row[name]) for name in (*key, x, "us"))
        except (KeyError, TypeError, ValueError) as error:
            columns = ", ".join((*key, x, "us"))
            raise InputError(str(path), "table", row, f"numbers in {columns}", number) from error
        if values[-1] <= 0 or not all(map(math.isfinite, values)) or values[-2] <= 0:
            raise InputError(str(path), "us", row, "positive numbers", number)
        points.append(Point(values[: len(key)], values[-2], values[-1]))
    if not points:
        raise InputError(str(path), "table", "no rows", "at least one point")
    return tuple(points)


class LogTable:
    """Values over (key, x): linear in log x along a series; across series linear in the log of a
    one-part key, and by inverse squared distance of the nearest four for longer keys. Values of a
    repeated point are averaged."""

    def __init__(self, values: Mapping[tuple[Key, float], float]) -> None:
        self._series: dict[Key, tuple[list[float], list[float]]] = {}
        for (key, x), value in sorted(values.items()):
            xs, ys = self._series.setdefault(_logs(key), ([], []))
            xs.append(math.log(x))
            ys.append(value)
        self._keys = sorted(self._series)

    def at(self, key: Key, x: float) -> Reading:
        """The value at (key, x)."""
        place, along = _logs(key), math.log(x)
        if place in self._series:
            return self._along(place, along)
        if len(place) == 1:
            return self._between(place, along)
        return self._near(place, along)

    def _along(self, place: Key, x: float) -> Reading:
        xs, ys = self._series[place]
        i = bisect_left(xs, x - _SAME)
        if i < len(xs) and abs(xs[i] - x) <= _SAME:
            return Reading(ys[i], "point")
        if i == 0 or i == len(xs):
            return Reading(ys[min(i, len(xs) - 1)], "outside")
        share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        return Reading(ys[i - 1] + share * (ys[i] - ys[i - 1]), "inside")

    def _between(self, place: Key, x: float) -> Reading:
        i = bisect_left(self._keys, place)
        if i == 0 or i == len(self._keys):
            edge = self._along(self._keys[min(i, len(self._keys) - 1)], x)
            return Reading(edge.value, "outside")
        low, high = self._keys[i - 1], self._keys[i]
        share = (place[0] - low[0]) / (high[0] - low[0])
        first, second = self._along(low, x), self._along(high, x)
        outside = "outside" in (first.where, second.where)
        value = first.value + share * (second.value - first.value)
        return Reading(value, "outside" if outside else "inside")

    def _near(self, place: Key, x: float) -> Reading:
        ranked = sorted((math.dist(place, key), key) for key in self._keys)[:_NEIGHBOURS]
        readings = [(distance, self._along(key, x)) for distance, key in ranked]
        weights = [1.0 / (distance * distance + _SAME) for distance, _ in readings]
        total = sum(
            weight * reading.value for weight, (_, reading) in zip(weights, readings, strict=True)
        )
        inside = self._spans(place) and readings[0][1].where != "outside"
        return Reading(total / sum(weights), "inside" if inside else "outside")

    def _spans(self, place: Key) -> bool:
        """Whether every part of the key lies between the table's smallest and largest."""
        return all(
            min(key[i] for key in self._keys) - _SAME
            <= part
            <= max(key[i] for key in self._keys) + _SAME
            for i, part in enumerate(place)
        )


def _logs(key: Key) -> Key:
    return tuple(round(math.log(part), 12) if part > 0 else -1.0 for part in key)
