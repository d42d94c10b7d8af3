"""Happens-before and excess waits on random programs, against reachability in the program's graph."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from models.work import work
from schedules.graph import build_graph
from schedules.lint import lint
from schedules.lint.clocks import clocks_of
from schedules.program import (
    HostWait,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Step,
    Stream,
    Wait,
)

STREAMS = ("main", "alt", "comm")
BLANK = work("gemm")

_STREAM = st.sampled_from(STREAMS)
_BUFFERS = st.sets(st.sampled_from("xyz"), max_size=1).map(tuple)
_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), _STREAM, _BUFFERS, _BUFFERS),
        st.tuples(st.just("record"), _STREAM),
        st.tuples(st.just("wait"), _STREAM, st.integers(0, 9)),
        st.tuples(st.just("host"), st.integers(0, 9)),
    ),
    min_size=6,
    max_size=24,
)


def _program(actions: list[tuple[object, ...]]) -> Program:
    """Events are numbered as they are recorded; a wait takes one of those recorded before it."""
    steps: list[Step] = []
    records = 0
    for number, action in enumerate(actions):
        match action:
            case ("launch", str(stream), tuple(reads), tuple(writes)):
                steps.append(Launch(Op(f"op{number}", stream, BLANK, reads=reads, writes=writes)))
            case ("record", str(stream)):
                steps.append(Record(f"E{records}", stream))
                records += 1
            case ("wait", str(stream), int(which)) if records:
                steps.append(Wait(f"E{which % records}", stream))
            case ("host", int(which)) if records:
                steps.append(HostWait(f"E{which % records}"))
    return Program("random", tuple(map(Stream, STREAMS)), (RankClass((0,), tuple(steps)),))


def _reachable(program: Program) -> set[tuple[int, int]]:
    """Pairs of steps: the first launch has ended before the second one starts."""
    graph = build_graph(program)
    before: list[set[int]] = [set() for _ in graph.nodes]
    for node in graph.order()[0]:
        for earlier, _ in graph.into[node]:
            before[node] |= before[earlier] | {earlier}
    return {
        (one, other)
        for (_, one), end in graph.end.items()
        for (_, other), start in graph.start.items()
        if end in before[start]
    }


def _launches(program: Program) -> list[int]:
    steps = program.classes[0].steps
    return [index for index, step in enumerate(steps) if isinstance(step, Launch)]


@settings(max_examples=80, deadline=None)
@given(_ACTIONS)
def test_clocks_agree_with_reachability(actions: list[tuple[object, ...]]) -> None:
    program = _program(actions)
    clocks = clocks_of(program.classes[0])
    launches = _launches(program)
    found = {(a, b) for a in launches for b in launches if a < b and clocks.ordered(a, b)}
    assert found == _reachable(program)


def _conflicts(program: Program) -> set[tuple[str, str]]:
    """Names of launches that touch a buffer, one writing it, and that the graph does not order."""
    ops = {
        i: step.op for i, step in enumerate(program.classes[0].steps) if isinstance(step, Launch)
    }
    ordered = _reachable(program)
    return {
        (one.name, other.name)
        for i, one in ops.items()
        for j, other in ops.items()
        if i < j
        and ({*one.writes} & {*other.reads, *other.writes} or {*one.reads} & {*other.writes})
        and (i, j) not in ordered
    }


@settings(max_examples=80, deadline=None)
@given(_ACTIONS)
def test_a_program_has_a_missing_wait_exactly_when_accesses_race(
    actions: list[tuple[object, ...]],
) -> None:
    program = _program(actions)
    found = [item for item in lint(program) if item.rule == "missing-wait"]
    assert bool(found) == bool(_conflicts(program))


def _repaired(program: Program) -> Program:
    """With a record and a wait put in before the later op of every race, so that most waits are
    needed and some are not."""
    while races := _conflicts(program):
        first, second = min(races)
        (cls,) = program.classes
        steps = list(cls.steps)
        places = {step.op.name: i for i, step in enumerate(steps) if isinstance(step, Launch)}
        one, other = steps[places[first]], steps[places[second]]
        assert isinstance(one, Launch) and isinstance(other, Launch)
        event = f"{first}>{second}"
        steps[places[second] : places[second]] = [
            Record(event, one.op.stream),
            Wait(event, other.op.stream),
        ]
        program = replace(program, classes=(replace(cls, steps=tuple(steps)),))
    return program


@settings(max_examples=60, deadline=None)
@given(_ACTIONS)
def test_a_wait_is_excess_exactly_when_nothing_races_without_it(
    actions: list[tuple[object, ...]],
) -> None:
    program = _repaired(_program(actions))
    excess = {item.step for item in lint(program) if item.rule == "excess-wait"}
    (cls,) = program.classes
    for index, step in enumerate(cls.steps):
        if isinstance(step, Wait):
            rest = replace(cls, steps=cls.steps[:index] + cls.steps[index + 1 :])
            without = replace(program, classes=(rest,))
            assert (index in excess) == (not _conflicts(without))
