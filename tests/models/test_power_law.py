"""What rests do to kernels at the power limit, and how a calibration finds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.calibrated_power import (
    Take,
    TimedKernels,
    at_rest,
    fit_power,
    power_section,
    with_errors,
)
from models.calibration_records import sorted_out, work_record
from models.counts import gemm
from models.measured import MeasuredPoint
from models.power_law import Gain, PowerLaw, Sheet
from models.profile_schema import GainSection, PowerSection
from models.work import Work

# H200: 1979 TFLOP/s of FP8, 4.8 TB/s.
SHEET = Sheet((("fp8_block", 1.979e6), ("fp8", 1.979e6)), 4800.0, 132)
LAW = PowerLaw(0.3, (("gemm", Gain(0.4, 60e3)),), SHEET)


def dense(rows: int, columns: int = 7168) -> MeasuredPoint:
    return MeasuredPoint(gemm(rows, columns, 7168, "fp8_block"), 132, 1.0)


def test_many_rows_are_bound_by_arithmetic_and_few_by_their_weights() -> None:
    # 2 m n k / 1979 TFLOP/s against n k bytes / 4.8 TB/s: even at 206 rows.
    assert SHEET.bound(dense(1024).work)
    assert not SHEET.bound(dense(64).work)
    assert not SHEET.bound(Work("add", (("columns", 4), ("rows", 4)), (), 32, 32))


def loaded(full_ns: float, load: float) -> float:
    """By hand: 40 % of the time, at most 60 us, for each unit of rest, of which 0.3 count."""
    rest = min(0.3, 1.0 - load)
    return full_ns - min(0.4 * full_ns, 60e3) * rest


@pytest.mark.parametrize("full_ns", [20e3, 149e3, 151e3, 3e6])
@pytest.mark.parametrize("load", [0.2, 0.75, 0.95, 1.0])
def test_times_in_a_schedule_follow_from_those_at_rest_and_back(
    full_ns: float, load: float
) -> None:
    many, rest_ns = dense(4096).work, loaded(full_ns, 0.0)
    assert LAW.under(many, rest_ns, load) == pytest.approx(loaded(full_ns, load))
    assert LAW.at_rest(many, loaded(full_ns, load), load) == pytest.approx(rest_ns)


def test_an_exchange_whose_sms_copy_follows_their_clock_and_a_flight_does_not() -> None:
    sent = Work("dispatch", (("tokens", 4096),), (), 10**8, 10**8)
    law = PowerLaw(0.3, (("dispatch", Gain(0.5, 1e9)), ("flight", Gain(0.5, 1e9))), SHEET)
    assert law.under(sent, 850e3, load=1.0) == pytest.approx(1e6)
    assert law.under(replace(sent, kind="flight"), 850e3, load=1.0) == 850e3
    assert SHEET.weight(sent, 24) == 0.0


def test_a_time_is_as_uncertain_as_what_the_law_makes_of_the_way_from_where_it_was_taken() -> None:
    """At rest 200 us: 40 % for each unit of rest is 227.3 under full load and 218.2 in the load of 0.9 where
    half of the way to 0.7 lies behind it. Of what was taken at 0.8 a fifth is uncertain."""
    many = dense(4096).work
    law = PowerLaw(0.3, (("gemm", Gain(0.4, 1e9, 0.2)),), SHEET, measured=0.8)
    full_ns = 200e3 / (1 - 0.4 * 0.3)
    taken_ns, busy_ns = full_ns * (1 - 0.4 * 0.2), full_ns * (1 - 0.4 * 0.1)
    assert law.doubt(many, 200e3, 0.9) == pytest.approx(0.2 * (busy_ns - taken_ns) / busy_ns)
    assert law.doubt(many, 200e3, 0.8) == 0.0
    assert law.doubt(many, 200e3, 0.4) == pytest.approx(0.2 * (taken_ns - 200e3) / 200e3)
    assert law.doubt(dense(64).work, 200e3, 0.9) == 0.0
    assert law.slower(many, 200e3) == pytest.approx(full_ns / 200e3 - 1)


def test_an_error_of_a_gain_needs_the_load_that_times_were_taken_in() -> None:
    kinds = {"gemm": GainSection(share=0.4, ns=1.0, error=0.2)}
    with pytest.raises(ValueError, match="measured"):
        PowerSection(source="here", most=0.3, kinds=kinds)
    assert PowerSection(source="here", most=0.3, measured=0.6, kinds=kinds).measured == 0.6


def test_two_laws_leave_their_gains_as_uncertain_as_they_differ() -> None:
    """Full load costs 1 / 0.88 and 1 / 0.94 of the time at rest: 13.6 and 6.4 %, which is 53 % less."""
    points = [replace(dense(rows), ns=200e3) for rows in (2048, 4096, 64)]
    law, other = (PowerLaw(0.3, (("gemm", Gain(share, 1e9)),), SHEET) for share in (0.4, 0.2))
    ((_, gain),) = with_errors(law, other, points).by_kind
    assert gain.error == pytest.approx(1 - (1 / 0.94 - 1) / (1 / 0.88 - 1))
    none = replace(law, by_kind=(("gemm", Gain(0.0, 1e9)),))
    ((_, gain),) = with_errors(law, none, points).by_kind
    assert gain.error == 1.0
    both = replace(law, by_kind=(("dispatch", Gain(0.3, 1e9)), *law.by_kind))
    assert [gain.error for _, gain in with_errors(both, none, points).by_kind] == [1.0, 1.0]
    ((_, gain),) = with_errors(law, law, points).by_kind
    assert gain == law.by_kind[0][1]


def test_what_streams_its_weights_keeps_its_time() -> None:
    few = dense(64).work
    assert LAW.under(few, 900e3, load=0.95) == 900e3
    assert LAW.at_rest(few, 900e3, load=0.95) == 900e3


def test_a_fit_finds_the_law_that_made_the_times() -> None:
    noise, takes = np.random.default_rng(3), []
    for rows, full_ns in ((1024, 60e3), (2048, 110e3), (4096, 400e3), (8192, 1.1e6)):
        for load in (0.55, 0.7, 0.8, 0.88, 0.93):
            ns = loaded(full_ns, load) * (1 + 0.002 * noise.standard_normal())
            mhz = round(1980 - 700 * load)
            takes.append(Take(MeasuredPoint(dense(rows).work, 132, ns, mhz=mhz), load))
    law = fit_power(takes, SHEET)
    assert law is not None
    for take, full_ns in zip(takes[::5], (60e3, 110e3, 400e3, 1.1e6), strict=True):
        for load in (0.75, 1.0):
            found = law.under(take.point.work, at_rest(take, law).ns, load)
            assert found == pytest.approx(loaded(full_ns, load), rel=0.012)


def test_times_that_do_not_follow_the_load_make_no_law() -> None:
    noise = np.random.default_rng(4)
    takes = [
        Take(
            MeasuredPoint(
                dense(rows).work, 132, 1e5 * (1 + 0.01 * noise.standard_normal()), mhz=1500 + 50 * i
            ),
            load,
        )
        for rows in (1024, 2048, 4096, 8192)
        for i, load in enumerate((0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9))
    ]
    assert fit_power(takes, SHEET) is None
    same = [Take(take.point, 0.8) for take in takes]
    assert fit_power(same, SHEET) is None


def test_kinds_that_only_the_base_has_a_gain_for_have_none() -> None:
    base = PowerSection(
        source="x",
        most=0.5,
        kinds={"gemm": GainSection(share=0.9, ns=1.0), "bmm": GainSection(share=0.9, ns=1.0)},
    )
    section = power_section(LAW, base, "here")
    assert section is not None
    found = PowerSection.model_validate(section)
    assert found.most == 0.3
    assert found.kinds["gemm"] == GainSection(share=0.4, ns=60e3)
    assert found.kinds["bmm"] == GainSection(share=0.0, ns=0.0)
    assert power_section(None, base, "here") is None


def test_a_tasks_load_is_its_arithmetic_over_its_runs() -> None:
    timed = TimedKernels(SHEET)
    bound, streams = dense(4096), dense(64)
    timed.kernel("one", MeasuredPoint(bound.work, 132, 300.0), 20)
    timed.kernel("one", MeasuredPoint(streams.work, 132, 999.0), 20)
    timed.kernel("two", bound, 20)
    timed.run("one", 2000.0, 5)
    # 20 runs of 300 ns in five runs of 2000 ns; nobody timed the second task's runs.
    assert [take.load for take in timed.takes()] == [pytest.approx(0.6), pytest.approx(0.6), None]


def test_pauses_between_runs_are_rests_too() -> None:
    timed = TimedKernels(SHEET)
    timed.kernel("", MeasuredPoint(dense(4096).work, 132, 300.0), 20)
    timed.run("", 2000.0, 5, 3000.0)
    # 20 runs of 300 ns in five periods of 3000 ns.
    assert [take.load for take in timed.takes()] == [pytest.approx(0.4)]


def test_records_say_how_far_apart_runs_began_or_only_how_long_they_were() -> None:
    """Runs of nothing but arithmetic, in one of two tasks with pauses of a quarter of the time: only who
    knows of the pauses knows why its kernels were faster."""
    points: list[dict[str, Any]] = [
        {
            "what": "alone",
            "task": task,
            "work": work_record(dense(rows).work),
            "sms": 132,
            "ns": round(loaded(full_ns, load)),
            "spread": 0.0,
            "runs": 10,
            "mhz": mhz,
        }
        for rows, full_ns in ((4096, 60e3), (8192, 120e3))
        for task, load, mhz in (("back to back", 1.0, 1500), ("with pauses", 0.75, 1980))
    ]
    busy_ns = {
        task: sum(p["ns"] * p["runs"] for p in points if p["task"] == task) / 10
        for task in ("back to back", "with pauses")
    }
    runs: list[dict[str, Any]] = [
        {"what": "run", "task": task, "ns": round(ns), "count": 10} for task, ns in busy_ns.items()
    ]
    # All arithmetic as far as the runs tell.
    assert sorted_out([*points, *runs], 0, "here", SHEET).power is None
    runs[1]["period_ns"] = round(busy_ns["with pauses"] / 0.75)
    law = sorted_out([*points, *runs], 0, "here", SHEET).power
    assert law is not None
    under, rest = (law.under(dense(8192).work, loaded(120e3, 0.7), load) for load in (1.0, 0.75))
    assert under / rest == pytest.approx(loaded(120e3, 1.0) / loaded(120e3, 0.75), rel=0.01)
