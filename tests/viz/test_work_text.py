"""The hover's work: from the program's ops and flights, rank by rank."""

from __future__ import annotations

from models.work import work
from schedules.program import Exchange, Launch, Op, Program, RankClass, Stream
from schedules.timeline import Span, Timeline
from viz.work_text import work_columns, work_text

GEMM = work(
    "gemm", m=128, n=4096, k=7168, flops={"fp8": 7_516_192_768}, read_bytes=2**24, write_bytes=2**20
)
FLIGHT = work("flight", tokens=64)


def test_text_has_sizes_operations_and_bytes() -> None:
    assert work_text(GEMM) == "k 7,168 m 128 n 4,096 · 7.5 GFLOP fp8 · HBM 17 MiB"
    assert work_text(FLIGHT) == "tokens 64"
    assert work_text(work("notify")) == ""


def test_spans_take_their_ops_and_flights_their_exchanges_work() -> None:
    steps = (Launch(Op("L0.gemm", "main", GEMM)),)
    exchange = Exchange("L0.dispatch", "low_latency", (0, 1), ((0, 0), (0, 0)), None, FLIGHT)
    program = Program("p", (Stream("main"),), (RankClass((0, 1), steps),), (exchange,))
    spans = (
        Span("L0.gemm", 1, "main", 0, 0, 1, "gemm"),
        Span("L0.dispatch.flight", 1, "flight", 0, 0, 1, "flight"),
        Span("L0.gemm", 7, "main", 0, 0, 1, "gemm"),
    )
    timeline = Timeline("p", "m", "predicted", spans)
    assert work_columns(timeline, program) == {
        "work": [0, 1, -1],
        "works": [work_text(GEMM), work_text(FLIGHT)],
    }
    assert work_columns(timeline, None) == {}
