"""Lint: every finding has a program that shows it and a near miss that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedules.lint import RULES, lint
from schedules.program import HostWait, Program, Record, Wait
from tests.schedules.build_cases import program as built
from tests.schedules.lint_cases import ORDER_CASES, Case, program
from tests.schedules.lint_cases_structure import STRUCTURE_CASES

CASES = (*ORDER_CASES, *STRUCTURE_CASES)

_IDS = [f"{case.rule}: {case.name}" for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=_IDS)
def test_the_fault_is_found_where_it_is(case: Case) -> None:
    found = [item for item in lint(program(case.bad)) if item.rule == case.rule]
    assert found, [str(item) for item in lint(program(case.bad))]
    assert found[0].step == case.step
    assert found[0].severity == RULES[case.rule][0]


@pytest.mark.parametrize("case", CASES, ids=_IDS)
def test_the_near_miss_is_clean(case: Case) -> None:
    found = lint(program(case.good))
    assert not [str(f) for f in found if f.rule == case.rule or f.severity == "error"]


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


def test_a_cycle_is_printed_op_by_op() -> None:
    case = next(case for case in CASES if "two exchanges in different orders on one" in case.name)
    (cycle,) = [item for item in lint(program(case.bad)) if item.rule == "cycle"]
    assert set(cycle.cycle) == {
        "the end of x (rank 0) waits for the whole of x: exchange x",
        "the whole of x waits for the start of x (rank 1): exchange x",
        "the start of x (rank 1) waits for the end of y (rank 1): stream main",
        "the end of y (rank 1) waits for the whole of y: exchange y",
        "the whole of y waits for the start of y (rank 0): exchange y",
        "the start of y (rank 0) waits for the end of x (rank 0): stream main",
    }
    assert str(cycle).splitlines()[0] == "error [cycle]: 6 waits form a cycle"


def test_a_race_names_both_ops_and_the_buffer() -> None:
    (race,) = lint(program("main: a work=0 writes=x; alt: b work=0 reads=x"))
    assert (
        race.message
        == "b on alt does not wait for a on main, although it reads what it writes: 'x'"
    )


_BUILT = [
    ("sequential", "decode"),
    ("baseline", "decode"),
    ("tbo", "decode"),
    ("sbo.v1", "decode"),
    ("sbo.v2", "decode"),
    ("sbo.v3", "decode"),
    ("sequential", "prefill"),
    ("baseline", "prefill"),
    ("tbo", "prefill"),
]


@pytest.mark.parametrize(("name", "phase"), _BUILT)
def test_the_built_schedules_have_no_fault(name: str, phase: str) -> None:
    found = lint(built(name, phase, layers=2))
    assert not [str(item) for item in found if item.severity != "info"]


def _without(program: Program, index: int) -> Program:
    """Without one step of every class; classes take the same steps."""
    classes = tuple(
        replace(cls, steps=cls.steps[:index] + cls.steps[index + 1 :]) for cls in program.classes
    )
    return replace(program, classes=classes)


@pytest.mark.parametrize(("name", "phase"), _BUILT)
def test_without_an_edge_there_is_a_fault_unless_lint_called_it_excess(
    name: str, phase: str
) -> None:
    """Every wait, record and host wait of a schedule, taken out alone."""
    program = built(name, phase, layers=2)
    excess = {item.step for item in lint(program) if item.rule == "excess-wait"}
    for index, step in enumerate(program.classes[0].steps):
        if isinstance(step, Wait | Record | HostWait):
            found = {item.rule: item.severity for item in lint(_without(program, index))}
            rule = {Record: "never-recorded", HostWait: "never-awaited"}.get(
                type(step), "missing-wait"
            )
            assert (rule in found) == (index not in excess), step
