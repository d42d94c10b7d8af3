"""Machines that are off by what is stated of them, and what an ensemble of them adds to a makespan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.machine import COVERED, Cost, Footprint, Interference, Machine
from models.spin import spin
from models.work import Grid, Work
from moe_overlap.ensemble import Draw, moved, slowdown_of
from moe_overlap.uncertain import doubts_of, patterns
from schedules.merit import critical_path
from schedules.program import Exchange, Launch, Op, Program, RankClass, Step, Stream
from simulator import simulate
from tests.simulator.spinning import US, machine

ERROR = 0.1
RANKS = (0, 1)
TRAFFIC = ((0, 1000), (1000, 0))
GEMM = Work("gemm", (("k", 1), ("m", 1), ("n", 1)))


class Doubtful:
    """GEMMs of 500 us and dispatches of 150, known within 10 %."""

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """The same on any number of SMs."""
        return Cost((500 if work.kind == "gemm" else 150) * US, "measured", ERROR)

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """A CTA on each SM of the budget; 24 of an exchange."""
        ctas = 24 if work.kind != "gemm" else grid.enforced_budget or 132
        return Footprint(ctas, threads=1024, smem_bytes=200_000, tiles=0)


def doubtful(**near: object) -> Machine:
    rules = Interference(4000.0, (("normal", 0.3, 0.0),), (0.1, 0.0), **near)  # type: ignore[arg-type]
    return replace(machine(), costs=Doubtful(), interference=rules)


def loop(budget: int | None, pairs: int = 6) -> Program:
    """GEMMs back to back beside dispatches that two ranks make together."""
    grid = Grid(kind="static", sm_budget=budget, limited_by="grid")
    gemms: list[Step] = [Launch(Op(f"g{i}", "main", GEMM, grid), "cpp") for i in range(pairs)]
    gang = Grid(gang=True)
    sent: list[Step] = [
        Launch(Op(f"x{i}", "alt", Work("dispatch"), gang, exchange=f"x{i}", role="whole"), "cpp")
        for i in range(pairs)
    ]
    exchanges = tuple(Exchange(f"x{i}", "normal", RANKS, TRAFFIC) for i in range(pairs))
    return Program("loop", (Stream("main"), Stream("alt")), (RankClass(RANKS, (*sent, *gemms)),), exchanges)  # fmt: skip


def test_a_stated_error_holds_for_its_share_of_the_draws() -> None:
    offs = [Draw(seed).off("gemm") for seed in range(2000)]
    inside = sum(abs(off) <= 1.0 for off in offs) / len(offs)
    assert inside == pytest.approx(COVERED, abs=0.03)
    assert sum(offs) / len(offs) == pytest.approx(0.0, abs=0.05)
    assert Draw(3).off("gemm") == Draw(3).off("gemm") != Draw(3).off("norm")


def test_what_errs_alike_is_moved_alike_and_the_exact_not_at_all() -> None:
    made, near = moved(doubtful(), Draw(7)), doubtful()
    larger = replace(GEMM, dims=(("k", 9), ("m", 9), ("n", 9)))
    for work in (GEMM, larger, Work("dispatch")):
        ratio = made.costs.alone(work, Grid(), 132).ns / near.costs.alone(work, Grid(), 132).ns
        assert ratio == pytest.approx(1 + ERROR * Draw(7).off(work.kind), abs=1e-5)
    exact = moved(machine(), Draw(7))
    work = spin(1, 1000, threads=32, smem_bytes=0)
    assert exact.costs.alone(work, Grid(), 1) == machine().costs.alone(work, Grid(), 1)


class Apart(Doubtful):
    """The same times, known within 10 %, of which 6 % are shared by all kernels of a kind."""

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """8 % are the kernel's own: 6 and 8 add up to 10 by their squares."""
        return replace(super().alone(work, grid, sms), shared_error=0.06)


def test_what_is_not_shared_errs_by_itself() -> None:
    on, larger = replace(doubtful(), costs=Apart()), replace(GEMM, dims=(("k", 9),))
    draw = Draw(7)
    for work, sizes in ((GEMM, "k=1 m=1 n=1"), (larger, "k=9")):
        own = 0.08 * draw.off(f"gemm {sizes} on 132 SMs")
        ratio = moved(on, draw).costs.alone(work, Grid(), 132).ns / (500 * US)
        assert ratio == pytest.approx(1 + 0.06 * draw.off("gemm") + own, abs=1e-5)


def test_own_errors_cancel_between_programs_only_where_the_kernels_are_the_same() -> None:
    on = replace(doubtful(), costs=Apart())
    made = {budget: noise_of(on, loop(budget)) for budget in (108, 100)}
    assert {name.partition(" on ")[2] for name in made[108] if name.startswith("gemm k")} == {
        "108 SMs"
    }
    assert not made[108].keys() & {name for name in made[100] if " on " in name and "gemm" in name}
    gemms_ns = made[108]["gemm"] / 0.06
    assert made[108]["gemm k=1 m=1 n=1 on 108 SMs"] == pytest.approx(0.08 * gemms_ns)


def noise_of(on: Machine, program: Program) -> dict[str, float]:
    timeline = simulate(program, on)
    return doubts_of(program, on, timeline, critical_path(timeline))


def test_a_moved_slowdown_moves_its_victim_only_and_never_below_alone() -> None:
    errors = (("normal", 0.2), ("gemm", 0.2))
    plain, program = doubtful(errors=errors), loop(108)
    for factor in (1.2, 0.5):
        rules = replace(plain.interference, moved=(("normal", factor),))
        spans = {s.op: s for s in simulate(program, replace(plain, interference=rules)).of_rank(0)}
        # Beside a GEMM on 108 of 132 SMs: 1 + 0.3 x 108 / 132.
        slow = max(1.0, (1 + 0.3 * 108 / 132) * factor)
        assert spans["x1"].duration_ns == pytest.approx(150 * US * slow, rel=1e-3)


def test_slowdowns_count_as_doubt_only_of_what_ran_beside_others() -> None:
    errors = (("gemm", 0.2),)
    on, program = doubtful(errors=errors), loop(108)
    timeline = simulate(program, on)
    path = critical_path(timeline)
    doubts = doubts_of(program, on, timeline, path)
    last = max(span.end_ns for span in timeline.spans if span.op.startswith("x"))
    beside = sum(item.ns for item in path if item.op.startswith("g") and item.start_ns < last)
    assert 0 < doubts[slowdown_of("gemm")] == pytest.approx(0.2 * beside, rel=0.01)
    assert doubts[slowdown_of("gemm")] < 0.2 * timeline.makespan_ns
    assert slowdown_of("normal") not in doubts


def test_loops_with_a_budget_have_one_pattern_and_those_without_have_more() -> None:
    on, found = doubtful(), dict[int | None, tuple[float, float]]()
    for budget in (108, None):
        program = loop(budget)
        timeline = simulate(program, on)
        found[budget] = patterns(program, on, timeline, 1000 * US, range(8))
    (low, high), makespan = found[108], 3000 * US
    # All in proportion: GEMMs back to back.
    assert -0.01 * makespan < low <= 0 <= high < 0.01 * makespan
    low, high = found[None]
    # Whether one more GEMM makes a second pass.
    assert high - low > 300 * US
