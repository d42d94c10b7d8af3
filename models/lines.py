"""Times along straight lines: a start, a time for each copy, and for each copy over the SMs that move it.

    t = t0 + copies * (link + sm / SMs)

On two H200s over NVLink this is within 3 % of normal-mode transfers (median; 9 % at most) from 8 to 32
SMs and 768 to 12288 tokens. Other kernels have no last term, and count tokens or rows: those of an
exchange, and some small ones, which are read closer so than from a profile's forms (points of a
calibration left out one by one: gate 1.8 instead of 8.3 %, top-k 5.1 instead of 10.2 %). Prefill's
attention has pairs of tokens instead as its last term: it copies every token's keys, then works through
the pairs, and how many of these a token has depends on the lengths of the sequences (4.1 instead of
7.8 %).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from models.work import Work

Vector = npt.NDArray[np.float64]
Family = tuple[object, ...]
Timed = tuple[Work, int, float]
BY_SMS = ("dispatch", "combine")
KINDS = (
    *BY_SMS, "layout", "notify", "dispatch_send", "dispatch_recv", "combine_send", "combine_recv",
    "gate", "bmm", "topk", "rope", "permute", "attention_prefill",
)  # fmt: skip
# Measured on all SMs alone: the line says nothing about fewer.
ON_ALL_SMS = ("attention_prefill",)
COUNTED = ("copies", "tokens", "rows", "m")


class Lines:
    """The lines of families of points. A family needs more points than its line has coefficients."""

    def __init__(self, points: Mapping[Family, Iterable[Timed]]) -> None:
        self._lines: dict[Family, Vector] = {}
        for family, timed in points.items():
            timed = tuple(timed)
            if timed[0][0].kind in KINDS and len(timed) > len(_terms(*timed[0][:2])):
                self._lines[family] = nonnegative([_terms(w, sms) / ns for w, sms, ns in timed])

    def ns(self, family: Family, work: Work, sms: int) -> float | None:
        """Time on so many SMs; None for a family without a line."""
        line = self._lines.get(family)
        return None if line is None else float(line @ _terms(work, sms))


def _terms(work: Work, sms: int) -> Vector:
    sizes = dict(work.dims)
    count = float(max(1, next((sizes[name] for name in COUNTED if name in sizes), 1)))
    last: tuple[float, ...] = ()
    if work.kind in BY_SMS:
        last = (count / sms,)
    elif work.kind == "attention_prefill":
        last = (float(sizes["pairs"]),)
    return np.array((1.0, count, *last), dtype=np.float64)


def nonnegative(rows: Sequence[Vector]) -> Vector:
    """Coefficients that make `rows @ coefficients` closest to one, rows being terms over the time that was
    measured: of all choices of terms the one with the least relative error and none below zero."""
    table = np.array(rows)
    ones, width = np.ones(len(table)), table.shape[1]
    best, found = np.inf, np.zeros(width)
    for count in range(1, width + 1):
        for chosen in combinations(range(width), count):
            part = np.linalg.lstsq(table[:, chosen], ones, rcond=None)[0]
            error = float(np.sum((table[:, chosen] @ part - ones) ** 2))
            if np.all(part >= 0.0) and error < best:
                best, found = error, np.zeros(width)
                found[list(chosen)] = part
    return found
