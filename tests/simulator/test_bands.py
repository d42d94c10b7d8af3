"""What the phase between ranks does: much without SM budgets, nothing with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.work import Grid, Work
from schedules.program import Exchange, Launch, Program, RankClass, Step, Stream
from simulator import simulate
from simulator.bands import band, split_classes
from tests.simulator.spinning import US, kernel, machine

RANKS = (0, 1, 2, 3)
TRAFFIC = tuple(tuple([1000] * len(RANKS)) for _ in RANKS)


def loop(gemm_ctas: int, pairs: int = 6) -> Program:
    """Four equal ranks: transfers that they make together, launched first, beside GEMMs back to back."""
    grid = Grid(kind="static")
    gemms: list[Step] = [kernel(f"gemm{i}", gemm_ctas, 500, grid=grid) for i in range(pairs)]
    transfers: list[Step] = [
        kernel(f"x{i}", 24, 150, "alt", Grid(gang=True), exchange=f"x{i}", role="whole")
        for i in range(pairs)
    ]
    exchanges = tuple(Exchange(f"x{i}", "normal", RANKS, TRAFFIC) for i in range(pairs))
    cls = RankClass(RANKS, (*transfers, *gemms))
    return Program("loop", (Stream("main"), Stream("alt")), (cls,), exchanges)


def test_an_offset_changes_a_loop_without_budgets() -> None:
    found = band(loop(132), machine(), skew_ns=1000 * US)
    assert len(found.makespans_ns) == 1 + len(found.seeds) == 5
    # Two modes, one GEMM apart: whether one more GEMM makes a second pass.
    assert found.high_ns - found.low_ns == pytest.approx(500 * US, rel=0.01)


def test_with_a_budget_neither_loop_sees_the_other() -> None:
    found = band(loop(108), machine(), skew_ns=250 * US)
    # 6 GEMMs of 500 and 5 gaps of 1.8 on the rank that starts last, whose transfers end sooner.
    assert set(found.makespans_ns) == {3009 * US}


def test_splitting_keeps_every_rank_and_step() -> None:
    program = loop(108)
    apart = split_classes(program, 3)
    assert [cls.ranks for cls in apart.classes] == [(0, 1), (2, 3)]
    assert all(cls.steps == program.classes[0].steps for cls in apart.classes)
    assert apart.ranks == program.ranks
    assert split_classes(program, 9).classes[3].ranks == (3,)
    assert simulate(apart, machine()).of_rank(0) == simulate(program, machine()).of_rank(0)


def test_a_step_on_an_unknown_stream_is_an_error() -> None:
    launch = kernel("A", 1, 1, "nowhere")
    assert isinstance(launch, Launch)
    program = Program("bad", (Stream("main"),), (RankClass((0,), (launch,)),))
    with pytest.raises(ValueError, match="rank 0 names stream 'nowhere', not of main"):
        simulate(program, machine())


def test_a_missing_cost_is_an_error_before_the_run() -> None:
    launch = kernel("A", 1, 1)
    norm = Launch(replace(launch.op, work=Work("norm")))
    program = Program("bad", (Stream("main"),), (RankClass((0,), (norm,)),))
    with pytest.raises(ValueError, match="spin costs know the work kind 'spin' only, not 'norm'"):
        simulate(program, machine())
