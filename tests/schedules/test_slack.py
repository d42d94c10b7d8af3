"""Slack: by hand, and confirmed by delaying ops in predicted timelines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.machine import Gaps
from models.spin import spin, spin_machine
from models.work import Grid
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


def _transfer(
    name: str, ns: int, role: Role = "whole", stream: str = "comm", ctas: int = 2
) -> Launch:
    return _op(f"{name}.{role}", ctas, ns, stream, exchange=name, role=role)


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


def _low_latency(a_ns: int) -> Program:
    """Beside `a`, which takes 3 of 4 SMs, half of rank 0's send has no room."""
    sends = (_transfer("x", 10_000, "send", "alt"), _transfer("x", 5_000, "recv", "alt"))
    exchange = Exchange("x", "low_latency", (0, 1), ((7, 10), (10, 7)), flight=spin(1, 50_000))
    return _program((_op("a", 3, a_ns), *sends), sends, exchanges=(exchange,))


def test_slack_knows_that_a_send_lacked_room() -> None:
    # The send has all its CTAs at 30; the flight lands at 80, the receive ends at 85.
    machine = spin_machine(4, gaps=GAPLESS)
    program = _low_latency(30_000)
    timeline = simulate(program, machine)
    slack = slack_ns(timeline, program)
    assert timeline.makespan_ns == 85_000
    assert slack[0, "a"] == slack[0, "x.recv"] == slack[1, "x.recv"] == 0
    assert simulate(_low_latency(31_000), machine).makespan_ns == 86_000


def test_all_who_gave_room_to_an_exchange_have_slack_until_the_last_of_them() -> None:
    first = (_op("a", 1, 3000, "comm"), _op("b", 2, 5000))
    whole = _transfer("x", 1000, stream="alt", ctas=4)
    program = _program((*first, whole), (whole,), exchanges=(_exchange("x", 10),))
    timeline = simulate(program, spin_machine(4, gaps=GAPLESS))
    slack = slack_ns(timeline, program)
    assert (timeline.makespan_ns, slack[0, "a"], slack[0, "b"]) == (6000, 2000, 0)


@pytest.mark.parametrize("grid, end_ns", [(Grid(), 4000), (Grid(kind="static"), 5000)])
def test_who_held_sms_has_no_more_slack_than_who_lacked_them(grid: Grid, end_ns: int) -> None:
    # One SM is free until 3000. Waves: 3 CTAs until then, 4 more. Static: lists of 2, 2, 2 and 1 tiles,
    # the second begins at 2000 and the others at 3000.
    machine = spin_machine(4, gaps=GAPLESS)

    def beside(ns: int) -> Program:
        return _program((_op("a", 3, ns), _op("k", 7, 1000, "alt", grid=grid)))

    program = beside(3000)
    timeline = simulate(program, machine)
    assert timeline.makespan_ns == end_ns
    assert slack_ns(timeline, program) == {(0, "a"): 0, (0, "k"): 0}
    assert simulate(beside(3001), machine).makespan_ns == end_ns + 1


def test_kernels_that_end_together_are_late_together() -> None:
    then = _op("b", 1, 900, "comm")
    program = _program(
        (_transfer("x", 40), then), (_transfer("x", 40),), exchanges=(_exchange("x", 10),)
    )
    slack = slack_ns(simulate(program, spin_machine(4, gaps=GAPLESS)), program)
    assert slack[0, "x.whole"] == slack[1, "x.whole"] == 0


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


_SHORT_OF_SMS = st.tuples(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 90)), min_size=2, max_size=2),
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 40)), min_size=2, max_size=2),
)
Short = tuple[list[tuple[int, int]], list[tuple[int, int]]]


def _short_of_sms(
    ranks: tuple[Short, Short], roles: tuple[Role, ...], longer: str = "", by: int = 0
) -> Program:
    """On 16 SMs: two kernels that fit together, and an exchange that may not fit beside them. Its
    receive is no larger than its send. Rank 0's op `longer` lasts `by` ns longer."""
    classes: list[tuple[Step, ...]] = []
    for rank, (beside, transfers) in enumerate(ranks):
        kernels = [
            (stream, stream, *size) for stream, size in zip(("main", "comm"), beside, strict=True)
        ]
        for role, (ctas, ns) in zip(roles, sorted(transfers, reverse=True), strict=False):
            kernels.append((f"x.{role}", "alt", ctas, ns))
        steps: list[Step] = []
        for name, stream, ctas, ns in kernels:
            late = by if (rank, name) == (0, longer) else 0
            fields = {"exchange": "x", "role": name[2:]} if stream == "alt" else {}
            steps.append(_op(name, ctas, ns * 1000 + late, stream, **fields))
        classes.append(tuple(steps))
    exchange = _exchange("x", 10)
    if "send" in roles:
        exchange = replace(exchange, family="low_latency", flight=spin(1, 30_000))
    return _program(*classes, exchanges=(exchange,))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(_SHORT_OF_SMS, _SHORT_OF_SMS),
    st.sampled_from([("whole",), ("send", "recv")]),
    st.integers(0, 3),
    st.sampled_from([0.3, 1.0]),
)
def test_an_op_may_be_late_by_its_slack_where_sms_are_short(
    ranks: tuple[Short, Short], roles: tuple[Role, ...], which: int, part: float
) -> None:
    machine = spin_machine(16)
    machine = replace(machine, fabric=replace(machine.fabric, flight_latency_ns=0))
    program = _short_of_sms(ranks, roles)
    timeline = simulate(program, machine)
    names = ["main", "comm", *(f"x.{role}" for role in roles)]
    longer = names[which % len(names)]
    by = int(slack_ns(timeline, program)[0, longer] * part)
    late = simulate(_short_of_sms(ranks, roles, longer, by), machine)
    assert late.makespan_ns <= timeline.makespan_ns
