"""A schedule's load decides how fast its kernels are, and these its load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.counts import gemm
from models.machine import Cost, Footprint, Gaps, Machine
from models.power import under_loads
from models.power_law import Gain, PowerLaw, Sheet
from models.spin import spin_machine
from models.work import Grid, Work
from moe_overlap.outcome import Programs
from scenarios import load
from scenarios.resolve import resolve
from schedules.program import Launch, Op, Program, RankClass, Stream
from schedules.timeline import Timeline
from simulator import simulate, simulate_step
from simulator.bands import split_classes
from simulator.engine import runner
from simulator.load import (
    CLOSE,
    GUESS,
    PASSES,
    Loads,
    as_loaded,
    bound_works,
    expected_loads,
    loads_of,
    settle,
    settled,
)
from tests.simulator.spinning import program

BOUND = gemm(4096, 4096, 4096, "fp8_block")
RESTS = Work("add", (("columns", 4096), ("rows", 4096)), (), 2**25, 2**24)
LAW = PowerLaw(
    0.9, (("gemm", Gain(0.5, 1e9)),), Sheet((("fp8_block", 2e6), ("fp8", 2e6)), 4800.0, 4)
)


class Costs:
    """Every kernel takes 100 us on all four SMs, at rest."""

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        return Cost(100_000, "exact")

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        return Footprint(4)


def machine(law: PowerLaw = LAW) -> Machine:
    gaps = Gaps(stream=0, event=0, cross_stream=0, reaction=0)
    return replace(spin_machine(4, gaps=gaps, host_ns=0), costs=Costs(), power=law)


def makespan_us(*works: Work, law: PowerLaw = LAW) -> float:
    steps = [Launch(Op(f"op{i}", "main", w), "cpp") for i, w in enumerate(works)]
    return simulate(program(steps, streams=[Stream("main")]), machine(law)).makespan_ns / 1e3


def test_less_rest_makes_a_kernel_slower() -> None:
    # T = 100 / 0.55, t = T (1 - r / 2) and r = 100 / (t + 100): t^2 - 81.82 t - 9090.9 = 0.
    t = (81.818 + (81.818**2 + 4 * 9090.9) ** 0.5) / 2
    assert makespan_us(BOUND, RESTS) == pytest.approx(100 + t, abs=0.5)


def test_without_a_rest_times_are_those_under_full_load() -> None:
    assert makespan_us(BOUND, BOUND) == pytest.approx(2 * 100 / 0.55, abs=0.1)


def test_a_rest_counts_up_to_the_most_that_the_law_knows() -> None:
    law = PowerLaw(0.2, LAW.by_kind, LAW.sheet)
    assert makespan_us(BOUND, RESTS, RESTS, law=law) == pytest.approx(300)


def test_each_rank_has_its_own_load() -> None:
    resting, busy = (
        RankClass(
            (rank,), tuple(Launch(Op(f"op{i}", "main", w), "cpp") for i, w in enumerate(works))
        )
        for rank, works in enumerate([(BOUND, RESTS), (BOUND, BOUND)])
    )
    both = Program("two", (Stream("main"),), (resting, busy))
    times = {(s.rank, s.op): s.duration_ns / 1e3 for s in simulate(both, machine()).spans}
    assert times[0, "op0"] == pytest.approx(144.7, abs=0.5)  # as alone, above
    assert times[1, "op0"] == pytest.approx(100 / 0.55, abs=0.1)


def test_a_program_without_arithmetic_runs_as_without_a_law() -> None:
    assert makespan_us(RESTS, RESTS) == pytest.approx(200)


def test_a_kernel_on_a_quarter_of_the_sms_weighs_a_quarter() -> None:
    sheet = LAW.sheet
    assert sheet.weight(BOUND, 0) == sheet.weight(BOUND, 4) == 1.0
    assert sheet.weight(BOUND, 1) == 0.25
    assert sheet.weight(RESTS, 4) == 0.0


def test_loads_settle_where_they_reproduce_themselves() -> None:
    """Each pass halves the distance to 0.6, which is 0.2 at first."""
    seen: list[Loads] = []

    def read(loads: Loads) -> Loads:
        seen.append(loads)
        return {0: 0.3 + loads[0] / 2}

    loads, off = settle(lambda loads: loads, read, {0: 0.8}, 0.03)
    assert [one[0] for one in seen] == pytest.approx([0.8, 0.7, 0.65])
    assert (loads[0], off) == pytest.approx((0.65, 0.025))


def test_loads_that_never_settle_are_told_by_how_much_they_are_off() -> None:
    seen: list[Loads] = []

    def read(loads: Loads) -> Loads:
        seen.append(loads)
        return {0: 1 - loads[0], 1: 0.5}

    _, off = settle(lambda loads: loads, read, {0: 0.7, 1: 0.5}, 0.005)
    assert len(seen) == PASSES
    assert off == pytest.approx(0.4)


def layers_of_three(layers: int) -> Program:
    """Layers of a kernel and its rest on three ranks that are alike."""
    steps = tuple(
        Launch(Op(f"L{layer}.{work.kind}", "main", work, layer=layer), "cpp")
        for layer in range(layers)
        for work in (BOUND, RESTS)
    )
    return Program("alike", (Stream("main"),), (RankClass((0, 1, 2), steps),))


def test_ranks_simulated_as_one_have_its_load_when_they_are_split() -> None:
    step = simulate_step(layers_of_three, machine(), 20)
    apart = simulate(split_classes(layers_of_three(4), 3), step.machine)
    times = {s.rank: s.duration_ns / 1e3 for s in apart.spans if s.op == "L1.gemm"}
    assert times == pytest.approx(dict.fromkeys(range(3), 144.7), abs=0.5)  # as alone, above


def test_a_step_of_many_layers_is_as_loaded_as_the_whole() -> None:
    """Dense layers have no exchange to rest in, and a step of few layers has the larger part of them."""
    put = ["phase.prefill.tokens_per_rank=4096", "phase.prefill.sequence_tokens=1024"]
    put.append("hardware=h200-2x-nvlink-measured")
    resolved = resolve(load("deepseek-v3-h200-ep2-prefill", put))
    machine = resolved.deployment.machine
    programs = Programs(resolved, resolved.choice("sequential"), allow_refused=False)
    step = simulate_step(programs, machine, 20)
    assert step.simulated < 20
    whole = simulate(programs(20), machine, counters=False).makespan_ns
    assert step.ns == pytest.approx(whole, rel=1e-3)


def passes(asked: Program, guess: Loads | None = None) -> int:
    """How often a program is run until its loads have settled; its time is that of many more passes."""
    seen: list[Timeline] = []

    def counted(at: Machine) -> Timeline:
        seen.append(runner(asked)(at))
        return seen[-1]

    timeline, off = settled(asked, machine(), counted, guess)
    assert off < CLOSE
    exact = seen[-1]
    for _ in range(20):
        exact = runner(asked)(as_loaded(asked, machine(), exact))
    assert timeline.makespan_ns == pytest.approx(exact.makespan_ns, rel=CLOSE)
    return len(seen)


def one_rank(*works: Work) -> Program:
    steps = [Launch(Op(f"op{i}", "main", w), "cpp") for i, w in enumerate(works)]
    return program(steps, streams=[Stream("main")])


@pytest.mark.parametrize("rests", [1, 2, 3, 6])
def test_loads_settle_in_two_passes_where_all_that_is_slower_is_waited_for(
    rests: int,
) -> None:
    assert passes(one_rank(BOUND, BOUND, *[RESTS] * rests)) == 2


def test_loads_that_are_known_settle_in_one_pass() -> None:
    asked = one_rank(BOUND, RESTS)
    known = dict(as_loaded(asked, machine(), simulate(asked, machine())).loads)
    assert passes(asked, known) == 1


def test_what_is_expected_of_a_schedule_is_what_it_has_under_that() -> None:
    """Of one stream: under 0.75, and under the load that is expected from it."""
    asked = one_rank(BOUND, RESTS)
    works = bound_works(asked, machine())
    run = runner(asked)(under_loads(machine(), {0: GUESS}))
    expected = expected_loads(asked, run, works, LAW, {0: GUESS})
    again = runner(asked)(under_loads(machine(), expected))
    assert loads_of(asked, again, works, LAW)[0] == pytest.approx(expected[0], abs=0.002)
