"""The full text of a program: exact round trips, readable lines, and errors with a mark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.work import WORK_KINDS, Grid, Work, work
from schedules.caret import GrammarError
from schedules.program import (
    Begin,
    Buffer,
    End,
    Exchange,
    HostWait,
    HostWork,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Signal,
    Stream,
    Wait,
)
from schedules.text import format_program, parse_program, short_text

_NAMES = st.one_of(st.text(max_size=4), st.sampled_from(["host", "rec", "wait", "L3.a", "program"]))
_PAIRS = st.dictionaries(_NAMES, st.integers(), max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)
_RANKS = st.lists(st.integers(0, 9), max_size=6).map(tuple)
st.register_type_strategy(str, _NAMES)
st.register_type_strategy(
    Work,
    st.builds(Work, kind=st.sampled_from(WORK_KINDS), dims=_PAIRS, flops=_PAIRS),
)
st.register_type_strategy(Exchange, st.builds(Exchange, ranks=_RANKS))
st.register_type_strategy(RankClass, st.builds(RankClass, ranks=_RANKS))

GEMM = work("gemm", m=4, n=8, k=16, flops={"fp8": 1024}, read_bytes=192)
TEXT = """\
program tbo
stream main
stream comm priority=-1
work 0 flight
work 1 gemm dims(k=16,m=4,n=8) flops(fp8=1024) read_bytes=192
work 2 dispatch_send
bytes 0 [0,7] [7,0]
exchange L3.dispatch low_latency ranks=0..1 bytes=0 buffer=ll.0 flight=0
signal L3.down blocks=32 threshold=4 order=arrival
ranks 0..1
buffer L3.x 64
host: begin stage a.3
main: L3.gemm1 @116 +L3.down work=1 kind=static gang reads=L3.x layer=3
main: rec E0
comm: wait E0
comm: L3.dispatch.send ?L3.down work=2 exchange=L3.dispatch role=send layer=3 child=a stage=3 host=deepep
host: end stage a.3
host: wait counts
host: work vote
"""


def _program() -> Program:
    gemm = Op("L3.gemm1", "main", GEMM, Grid(116, kind="static", gang=True), ("L3.x",), layer=3)
    send = Op(
        "L3.dispatch.send",
        "comm",
        work("dispatch_send"),
        exchange="L3.dispatch",
        role="send",
        polls="L3.down",
        layer=3,
        child="a",
        stage=3,
    )
    steps = (
        Begin("stage", "a.3"),
        Launch(replace(gemm, raises="L3.down")),
        Record("E0", "main"),
        Wait("E0", "comm"),
        Launch(send, "deepep"),
        End("stage", "a.3"),
        HostWait("counts"),
        HostWork("vote"),
    )
    traffic = ((0, 7), (7, 0))
    exchange = Exchange("L3.dispatch", "low_latency", (0, 1), traffic, "ll.0", work("flight"))
    classes = (RankClass((0, 1), steps, (Buffer("L3.x", 64),)),)
    signals = (Signal("L3.down", 32, 4, "arrival"),)
    return Program("tbo", (Stream("main"), Stream("comm", -1)), classes, (exchange,), signals)


def test_the_text_of_a_small_program() -> None:
    assert format_program(_program()) == TEXT
    assert parse_program(TEXT) == _program()


def test_the_short_lines_are_what_a_user_writes() -> None:
    lines = list(short_text(_program().classes[0].steps))
    assert lines[1:5] == [
        "main: L3.gemm1 @116 +L3.down",
        "main: rec E0",
        "comm: wait E0",
        "comm: L3.dispatch.send ?L3.down",
    ]


@settings(max_examples=30, deadline=None)
@given(st.builds(Program))
def test_any_program_comes_back_equal(program: Program) -> None:
    text = format_program(program)
    assert parse_program(text) == program
    assert format_program(parse_program(text)) == text


def test_shared_matrices_stay_shared() -> None:
    traffic = ((1,),)
    exchanges = tuple(Exchange(name, "normal", (0,), traffic) for name in "ab")
    other = Exchange("c", "normal", (0,), tuple((count,) for count in [1]))
    read = parse_program(format_program(Program("p", (), (), (*exchanges, other))))
    assert read.exchanges[0].bytes is read.exchanges[1].bytes
    assert read.exchanges[0].bytes is not read.exchanges[2].bytes


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("work=1 ", "", 13, "'L3.gemm1' needs work="),
        ("work=1 ", "work=3 ", 13, "'L3.gemm1' needs work="),
        ("bytes=0", "bytes=1", 8, "there is no matrix 1 above"),
        ("flight=0", "flight=9", 8, "there is no work 9 above"),
        ("bytes=0 ", "", 8, "an exchange needs bytes="),
        ("work 1 gemm", "work 2 gemm", 5, "the next work has number 1"),
        ("work 1 gemm", "work 1 gem", 5, "did you mean 'gemm'"),
        ("ranks=0..1", "ranks=1..0", 8, "a range has 1 to"),
        ("ranks 0..1", "ranks 0..99999999999", 10, "a range has 1 to"),
        ("ranks 0..1\n", "", 10, "below a line `ranks ...`"),
        ("blocks=32", "blocks=32 blocks=3", 9, "'blocks' stands twice"),
        ("program tbo\n", "", 1, "`program NAME` is missing"),
        ("stream main", "program more", 2, "a text holds one program"),
        ("order=arrival", "order=fifo", 9, "unknown order 'fifo'"),
        ("priority=-1", "priority=high", 3, "expected an integer, found 'high'"),
        ("host: begin", "host: bgin", 12, "the host knows"),
        ("@116", "@comp", 13, "numbers of SMs"),
        ("program tbo", 'program "\\q"', 1, "not a quoted text"),
    ],
)
def test_errors_show_the_line(old: str, new: str, line: int, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_program(TEXT.replace(old, new, 1))
    assert reason in str(caught.value)
    assert caught.value.line == line
    assert str(caught.value).splitlines()[-1].strip() == "^"
