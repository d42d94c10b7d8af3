"""What a calibration's records say of the clock, on records worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.calibration_clock import clock_and_power, driver_over_counted, moved
from models.calibration_records import work_record
from models.counts import gemm

LAW = np.array([100.0, 400.0, 0.0, 0.0, 2.0])


def alone(rows: int, mhz: int, ns: float) -> dict[str, Any]:
    work = work_record(gemm(rows, 4096, 7168, "fp8_block"))
    return {"what": "alone", "work": work, "sms": 132, "ns": ns, "mhz": mhz}


def test_times_that_keep_their_cycles_are_told_from_those_that_keep_their_time() -> None:
    (row,) = moved([alone(64, 2000, 100.0), alone(64, 1600, 125.0), alone(128, 2000, 70.0)])
    assert (row.kind, row.count) == ("gemm", 1)
    assert row.times == pytest.approx(0.25)
    assert row.cycles == pytest.approx(0.0)
    assert row.power == pytest.approx(-1.0)
    (row,) = moved([alone(64, 2000, 100.0), alone(64, 1600, 100.0)])
    assert row.times == pytest.approx(0.0)
    assert row.cycles == pytest.approx(0.25)
    assert moved([alone(64, 2000, 100.0), alone(64, 1980, 125.0)]) == []


def test_the_clock_keeps_the_power_limit() -> None:
    """100 W idle leaves 600: 400 fit, 2400 want a quarter, which half the clock gives when squared."""
    mhz, watts = clock_and_power(LAW, np.array([[1.0, 0, 0], [1.5, 0, 0], [6.0, 0, 0]]))
    assert mhz.tolist() == pytest.approx([1980.0, 1980.0, 990.0])
    assert watts.tolist() == pytest.approx([500.0, 700.0, 700.0])


def test_the_drivers_clock_beside_the_counted_one() -> None:
    entry = {
        "group": "a",
        "clocks": {"sequential": [[[1980, 300], [1960, 310]], [[1970, 290], [1970, 290]]]},
        "sm_mhz": {"sequential": [[1700.0, 1720.0], [1710.0, 1710.0]]},
    }
    assert driver_over_counted([entry, {"group": "b"}]) == [("a", 1970.0, 1710.0)]
