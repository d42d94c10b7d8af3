"""Fits recover the coefficients that synthetic times were made from."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest

from models.counts import elementwise, gemm
from models.fit import (
    Beside,
    MissingFitLibrary,
    Timed,
    fit_form,
    fit_slowdown,
)
from models.forms import Form, Peaks

PEAKS = Peaks((("bf16", 989e3), ("fp8", 1979e3)), 4800.0, 132, 79)
NOISE = 0.03


@pytest.fixture
def noise() -> np.random.Generator:
    return np.random.default_rng(7)


def noisy(value: float, noise: np.random.Generator) -> float:
    return value * math.exp(NOISE * float(noise.standard_normal()))


TRUE = Form(6000.0, 0.62, 0.81, 2.2, 0.0, "fitted")
WORKS = [
    gemm(m, n, k, "fp8_block")
    for m in (1, 64, 256, 1024, 4096, 16384)
    for n, k in ((2112, 7168), (7168, 16384), (24576, 1536))
]


def timed(noise: np.random.Generator) -> list[Timed]:
    return [
        Timed(w, sms, noisy(TRUE.ns(w, PEAKS, sms, "dynamic"), noise))
        for w in WORKS
        for sms in (132, 66)
    ]


def test_a_form_is_recovered(noise: np.random.Generator) -> None:
    fit = fit_form(timed(noise), PEAKS, "dynamic")
    assert fit.value("compute") == pytest.approx(0.62, rel=0.05)
    assert fit.value("memory") == pytest.approx(0.81, rel=0.15)
    assert fit.value("floor_us") == pytest.approx(6.0, rel=0.1)
    assert 0.5 * NOISE < fit.error < 1.5 * NOISE


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """95 % intervals of 40 fits; 32 is far below what chance leaves of 38."""
    covered = 0
    for seed in range(40):
        estimate = fit_form(timed(np.random.default_rng(seed)), PEAKS, "dynamic").estimates
        low, high = estimate["compute"].interval
        assert high - low < 0.1
        covered += low < TRUE.compute < high
    assert covered >= 32


def test_what_the_data_do_not_bind_is_said(noise: np.random.Generator) -> None:
    """Elementwise kernels do no multiplication: nothing binds `compute`."""
    true = Form(2000.0, 0.5, 0.6, 1.0, 0.0, "fitted")
    works = [elementwise("norm", rows, 7168, rows * 14336, rows * 14336) for rows in (8, 512, 9000)]
    points = [Timed(w, 132, noisy(true.ns(w, PEAKS, 132, "wave"), noise)) for w in works * 3]
    fit = fit_form(points, PEAKS, "wave")
    assert fit.value("floor_us") == pytest.approx(2.0, rel=0.1)
    assert fit.value("memory") == pytest.approx(0.6, rel=0.1)
    assert math.isinf(fit.estimates["compute"].half_width)
    low, high = fit.estimates["memory"].interval
    assert low < 0.6 < high


def test_interference_is_recovered_and_never_negative(noise: np.random.Generator) -> None:
    points = [
        Beside(noisy(1 + 0.18 * busy + 0.16 * rho / (1 - rho), noise), busy, rho)
        for busy in (0.3, 0.6, 0.8)
        for rho in (0.0, 0.25, 0.5, 0.75, 0.85)
    ]
    fit = fit_slowdown(points, rho_cap=0.9)
    assert fit.value("c0") == pytest.approx(0.18, abs=0.06)
    assert fit.value("c1") == pytest.approx(0.16, rel=0.15)
    faster = [Beside(0.97, 0.8, 0.5), Beside(0.98, 0.5, 0.2), Beside(0.99, 0.2, 0.0)]
    fit = fit_slowdown(faster, rho_cap=0.9)
    assert fit.value("c0") == pytest.approx(0.0, abs=1e-3)
    assert fit.value("c1") == pytest.approx(0.0, abs=1e-3)


def test_without_scipy_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingFitLibrary, match=r"moe-overlap\[calibrate\]"):
        fit_slowdown([Beside(1.2, 0.5, 0.2), Beside(1.4, 0.8, 0.5)], rho_cap=0.9)
