"""The calibration's loops beside each other are told apart and summed up."""

from __future__ import annotations

from typing import Any

from benchmarks.calibration_beside import Told, pairs_of, rows

TASK = "pairs exchange=combine num_sms=24 compute=norm tokens=3072"


def _beside(task: str, family: str) -> dict[str, Any]:
    return {"what": "beside", "task": task, "family": family}


def test_only_loops_of_normal_exchanges_beside_kernels_of_layers_count() -> None:
    low_latency = "pairs exchange=dispatch_ll num_sms=64 compute=dense tokens=96"
    given = [
        _beside(TASK, "normal"),
        _beside(TASK, ""),
        _beside(low_latency, "low_latency"),
        _beside("ladder exchange=combine num_sms=24 tokens=3072", "normal"),
        {"what": "hbm", "task": TASK, "gbps": 4000.0},
    ]
    assert pairs_of(given) == {TASK: {"exchange": given[0], "compute": given[1]}}


def test_a_row_has_the_median_of_what_law_and_engine_are_off_by() -> None:
    found = [Told("norm", "compute", 1.0, law, engine) for law, engine in
             ((1.1, 1.2), (1.0, 1.0), (1.3, 0.9))]  # fmt: skip
    found.append(Told("dense", "exchange", 2.0, 1.0, 3.0))
    assert rows(found)[2:] == [
        "| compute | norm | 3 | x1.00 to x1.00 | +10.0% | +0.0% |",
        "| exchange | dense | 1 | x2.00 to x2.00 | -50.0% | +50.0% |",
    ]
