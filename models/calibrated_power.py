"""The power law of a calibration: kernels that it timed in layers of different load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from models.measured import MeasuredPoint
from models.power_law import Gain, PowerLaw, Sheet
from models.profile_schema import PowerSection

Vector = npt.NDArray[np.float64]
# Takes of one kernel tell something when their layers' loads are this far apart.
APART = 0.04
SHARES = np.linspace(0.0, 1.2, 49)
SAVED_NS = np.append(np.geomspace(5e3, 2e6, 53), np.inf)  # infinite: the share alone counts
MOSTS = np.linspace(0.1, 0.6, 26)
# A kind's law has to leave less than this share of what its kernels' times differ by (squares).
LEFT = 0.5


@dataclass(frozen=True, slots=True)
class Take:
    """A kernel's time in one layer of a calibration, and the share of the time in which that layer ran
    kernels bound by arithmetic; None where nobody counted it."""

    point: MeasuredPoint
    load: float | None


@dataclass
class TimedKernels:
    """Times of a calibration's kernels as they come in, task by task. A task's load is the time of its
    kernels that are bound by arithmetic, as they weigh, over that of its runs and the pauses behind
    them, or of its runs alone where nobody measured the pauses."""

    sheet: Sheet | None
    _points: list[tuple[str, MeasuredPoint]] = field(default_factory=list)
    _busy: dict[str, float] = field(default_factory=dict)
    _runs: dict[str, float] = field(default_factory=dict)

    def kernel(self, task: str, point: MeasuredPoint, times: int) -> None:
        """A kernel that ran so many times within the task's runs."""
        self._points.append((task, point))
        if self.sheet is not None:
            weight = self.sheet.weight(point.work, point.sms)
            self._busy[task] = self._busy.get(task, 0.0) + weight * point.ns * times

    def run(self, task: str, ns: float, count: int, period_ns: float | None = None) -> None:
        """So many runs of the task's program, each of this length. The next begins a period after it, if
        that is known: power is drawn over both, and the pause between them is a rest."""
        self._runs[task] = (ns if period_ns is None else period_ns) * count

    def takes(self) -> list[Take]:
        """All kernels, each with its task's load."""
        return [Take(point, self._load(task)) for task, point in self._points]

    def _load(self, task: str) -> float | None:
        return self._busy.get(task, 0.0) / self._runs[task] if task in self._runs else None


def fit_power(takes: Sequence[Take], sheet: Sheet) -> PowerLaw | None:
    """The law with which takes of one kernel on as many SMs agree best; None where loads do not differ or
    no kind of kernel follows them."""
    groups, deepest = _groups(takes, sheet), _deepest(takes)
    if not groups:
        return None
    fits = {
        most: {kind: _gain(same, float(most), deepest) for kind, same in groups.items()}
        for most in MOSTS
    }
    most = min(fits, key=lambda m: sum(error for _, error in fits[m].values()))
    gains = {kind: gain for kind, (gain, _) in fits[most].items() if gain is not None}
    if not gains:
        return None
    found = PowerLaw(round(float(most), 3), tuple(sorted(gains.items())), sheet)
    loads = [take.load for take in takes if take.load and found.gain(take.point.work)]
    return replace(found, measured=round(median(loads), 3))


def with_errors(law: PowerLaw, other: PowerLaw, points: Iterable[MeasuredPoint]) -> PowerLaw:
    """The law, whose gains are as uncertain as they differ from those of another calibration: by how much
    kernels are slower under full load by the other law over this one, less 1, median over these points by
    kind. A kind that the other law does not know is as uncertain as the worst of those that both do."""
    known = dict(other.by_kind)
    apart: dict[str, list[float]] = {}
    for point in points:
        slower = law.slower(point.work, point.ns)
        if slower > 0.0 and point.work.kind in known:
            ratio = other.slower(point.work, point.ns) / slower
            apart.setdefault(point.work.kind, []).append(abs(ratio - 1.0))
    errors = {kind: median(ratios) for kind, ratios in apart.items()}
    worst = max(errors.values(), default=0.0)
    gains = ((kind, replace(gain, error=errors.get(kind, worst))) for kind, gain in law.by_kind)
    return replace(law, by_kind=tuple(gains))


def _groups(takes: Sequence[Take], sheet: Sheet) -> dict[str, list[tuple[Vector, Vector]]]:
    """By kind of work: (ns, load) of all takes of one kernel on as many SMs."""
    by_key: dict[str, list[Take]] = {}
    for take in takes:
        if take.load is not None and sheet.follows(take.point.work):
            by_key.setdefault(take.point.key, []).append(take)
    groups: dict[str, list[tuple[Vector, Vector]]] = {}
    for same in by_key.values():
        ns = np.array([take.point.ns for take in same], dtype=np.float64)
        load = np.array([take.load for take in same], dtype=np.float64)
        if np.ptp(load) >= APART:
            groups.setdefault(same[0].point.work.kind, []).append((ns, load))
    return groups


def _deepest(takes: Sequence[Take]) -> float:
    """The most that a clock can save: by how much the lowest that was read is below the highest."""
    clocks = [take.point.mhz for take in takes if take.point.mhz]
    return 1.0 - min(clocks) / max(clocks) if clocks else 0.0


def _gain(
    same: Sequence[tuple[Vector, Vector]], most: float, deepest: float
) -> tuple[Gain | None, float]:
    """The best gain of one kind, and the squares that it leaves: how far the takes' times under full load
    are from their mean. None where it leaves too much."""
    possible = SHARES[SHARES * most <= deepest]
    shares, saved = (grid.ravel()[:, None] for grid in np.meshgrid(possible, SAVED_NS))
    left = np.zeros(len(shares))
    for ns, load in same:
        rest = np.minimum(most, np.maximum(0.0, 1.0 - load))
        # Without a rest nothing is saved, however much a rest would save.
        most_ns = ns + np.where(rest > 0.0, saved, 0.0) * rest
        logs = np.log(np.minimum(ns / (1.0 - shares * rest), most_ns))
        left += np.sum((logs - logs.mean(axis=1, keepdims=True)) ** 2, axis=1)
    none, best = float(left[0]), int(np.argmin(left))
    if left[best] >= LEFT * none:
        return None, none
    return Gain(float(shares[best, 0]), float(saved[best, 0])), float(left[best])


def at_rest(take: Take, law: PowerLaw | None) -> MeasuredPoint:
    """The point as it would be at rest."""
    point = take.point
    if law is None or take.load is None:
        return point
    return replace(point, ns=law.at_rest(point.work, point.ns, take.load))


def power_section(
    law: PowerLaw | None, base: PowerSection | None, source: str
) -> dict[str, Any] | None:
    """The law as a section of a profile; None for no law. Kinds that only the base has a gain for get
    none: their points are those that were measured."""
    if law is None:
        return None
    kinds = {kind: {"share": 0.0, "ns": 0.0} for kind in (base.kinds if base else ())}
    kinds |= {
        kind: {
            "share": round(gain.share, 3),
            "ns": round(min(gain.ns, 1e9)),
            **({"error": round(gain.error, 3)} if gain.error else {}),
        }
        for kind, gain in law.by_kind
    }
    return {"most": law.most, "measured": law.measured, "kinds": kinds, "source": source}
