"""Bounds by hand on spin machines, and that no predicted timeline beats them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.machine import Gaps
from models.spin import spin, spin_machine
from models.work import Grid
from schedules.merit import bounds, critical_path, slack_ns, stream_times
from schedules.program import (
    Exchange,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Role,
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


def test_compute_counts_sm_time() -> None:
    # 10 CTAs of 100 ns and 4 of 50 ns, one CTA an SM, on 4 SMs: (1000 + 200) / 4; a whole wave
    # of the first kernel is not rounded up, since the second may fill its last one.
    program = _program((_op("a", 10, 100), _op("b", 4, 50, "alt")))
    found = bounds(program, replace(spin_machine(4), gaps=GAPLESS))
    assert found.compute_ns == 300 * 204800 // 233472
    full = spin_machine(4, gaps=GAPLESS)
    whole = Launch(Op("c", "main", spin(10, 100, smem_bytes=full.sm.smem_bytes)))
    assert bounds(_program((whole,)), full).compute_ns == 250


def test_small_ctas_share_an_sm() -> None:
    machine = spin_machine(2)
    half = spin(8, 100, threads=64, smem_bytes=machine.sm.smem_bytes // 2)
    assert bounds(_program((Launch(Op("a", "main", half)),)), machine).compute_ns == 200


def test_the_chain_takes_each_op_at_its_fastest() -> None:
    program = _program(
        (
            _op("a", 4, 100),
            Record("E", "main"),
            _op("b", 4, 30),
            Wait("E", "alt"),
            _op("c", 8, 50, "alt", grid=Grid(2)),
        )
    )
    found = bounds(program, spin_machine(4))
    assert (found.chain_ns, found.chain) == (100 + 200, ("a", "c"))


def _exchange(name: str, nbytes: int, ranks: int = 2) -> Exchange:
    rows = tuple(tuple(nbytes if i != j else 7 for j in range(ranks)) for i in range(ranks))
    return Exchange(name, "normal", tuple(range(ranks)), rows)


def _transfer(name: str, ns: int, role: Role = "whole") -> Launch:
    return _op(f"{name}.{role}", 2, ns, "comm", exchange=name, role=role)


def test_the_chain_goes_over_ranks() -> None:
    # rank 1 comes to the exchange after 500; both end 40 later; rank 0 goes on for 100.
    one = (_transfer("x", 40), Record("E", "comm"), Wait("E", "main"), _op("after", 4, 100))
    other = (_op("before", 4, 500, "comm"), _transfer("x", 40))
    found = bounds(_program(one, other, exchanges=(_exchange("x", 10),)), spin_machine(4))
    assert found.chain_ns == 640
    assert found.chain == ("before", "x.whole", "after")


@pytest.mark.parametrize(("per_node", "ns"), [(8, 100), (1, 800)])
def test_communication_counts_bytes_by_port(per_node: int, ns: int) -> None:
    # two exchanges of 20000 bytes each way: over NVLink at 400, over the NIC at 50 bytes a ns.
    machine = spin_machine(4, gpus_per_node=per_node)
    steps = (_transfer("x", 10000), _transfer("y", 10000))
    exchanges = (_exchange("x", 20000), _exchange("y", 20000))
    assert bounds(_program(steps, steps, exchanges=exchanges), machine).communication_ns == ns


def test_no_table_moves_the_bound_of_a_port() -> None:
    """Two transfers of 20 kB at 400 GB/s need 100 ns, though each is said to take 25 alone."""
    machine = spin_machine(4)
    steps = (_transfer("x", 25), _transfer("y", 25))
    exchanges = (_exchange("x", 20000), _exchange("y", 20000))
    assert bounds(_program(steps, steps, exchanges=exchanges), machine).communication_ns == 100


def test_a_cycle_has_no_bounds() -> None:
    steps = (_transfer("x", 10), _transfer("y", 10))
    exchanges = (_exchange("x", 1), _exchange("y", 1))
    with pytest.raises(ValueError, match="cycle"):
        bounds(_program(steps, steps[::-1], exchanges=exchanges), spin_machine(4))


_KERNEL = st.tuples(
    st.sampled_from(["main", "alt", "comm"]),
    st.integers(1, 12),
    st.integers(1, 60),
    st.sampled_from([0, 65536, 204800]),
    st.sampled_from([None, 2, 5]),
    st.sampled_from(["wave", "static", "dynamic"]),
    st.integers(0, 3),
)
_KERNELS = st.lists(_KERNEL, min_size=1, max_size=10)


def _steps(kernels: list[tuple[str, int, int, int, int | None, str, int]]) -> tuple[Step, ...]:
    """Kernels on three streams with waits here and there; exchange `x` in the middle, on comm."""
    steps: list[Step] = []
    for number, (stream, ctas, ns, smem, budget, kind, wait) in enumerate(kernels):
        if wait == 1 and number:
            steps += [Record(f"E{number}", "main"), Wait(f"E{number}", stream)]
        grid = Grid(budget, kind=kind)  # type: ignore[arg-type]
        work = spin(ctas, ns * 10, smem_bytes=smem)
        steps.append(Launch(Op(f"op{number}", stream, work, grid)))
        if number == len(kernels) // 2:
            steps.append(_transfer("x", 200))
            steps += [Record("X", "comm"), Wait("X", "main")]
    return tuple(steps)


@settings(max_examples=40, deadline=None)
@given(_KERNELS, _KERNELS, st.sampled_from([0, 700]))
def test_no_timeline_beats_the_bounds_and_its_figures_add_up(
    one: list[tuple[str, int, int, int, int | None, str, int]],
    other: list[tuple[str, int, int, int, int | None, str, int]],
    host_ns: int,
) -> None:
    machine = spin_machine(6, host_ns=host_ns, gpus_per_node=1)
    program = _program(_steps(one), _steps(other), exchanges=(_exchange("x", 9000),))
    timeline = simulate(program, machine)
    assert timeline.makespan_ns >= bounds(program, machine).largest_ns
    for times in stream_times(timeline):
        assert times.busy_ns + sum(times.bubbles_ns.values()) == timeline.makespan_ns
        assert times.bubbles_ns["unexplained"] == 0
    assert sum(item.ns for item in critical_path(timeline)) == timeline.makespan_ns
    slack = slack_ns(timeline, program)
    assert slack.keys() == {(span.rank, span.op) for span in timeline.spans}
    assert all(0 <= ns <= timeline.makespan_ns for ns in slack.values())
