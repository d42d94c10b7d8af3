"""Lint says something about any program, however broken, and never fails itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from models.work import work
from schedules.grid_view import show_finding
from schedules.lint import RULES, lint
from schedules.program import (
    Begin,
    End,
    Exchange,
    HostWait,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Signal,
    Stream,
    Wait,
)

_NAME = st.sampled_from(["main", "alt", "E0", "E1", "a.0", ""])
_SOME = st.lists(_NAME, max_size=2).map(tuple)
_OP = st.builds(
    Op, _NAME, _NAME, st.just(work("gemm")), reads=_SOME, writes=_SOME, exchange=st.none() | _NAME
)
_STEP = st.one_of(
    st.builds(Launch, _OP),
    st.builds(Record, _NAME, _NAME),
    st.builds(Wait, _NAME, _NAME),
    st.builds(HostWait, _NAME),
    st.builds(Begin, name=_NAME),
    st.builds(End, name=_NAME),
)
_RANKS = st.lists(st.integers(0, 3), max_size=3).map(tuple)
_ROW = st.lists(st.integers(-1, 3), max_size=3).map(tuple)


def _few(item: st.SearchStrategy[object], most: int = 3) -> st.SearchStrategy[object]:
    return st.lists(item, max_size=most).map(tuple)


_PROGRAM = st.builds(
    Program,
    st.just("any"),
    _few(st.builds(Stream, _NAME)),
    _few(st.builds(RankClass, _RANKS, _few(_STEP, 14))),
    _few(st.builds(Exchange, _NAME, ranks=_RANKS, bytes=_few(_ROW))),
    _few(st.builds(Signal, _NAME, st.integers(-1, 2), st.integers(-1, 2))),
)


@settings(max_examples=60, deadline=None)
@given(_PROGRAM)
def test_any_program_gets_findings_with_known_rules(program: Program) -> None:
    for item in lint(program):
        assert RULES[item.rule][0] == item.severity
        assert item.message in show_finding(program, item)
