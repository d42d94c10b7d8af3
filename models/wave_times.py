"""Times of decode attention by its waves: CTAs that take an SM each come `ceil(CTAs / SMs)` times, and
each time takes a start and a time for each key of a CTA.

    t = waves (t0 + keys / CTA * key)

The ten points of the Triton set's kernel on an H200, from 8 to 120 sequences and 1025 to 4097 keys, lie
within 7 % of such a line. Left out one by one they are read 5.0 % off (median; 18 % at most). Along the
batch alone it is 8.2 % (36 at most): a batch between one that fills the GPU once and one that fills it
twice comes out up to 27 % too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

import numpy as np
import numpy.typing as npt

from models.machine import Costs
from models.measured import MeasuredPoint
from models.work import Grid, Work

Vector = npt.NDArray[np.float64]
KINDS = ("attention_decode",)
WAVE = Grid(kind="wave")
LEAST_POINTS = 3


class WaveTimes:
    """The lines of a machine's kernels of `KINDS`, of which its footprints give every measured number of
    CTAs; elsewhere there is none."""

    def __init__(self, base: Costs, points: Iterable[MeasuredPoint]) -> None:
        self._base = base
        by_heads: dict[int, list[MeasuredPoint]] = {}
        for point in points:
            if point.work.kind in KINDS:
                by_heads.setdefault(point.work.dim("heads"), []).append(point)
        self._lines: Mapping[int, Vector] = {
            heads: self._fitted(same)
            for heads, same in by_heads.items()
            if len(same) >= LEAST_POINTS and self._ruled(same)
        }

    def ns(self, work: Work, sms: int) -> float | None:
        """Time on so many SMs; None for a kernel without a line."""
        line = self._lines.get(work.dim("heads")) if work.kind in KINDS else None
        return None if line is None else float(line @ self._terms(work, sms))

    def _ruled(self, points: Iterable[MeasuredPoint]) -> bool:
        """Whether waves are known, and there are several of them somewhere."""
        points = tuple(points)
        known = all(point.ctas == self._ctas(point.work) for point in points)
        return known and any(point.ctas > point.sms for point in points)

    def _ctas(self, work: Work) -> int:
        return self._base.footprint(work, WAVE).ctas

    def _terms(self, work: Work, sms: int) -> Vector:
        ctas = self._ctas(work)
        waves = ceil(ctas / sms)
        return np.array((waves, waves * work.dim("pairs") / ctas), dtype=np.float64)

    def _fitted(self, points: Iterable[MeasuredPoint]) -> Vector:
        """The line of the least relative error; its coefficients are not below zero."""
        rows = np.array([self._terms(p.work, p.sms) / p.ns for p in points])
        both = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
        if np.all(both >= 0.0):
            return np.asarray(both, dtype=np.float64)
        keys = rows[:, 1]
        return np.array((0.0, keys.sum() / (keys @ keys)))
