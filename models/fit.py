"""Fits of a profile's coefficients to measured times, with bounds and 95 % intervals.

Needs scipy (the `calibrate` extra); everything else of this package runs without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.forms import Form, Peaks, tail_law
from models.machine import slowdown_beside
from models.work import GridKind, Work

Vector = npt.NDArray[np.float64]
_NORMAL_95 = 1.96
_UNBOUND = 1e-8
# A coefficient is at a limit when it is this close to it, of the distance between both; residuals are alike when they
# differ by less than `_ALIKE`.
_AT_LIMIT, _ALIKE = 1e-6, 1e-6


class MissingFitLibrary(RuntimeError):
    """scipy is not installed; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A coefficient and half the width of its 95 % interval (inf where the data do not bind it)."""

    value: float
    half_width: float

    @property
    def interval(self) -> tuple[float, float]:
        """Low and high end."""
        return self.value - self.half_width, self.value + self.half_width


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients by name, the mean relative error over the points, and their number."""

    estimates: dict[str, Estimate]
    error: float
    points: int

    def value(self, name: str) -> float:
        """The coefficient called `name`."""
        return self.estimates[name].value


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel's time alone on some SMs."""

    work: Work
    sms: int
    ns: float


@dataclass(frozen=True, slots=True)
class Beside:
    """A kernel's slowdown beside others: they held `busy` of all SMs and drew `rho` of the achievable
    HBM rate."""

    slowdown: float
    busy: float
    rho: float


def fit_form(points: Sequence[Timed], peaks: Peaks, grid: GridKind) -> Fit:
    """`floor_us`, `compute`, `memory` and `p` of `models.forms.Form`, by least squares of log times."""

    def residuals(v: Vector) -> Vector:
        form = Form(v[0] * 1e3, v[1], v[2], v[3], 0.0, "fitted")
        return np.array(
            [math.log(p.ns / form.ns(p.work, peaks, p.sms, grid)) for p in points],
            dtype=np.float64,
        )

    floor = max(0.2, min(p.ns for p in points) / 2e3)
    return _least_squares(
        residuals,
        ("floor_us", "compute", "memory", "p"),
        start=(floor, 0.6, 0.6, 2.0),
        low=(0.0, 0.01, 0.01, 0.7),
        high=(max(30.0, 2 * floor), 1.0, 1.0, 6.0),
    )


def fit_tail(points: Sequence[tuple[float, float]]) -> Fit:
    """`tail` of the tail law from (share of the SMs, time of a tile over that on all of them)."""

    def residuals(v: Vector) -> Vector:
        return np.array(
            [tail_law(v[0], share) / ratio - 1.0 for share, ratio in points], dtype=np.float64
        )

    return _least_squares(residuals, ("tail",), start=(0.7,), low=(0.01,), high=(1.0,))


def fit_slowdown(points: Sequence[Beside], rho_cap: float) -> Fit:
    """`c0` and `c1`, not negative, of `1 + c0 * busy + c1 * rho / (1 - rho)`, by least squares of the
    relative error of the slowdown."""

    def residuals(v: Vector) -> Vector:
        return np.array(
            [
                slowdown_beside(v[0], v[1], p.busy, p.rho, rho_cap) / p.slowdown - 1.0
                for p in points
            ],
            dtype=np.float64,
        )

    return _least_squares(
        residuals, ("c0", "c1"), start=(0.2, 0.1), low=(0.0, 0.0), high=(20.0, 5.0)
    )


def _least_squares(
    residuals: Callable[[Vector], Vector],
    names: tuple[str, ...],
    *,
    start: tuple[float, ...],
    low: tuple[float, ...],
    high: tuple[float, ...],
) -> Fit:
    """Robust bounded least squares; intervals from the curvature at the solution. What the points leave open is
    the same wherever it is fitted: a coefficient on which nothing depends stays where it started, and one that is
    next to a limit is at it."""
    try:
        from scipy.optimize import least_squares
    except ImportError as missing:
        raise MissingFitLibrary(
            "fitting needs scipy; install it with: pip install 'moe-overlap[calibrate]'"
        ) from missing
    solution = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    found = _settled(residuals, solution.x, np.asarray(solution.jac), start, low, high)
    final = residuals(found)
    half = _half_widths(np.asarray(solution.jac), final)
    error = float(np.mean(np.abs(np.expm1(np.abs(final)))))
    estimates = {
        name: Estimate(float(value), float(width))
        for name, value, width in zip(names, found, half, strict=True)
    }
    return Fit(estimates, error, len(final))


def _settled(
    residuals: Callable[[Vector], Vector],
    found: Vector,
    jacobian: Vector,
    start: tuple[float, ...],
    low: tuple[float, ...],
    high: tuple[float, ...],
) -> Vector:
    """The solution without what differs from processor to processor; itself if that changed a residual."""
    norms = np.linalg.norm(jacobian, axis=0)
    reach = _AT_LIMIT * (np.array(high) - np.array(low))
    settled = np.where(norms > _UNBOUND * norms.max(initial=0.0), found, start)
    settled = np.where(settled - low < reach, low, np.where(high - settled < reach, high, settled))
    alike = np.allclose(residuals(settled), residuals(found), rtol=0.0, atol=_ALIKE)
    return settled if alike else found


def _half_widths(jacobian: Vector, residuals: Vector) -> Vector:
    """95 % half widths; infinite for a coefficient that no residual depends on, and for all of them
    where the rest cannot be told apart."""
    half = np.full(jacobian.shape[1], math.inf)
    norms = np.linalg.norm(jacobian, axis=0)
    bound = norms > _UNBOUND * norms.max(initial=0.0)
    active = jacobian[:, bound]
    freedom = len(residuals) - active.shape[1]
    if freedom <= 0 or not bound.any():
        return half
    scaled = active / norms[bound]
    normal = scaled.T @ scaled
    if np.linalg.cond(normal) > 1 / _UNBOUND:
        return half
    variance = float(residuals @ residuals) / freedom
    half[bound] = _NORMAL_95 * np.sqrt(np.diag(np.linalg.inv(normal)) * variance) / norms[bound]
    return half
