"""The host experiment: which times are the host's, and how errors are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.validation_causes import Explained, by_bound, each, launched, rows
from benchmarks.validation_outcome import Case
from moe_overlap.uncertain import Prediction


def case(error: float, group: str = "prefill") -> Case:
    predicted = Prediction(100 * (1 + error), {})
    return Case(group, "tbo", 1, True, (100,), (100,), predicted, 100, 1, {}, {})


def test_errors_are_told_by_what_limits_a_case() -> None:
    prefill = [
        Explained(case(error), None, 1.0, 0.003, 0.001, 0.002)
        for error in (0.02, -0.03, 0.04, -0.1)
    ]
    eager = replace(prefill[0], case=case(0.5, "decode eager"), bound=2.0)
    graph = replace(prefill[0], case=case(0.01, "decode"), bound=2.0)
    table = rows([*prefill, eager, graph])
    rest = "| 0.3%, 0.3% | 0.1%, 0.1% | 0.2%, 0.2% | 0.2%, 0.2% |"
    assert f"| op by op, GPU-bound | 4 | 3.5%, 10.0% {rest}" in table
    assert f"| op by op, host-bound | 1 | 50.0%, 50.0% {rest}" in table
    assert f"| decode, graph | 1 | 1.0%, 1.0% {rest}" in table


def test_programs_of_two_gpus_are_told_by_whether_the_host_bounds_them() -> None:
    def of(error: float, bound: float, ranks: int = 2) -> Explained:
        made = replace(case(error), ranks=ranks)
        return Explained(made, None, bound, 0.0, 0.0, 0.0)

    table = by_bound([of(0.01, 1.0), of(-0.03, 1.05), of(0.4, 1.06), of(0.9, 2.0, ranks=1)])
    rest = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[2:]]
    assert rest == [
        ["GPU-bound", "2", "2.0%", "3.0%", "3.0%", "0"],
        ["GPU-bound, overlapped", "2", "2.0%", "3.0%", "3.0%", "0"],
        ["host-bound", "1", "40.0%", "40.0%", "40.0%", "0"],
    ]


def test_a_disturbed_host_is_told_by_the_fastest_repeat() -> None:
    slow = replace(case(0.0), times_ns=(100, 150, 160))
    assert Explained(slow, 0.5, 2.0, 0.0, -0.4, -0.3).against_fastest == pytest.approx(0.05)


def test_the_slower_rank_is_told_where_it_was_kept() -> None:
    known = Explained(case(0.1), 0.5, 2.0, 0.0, 0.0, 0.0, slower=1.908)
    found = each([known, replace(known, case=case(0.05), slower=None)])
    assert found[0].split("|")[4].strip() == "slowest rank over rank 0"
    assert [row.split("|")[4].strip() for row in found[2:]] == ["1.91", "–"]


def test_a_launch_that_makes_no_call_of_its_own_is_no_time_of_the_host() -> None:
    """DeepEP's layout is made by the dispatch; on a set that launches it itself it has a time."""
    assert launched({"gemm": 40, "layout": 9}) == {"gemm": 40}
    walked = {"gemm": 40, "layout": 9, "notify": 20}
    assert launched(walked) == walked
