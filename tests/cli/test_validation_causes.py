"""The clock experiment: which kernels a clock slows, from which point, and how errors are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.validation_causes import (
    AtClock,
    Explained,
    bound_by_arithmetic,
    correlation_line,
    launched,
    point_clocks,
    rows,
)
from benchmarks.validation_outcome import Case
from models.counts import elementwise, gemm
from models.measured import MeasuredPoint
from models.profile import load_machine
from moe_overlap.uncertain import Prediction

MACHINE = load_machine("h200-2x-nvlink")
LARGE, SMALL = gemm(8192, 7168, 16384, "fp8_block"), gemm(1024, 7168, 16384, "fp8_block")
CLOCKS = point_clocks(
    [
        MeasuredPoint(LARGE, 132, 1.0, mhz=1600),
        MeasuredPoint(LARGE, 100, 1.0, mhz=1700),
        MeasuredPoint(SMALL, 132, 1.0, mhz=1980),
        MeasuredPoint(SMALL, 100, 1.0),
    ]
)


def case(error: float, group: str = "prefill") -> Case:
    predicted = Prediction(100 * (1 + error), {})
    return Case(group, "tbo", 1, True, (100,), (100,), predicted, 100, 1, {}, {})


def test_the_clock_is_that_of_the_point_nearest_in_size_and_sms() -> None:
    assert CLOCKS.mhz(gemm(7000, 7168, 16384, "fp8_block"), 132) == 1600
    assert CLOCKS.mhz(gemm(7000, 7168, 16384, "fp8_block"), 108) == 1700
    assert CLOCKS.mhz(SMALL, 100) == 1980
    assert CLOCKS.mhz(gemm(7000, 4096, 512, "fp8_block"), 132) == 0


def test_only_kernels_bound_by_arithmetic_are_slowed_by_the_clock() -> None:
    norm, thin = elementwise("norm", 8192, 7168, 1, 1 << 30), gemm(8, 7168, 16384, "fp8_block")
    assert bound_by_arithmetic(LARGE)
    assert not bound_by_arithmetic(norm)
    assert not bound_by_arithmetic(thin)
    slowed, grid = AtClock(MACHINE.costs, CLOCKS, 800.0), MACHINE.grid("gemm")
    for work, factor in ((LARGE, 2.0), (thin, 1.0)):
        before = MACHINE.costs.alone(work, grid, 132).ns
        assert slowed.alone(work, grid, 132).ns == pytest.approx(factor * before, abs=1)


def test_errors_that_follow_the_clock_correlate_with_it() -> None:
    found = [
        Explained(case(1.02 / clock - 1), clock, None, 1.0, 0.003, 0.0, 0.001, 0.002)
        for clock in (1.0, 1.05, 1.1, 1.15)
    ]
    assert "correlation of error" in correlation_line(found)
    assert ": -1.00; error = +2.0% -1.00 x clock" in correlation_line(found)
    assert "fewer than three" in correlation_line(found[:2])
    eager = replace(found[0], case=case(0.5, "decode eager"), bound=2.0)
    graph = replace(found[0], case=case(0.01, "decode"), bound=2.0)
    table = rows([*found, eager, graph])
    rest = "| 0.3%, 0.3% | 0.0%, 0.0% | 0.1%, 0.1% | 0.2%, 0.2% | 0.2%, 0.2% |"
    assert f"| op by op, GPU-bound | 4 | 5.1%, 11.3% {rest}" in table
    assert f"| op by op, host-bound | 1 | 50.0%, 50.0% {rest}" in table
    assert f"| decode, graph | 1 | 1.0%, 1.0% {rest}" in table


def test_a_disturbed_host_is_told_by_the_fastest_repeat() -> None:
    slow = replace(case(0.0), times_ns=(100, 150, 160))
    assert Explained(slow, 1.0, 0.5, 2.0, 0.0, 0.0, 0.0, -0.3).against_fastest == pytest.approx(
        0.05
    )


def test_a_launch_that_makes_no_call_of_its_own_is_no_time_of_the_host() -> None:
    """DeepEP's layout is made by the dispatch; on a set that launches it itself it has a time."""
    assert launched({"gemm": 40, "layout": 9}) == {"gemm": 40}
    walked = {"gemm": 40, "layout": 9, "notify": 20}
    assert launched(walked) == walked
