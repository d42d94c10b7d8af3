"""What a program measured behind a gate leaves open: the same rule as a step's, flights included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.validation_outcome import cases
from moe_overlap.prediction import build
from moe_overlap.uncertain import IN_PHASE, Prediction, prediction
from scenarios import load
from scenarios.resolve import Resolved, resolve
from schedules.merit import critical_path
from schedules.merit.critical_path import HOST


def resolved(name: str = "deepseek-v3-h200-ep16-decode") -> Resolved:
    return resolve(load(name))


def test_everything_on_the_path_is_uncertain_flights_included() -> None:
    found = resolved()
    machine = found.deployment.machine
    program = build(found, "sequential", layers=1)
    made, timeline = prediction(program, machine)
    on_path = {(item.rank, item.op): item.ns for item in critical_path(timeline)}
    flights = [
        span for span in timeline.spans if span.lane == "flight" and (span.rank, span.op) in on_path
    ]
    assert flights
    for kind in {span.kind for span in flights}:
        ns = sum(on_path[span.rank, span.op] for span in flights if span.kind == kind)
        assert 0.01 * ns < made.doubt_ns[kind] < ns
    assert "spin" not in made.doubt_ns
    certain = replace(machine, host=replace(machine.host, error=0.0))
    assert prediction(program, certain)[0].doubt_ns.get(HOST, 0.0) == 0.0


def test_a_band_errs_as_its_bound_does() -> None:
    """Kernels one after another are their own bound: 10 % less for all of them is 10 % less for both."""
    found = resolved()
    program = build(found, "sequential", layers=2)
    made, _ = prediction(program, found.deployment.machine)
    doubtful = replace(made, doubt_ns={"all": 0.1 * made.ns}, phase=IN_PHASE)
    assert doubtful.band_ns == pytest.approx((0.9 * made.ns, 1.1 * made.ns))


@pytest.mark.parametrize(("name", "apart"), [("ep16-decode", False), ("ep2-prefill", True)])
def test_only_ranks_launched_kernel_by_kernel_are_out_of_phase(name: str, apart: bool) -> None:
    found = resolved(f"deepseek-v3-h200-{name}")
    program = build(found, "tbo", layers=2, fold=False, allow_refused=True)
    made, _ = prediction(program, found.deployment.machine)
    assert (made.phase != IN_PHASE) == apart
    assert made.phase[0] <= 1.0 <= made.phase[1]
    assert made.band_ns[0] <= made.ns <= made.band_ns[1]


def test_phases_and_folding_of_both_count_in_a_difference() -> None:
    first = Prediction(1000.0, {"gemm": 30.0}, (0.99, 1.01))
    other = Prediction(2000.0, {"gemm": 26.0, "host": 2.0}, (0.998, 1.002), shortcuts=0.002)
    expected = (4.0**2 + 2.0**2 + 10.0**2 + 4.0**2 + 4.0**2) ** 0.5
    assert first.noise_against(other) == pytest.approx(expected)
    assert other.noise_against(first) == pytest.approx(expected)


def test_a_written_prediction_comes_back_with_its_band() -> None:
    made = Prediction(1000.0, {"gemm": 30.0}, (0.95, 1.01))
    low, high = made.band_ns
    record = {
        "group": "g", "schedule": "tbo", "layers": 1, "overlapped": True, "ranks": 2, "unseen": True,
        "ns": made.ns, "low_ns": low, "high_ns": high, "doubt_ns": made.doubt_ns, "others": {},
    }  # fmt: skip
    measured = [{"group": "g", "makespans_ns": {"tbo": [1000]}}]
    (older,) = cases([record], measured)
    assert older.predicted.band_ns == pytest.approx((low, high))
    (newer,) = cases([record | {"phase": list(made.phase)}], measured)
    assert newer.predicted == made
