"""Slack: by hand, and confirmed by delaying ops in predicted timelines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.machine import Gaps
from models.spin import spin, spin_machine
from schedules.merit import slack_ns
from schedules.program import (
    Exchange,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Role,
    Signal,
    Step,
    Stream,
    Wait,
)
from simulator import simulate

STREAMS = (Stream("main"), Stream("alt"), Stream("comm", -1))
GAPLESS = Gaps(0, 0, 0, 0, 0, 0, 0)


def _program(*classes: tuple[Step, ...], exchanges: tuple[Exchange, ...] = ()) -> Program:
    ranks = tuple(RankClass((rank,), steps) for rank, steps in enumerate(classes))
    return Program("p", STREAMS, ranks, exchanges)


def _op(name: str, ctas: int, ns: int, stream: str = "main", **fields: object) -> Launch:
    return Launch(Op(name, stream, spin(ctas, ns), **fields))  # type: ignore[arg-type]


def _exchange(name: str, nbytes: int) -> Exchange:
    return Exchange(name, "normal", (0, 1), ((7, nbytes), (nbytes, 7)))


def _transfer(name: str, ns: int, role: Role = "whole") -> Launch:
    return _op(f"{name}.{role}", 2, ns, "comm", exchange=name, role=role)


def _pipe() -> tuple[Program, tuple[Step, ...]]:
    steps = (
        _op("a", 4, 1000),
        Record("E", "main"),
        _op("b", 2, 3000),
        Wait("E", "alt"),
        _op("c", 2, 1000, "alt"),
        Record("F", "alt"),
        Wait("F", "main"),
        _op("d", 4, 1000),
    )
    return _program(steps), steps


def test_slack_is_what_an_op_may_be_late() -> None:
    program, _ = _pipe()
    slack = slack_ns(simulate(program, spin_machine(4, gaps=GAPLESS)), program)
    assert slack == {(0, "a"): 0, (0, "b"): 0, (0, "c"): 2000, (0, "d"): 0}


@pytest.mark.parametrize("delay", [1500, 2000, 2500])
def test_slack_is_confirmed_by_delaying_the_op(delay: int) -> None:
    program, steps = _pipe()
    machine = spin_machine(4, gaps=GAPLESS)
    late = _op("c", 2, 1000 + delay, "alt")
    longer = _program(tuple(late if step is steps[4] else step for step in steps))
    growth = simulate(longer, machine).makespan_ns - simulate(program, machine).makespan_ns
    assert growth == max(0, delay - 2000)


def test_slack_knows_peers_and_signals() -> None:
    one = (_op("a", 1, 300), _op("b", 1, 100), _transfer("x", 40))
    other = (_op("a", 1, 900, "comm"), _transfer("x", 40))
    program = _program(one, other, exchanges=(_exchange("x", 10),))
    slack = slack_ns(simulate(program, spin_machine(4, gaps=GAPLESS)), program)
    assert slack[1, "a"] == slack[1, "x.whole"] == slack[0, "x.whole"] == 0
    assert slack[0, "a"] == slack[0, "b"] == 940 - 400
    raising = _op("up", 2, 500, raises="s")
    polling = _op("down", 1, 100, "alt", polls="s")
    signalled = replace(_program((raising, polling)), signals=(Signal("s", 2, 1),))
    slack = slack_ns(simulate(signalled, spin_machine(4, gaps=GAPLESS)), signalled)
    assert slack[0, "down"] == 0


_KERNELS = st.lists(
    st.tuples(st.sampled_from(["main", "alt", "comm"]), st.integers(1, 60), st.booleans()),
    min_size=1,
    max_size=9,
)


def _steps(kernels: list[tuple[str, int, bool]], longer: str = "", by: int = 0) -> tuple[Step, ...]:
    """One CTA each, so that nobody waits for SMs; exchange `x` in the middle, which main awaits."""
    steps: list[Step] = []
    for number, (stream, ns, waits) in enumerate(kernels):
        name = f"op{number}"
        if waits and number:
            event = f"E{number}"
            steps += [Record(event, kernels[number - 1][0]), Wait(event, stream)]
        steps.append(_op(name, 1, ns * 10 + (by if name == longer else 0), stream))
        if number == len(kernels) // 2:
            steps += [_transfer("x", 200), Record("X", "comm"), Wait("X", "main")]
    return tuple(steps)


@settings(max_examples=40, deadline=None)
@given(_KERNELS, _KERNELS, st.integers(0, 8))
def test_an_op_may_be_late_by_its_slack_and_no_more(
    one: list[tuple[str, int, bool]], other: list[tuple[str, int, bool]], which: int
) -> None:
    machine = spin_machine(64, gaps=GAPLESS)
    exchanges = (_exchange("x", 10),)
    program = _program(_steps(one), _steps(other), exchanges=exchanges)
    before = simulate(program, machine).makespan_ns
    name = f"op{which % len(one)}"
    slack = slack_ns(simulate(program, machine), program)[0, name]
    for extra in (0, 1, 70):
        late = _program(_steps(one, name, slack + extra), _steps(other), exchanges=exchanges)
        assert simulate(late, machine).makespan_ns == before + extra
