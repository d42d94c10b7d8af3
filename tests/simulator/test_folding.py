"""One rank for a class of equal ranks against every rank by itself."""

from __future__ import annotations

import pytest

from schedules.program import Exchange, Program, RankClass, Record, Step, Stream, Wait
from schedules.timeline import Span, Timeline
from simulator import simulate
from tests.simulator.spinning import STATIC, kernel, machine

RANKS = 6
STREAMS = (Stream("main"), Stream("alt"))


def uniform(nbytes: int) -> tuple[tuple[int, ...], ...]:
    """Every rank sends as much to every rank."""
    return tuple(tuple([nbytes] * RANKS) for _ in range(RANKS))


def folded(*, comm_ctas: int = 24) -> Program:
    """Six equal ranks: a GEMM on 108 SMs beside two exchanges that share links, and a flight."""
    ranks = tuple(range(RANKS))
    exchanges = (
        Exchange("x", "normal", ranks, uniform(300_000)),
        Exchange("y", "normal", ranks, uniform(200_000)),
        Exchange("f", "low_latency", ranks, uniform(100_000)),
    )
    steps: tuple[Step, ...] = (
        kernel("attn", 108, 40, grid=STATIC),
        Record("E", "main"),
        Wait("E", "alt"),
        kernel("x", comm_ctas // 2, 10, "alt", exchange="x", role="whole"),
        kernel("y", comm_ctas // 2, 12, exchange="y", role="whole"),
        kernel("gemm", 108, 70, grid=STATIC),
        kernel("f.send", comm_ctas, 5, "alt", exchange="f", role="send"),
        kernel("f.recv", comm_ctas, 3, "alt", exchange="f", role="recv"),
    )
    return Program("folded", STREAMS, (RankClass(ranks, steps),), exchanges)


def of_first_rank(timeline: Timeline) -> list[Span]:
    """Spans of rank 0."""
    return list(timeline.of_rank(0))


@pytest.mark.parametrize("gpus_per_node", [8, 3])
@pytest.mark.parametrize("nvlink_gbps", [1000.0, 150.0])
def test_equal_ranks_may_be_folded(gpus_per_node: int, nvlink_gbps: float) -> None:
    hardware = machine(nvlink_gbps=nvlink_gbps, gpus_per_node=gpus_per_node, nic_gbps=nvlink_gbps)
    one, all_ = simulate(folded(), hardware), simulate(folded(), hardware, fold=False)
    assert one.ranks == (0,)
    assert all_.ranks == tuple(range(RANKS))
    assert of_first_rank(one) == of_first_rank(all_)
    assert one.makespan_ns == all_.makespan_ns


def test_a_skew_is_seeded_and_moves_ranks_apart() -> None:
    first = simulate(folded(), machine(), fold=False, skew_ns=30_000, seed=1)
    again = simulate(folded(), machine(), fold=False, skew_ns=30_000, seed=1)
    other = simulate(folded(), machine(), fold=False, skew_ns=30_000, seed=2)
    assert first == again
    assert first != other
    starts = {span.start_ns for span in first.spans if span.op == "attn"}
    assert len(starts) == RANKS and max(starts) <= 30_000
    # Ranks that come early wait for the last one inside their exchange kernels.
    assert any(s.cause == "peer_wait" for span in first.spans for s in span.stalls)


def test_a_rank_outside_the_exchange_may_not_launch_it() -> None:
    program = folded()
    (cls,) = program.classes
    few = tuple(Exchange(e.name, e.family, (1, 2), ((0, 1), (1, 0))) for e in program.exchanges)
    with pytest.raises(ValueError, match=r"rank 0 launches a kernel of exchange 'x'"):
        simulate(Program("bad", STREAMS, (cls,), few), machine())
