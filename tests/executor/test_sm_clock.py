"""The mean SM clock from two readings of every SM's counter."""

from __future__ import annotations

import pytest

from benchmarks.sm_clock import mean_mhz

pytestmark = pytest.mark.torch


def test_the_clock_is_cycles_over_time_of_the_middle_sm() -> None:
    before = [[1000, 500], [7000, 500], [0, 500], [0, 0]]
    after = [[2500, 1500], [8700, 1500], [1800, 1500], [99, 1500]]
    assert mean_mhz(before, after) == 1700.0
    assert mean_mhz([[0, 0]], [[5, 5]]) == 0.0
    assert mean_mhz([[0, 5]], [[5, 5]]) == 0.0
