"""From a profiler's trace to times alone: ranges, library calls, peers; loops beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from executor.calibrate.cases import DEFAULT_SCENARIOS, capped, case_of, gemms_of
from executor.calibrate.compile import parts_of
from executor.calibrate.kernel_times import Run, Runs, runs_by_range
from executor.calibrate.layer_points import (
    held_sms,
    launch_gap_ns,
    launches_by_op,
    period_ns,
    point_records,
    run_ns,
    slowest_rank,
    times_by_op,
    without_peers,
)
from executor.calibrate.overlap import calls_for, covered, slowdowns
from executor.calibrate.plan import plan, task
from executor.kernel_set import ExecutorError
from models.counts import gemm
from models.work import Grid, work
from schedules.program import Op

HOST, OTHER = 11, 12
PREFILL = task("layers", phase="prefill", tokens=768, num_sms=16, cap=116)
DECODE = task("layers", phase="decode", tokens=8, kv=64, cap=0)


class Trace:
    """A Chrome trace made by hand: ranges on a host thread, launches in them, kernels elsewhere."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def range(self, name: str, start: float, end: float, tid: int = HOST) -> None:
        self._add("user_annotation", name, start, end - start, tid=tid)

    def kernel(
        self, name: str, launched: float, start: float, ns: float, tid: int = HOST, **args: Any
    ) -> None:
        self._correlation += 1
        ids = {"correlation": self._correlation}
        self._add("cuda_runtime", "cudaLaunchKernelExC", launched, 2.0, tid=tid, args=ids)
        size = {"grid": [132, 1, 1], "block": [128, 1, 1], "stream": 7}
        size |= {"registers per thread": 168, "shared memory": 200_000}
        self._add("kernel", name, start, ns / 1e3, tid=99, args=ids | size | args)

    def _add(self, cat: str, name: str, ts: float, dur: float, **rest: Any) -> None:
        self.events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **rest})


def gemm_op(name: str, cap: int | None = None) -> Op:
    size = gemm(64, 4096, 7168, "fp8_block")
    return Op(name, "main", size, Grid(sm_budget=cap, kind="static"), layer=0)


def exchange_op(name: str, kind: str, role: Any = "whole") -> Op:
    return Op(name, "main", work(kind, num_sms=20), exchange="L0.dispatch", role=role, layer=0)


def test_kernels_belong_to_the_range_that_launched_them() -> None:
    trace = Trace()
    for start in (0.0, 100.0):
        trace.range("L0.a", start, start + 10)
        trace.range("L0.b", start + 20, start + 30)
        # The kernel of a runs long after the host has gone on to b.
        trace.kernel("gemm", start + 5, start + 50, 4000 + start)
        trace.kernel("norm", start + 25, start + 60, 1000)
        trace.kernel("outside", start + 15, start + 70, 500)
        trace.kernel("elsewhere", start + 5, start + 80, 500, tid=OTHER)
    runs = runs_by_range(trace.events, ["L0.a", "L0.b", "L0.c"])
    assert [[run.name for run in repeat] for repeat in runs["L0.a"]] == [["gemm"], ["gemm"]]
    assert [round(repeat[0].ns) for repeat in runs["L0.a"]] == [4000, 4100]
    assert [repeat[0].name for repeat in runs["L0.b"]] == ["norm", "norm"]
    assert runs["L0.c"] == []
    (first, _) = runs["L0.a"]
    assert (first[0].ctas, first[0].threads, first[0].registers) == (132, 128, 168 * 128)


def test_a_trace_without_ranges_is_an_error() -> None:
    trace = Trace()
    trace.kernel("gemm", 5, 50, 4000)
    with pytest.raises(ExecutorError, match="none of the program's ranges"):
        runs_by_range(trace.events, ["L0.a"])


def run(name: str, start_ns: float, ns: float) -> Run:
    return Run(name, start_ns, start_ns + ns, 7, 20, 768, 65536, 0)


def test_an_op_of_several_kernels_takes_their_sum_whatever_the_host_did_between() -> None:
    op = gemm_op("L0.topk")
    repeats: list[tuple[Run, ...]] = [
        (run("cast", 0, 1000), run("sort", 3000, 2000)),
        (run("cast", 0, 1000), run("sort", 1800, 2000)),
        (run("cast", 0, 1400), run("sort", 9000, 2000)),
    ]
    times = times_by_op({"L0.topk": repeats}, {"L0.topk": op}, 1000.0)
    assert times["L0.topk"] == [4000, 4000, 4400]


def test_the_launch_gap_is_the_usual_one_while_the_host_is_ahead() -> None:
    first = (run("a", 0, 1000), run("b", 2100, 1000), run("c", 4300, 1000))
    late = (run("d", 90_000, 1000),)
    assert launch_gap_ns({"L0.x": [first], "L0.y": [late]}) == pytest.approx(1150.0)
    assert launch_gap_ns({"L0.y": [late]}) == 0.0


def test_kernels_of_one_library_call_are_told_apart() -> None:
    ops = {"L0.dispatch": exchange_op("L0.dispatch", "dispatch")}
    repeat = (
        run("void deep_ep::layout::get_dispatch_layout<>", 0, 3000),
        run("void deep_ep::intranode::notify_dispatch<2>", 4000, 5000),
        run("void deep_ep::intranode::dispatch<2, 768>", 10000, 300000),
    )
    times = times_by_op({"L0.dispatch": [repeat, repeat]}, ops, 1000.0)
    assert times["L0.layout"] == [3000, 3000]
    assert times["L0.dispatch.notify"] == [5000, 5000]
    assert times["L0.dispatch"] == [300000, 300000]
    launched = launches_by_op({"L0.dispatch": [repeat, repeat]}, ops)
    assert [record["ns"] for record in launched["L0.dispatch.notify"]] == [5000]
    assert [record["ctas"] for record in launched["L0.dispatch"]] == [20]


def test_an_op_states_each_of_its_kernels_in_order() -> None:
    op = gemm_op("L0.topk")
    repeats: list[tuple[Run, ...]] = [
        (run("cast", 0, 1000), run("sort", 3000, 2000)),
        (run("cast", 0, 1400), run("sort", 1800, 2200)),
        (run("cast", 0, 1100), run("sort", 9000, 2600)),
    ]
    launched = launches_by_op({"L0.topk": repeats}, {"L0.topk": op})["L0.topk"]
    assert [(record["kernel"], record["ns"]) for record in launched] == [
        ("cast", 1100),
        ("sort", 2200),
    ]


def test_waiting_for_peers_is_not_a_kernels_own_time() -> None:
    ops = {"L0.dispatch": exchange_op("L0.dispatch", "dispatch"), "L0.norm1": gemm_op("L0.norm1")}
    mine = {"L0.dispatch": [300.0, 500.0], "L0.norm1": [10.0, 11.0]}
    peer = {"L0.dispatch": [420.0, 310.0], "L0.norm1": [7.0, 7.0]}
    alone = without_peers(mine, [mine, peer], ops)
    assert alone == {"L0.dispatch": [300.0, 310.0], "L0.norm1": [10.0, 11.0]}
    assert without_peers(mine, [mine, {"L0.dispatch": [1.0]}], ops)["L0.dispatch"] == [300.0, 500.0]


def test_a_run_lasts_from_its_first_kernel_to_its_last() -> None:
    runs: Runs = {
        "a": [(run("x", 0, 100),), (run("x", 5000, 80),)],
        "b": [(run("y", 150, 50), run("z", 250, 50)), (run("y", 5100, 100),)],
        "c": [(), ()],
    }
    # 300 ns and 200 ns; what launched nothing does not count.
    assert run_ns(runs) == 250.0


def test_a_period_is_a_run_and_the_pause_behind_it() -> None:
    runs: Runs = {
        "a": [(run("x", 10, 100),), (run("x", 5000, 80),), (), (run("x", 13000, 90),)],
        "b": [(run("y", 0, 400),), (run("y", 5100, 100),), (), (run("y", 13100, 50),)],
    }
    # Starts at 0, 5000 and 13000; a run that launched nothing does not count.
    assert period_ns(runs) == 6500.0


def test_a_single_run_has_no_pause() -> None:
    runs: Runs = {"a": [(run("x", 50, 100),)], "b": [(run("y", 200, 50),)]}
    assert period_ns(runs) == run_ns(runs) == 200.0


def test_the_rank_whose_gpu_is_slower_counts() -> None:
    ops = {"L0.gate": gemm_op("L0.gate"), "L0.dispatch": exchange_op("L0.dispatch", "dispatch")}
    quick = {"L0.gate": [100.0, 101.0, 300.0], "L0.dispatch": [900.0]}
    slow = {"L0.gate": [104.0, 103.0, 105.0], "L0.dispatch": [200.0]}
    assert slowest_rank([quick, slow], ops) == 1
    assert slowest_rank([slow, quick], ops) == 0


def test_layers_with_the_same_work_make_one_point() -> None:
    ops = {"L0.x": gemm_op("L0.x", 116), "L1.x": gemm_op("L1.x", 116), "L0.y": gemm_op("L0.y")}
    times = {"L0.x": [100.0, 110.0], "L1.x": [120.0, 90.0, 100.0], "L0.y": [50.0]}
    launched = {"L0.x": [{"kernel": "gemm<128>", "ctas": 116}]}
    records = point_records(times, ops, 132, {"mhz": 1980}, launched)
    assert [list(r["launches"]) for r in records] == [[{"kernel": "gemm<128>", "ctas": 116}], []]
    assert [(r["sms"], r["ns"], r["runs"], r["mhz"]) for r in records] == [
        (116, 100.0, 5, 1980),
        (132, 50.0, 1, 1980),
    ]
    assert held_sms(exchange_op("L0.dispatch", "dispatch"), 132) == 20


def test_a_case_is_sequential_capped_and_of_the_asked_size() -> None:
    case = case_of(PREFILL, DEFAULT_SCENARIOS, 2)
    ops = case.ops(1)
    assert case.batch.tokens == (768, 768)
    assert {op.stream for op in ops.values()} == {"main"}
    caps = {
        op.grid.sm_budget
        for op in ops.values()
        if op.work.kind.startswith("g") and op.work.kind != "gate"
    }
    assert caps == {116}
    assert ops["L0.dispatch"].grid.sm_budget == 16
    assert ops["L0.norm1"].grid.sm_budget is None
    lifted = capped(case.program, 0)
    assert {op.grid.sm_budget for op in lifted.launches(0) if op.work.kind == "gemm"} == {None}


def test_what_is_compiled_ahead_is_what_the_programs_launch() -> None:
    jobs = gemms_of([PREFILL, DECODE, task("gaps")], DEFAULT_SCENARIOS, 2)
    launched = {
        (op.work, cap)
        for asked, cap in ((PREFILL, 116), (DECODE, 0))
        for rank in (0, 1)
        for op in case_of(asked, DEFAULT_SCENARIOS, 2).program.launches(rank)
        if op.work.kind in ("gemm", "grouped_gemm_masked", "grouped_gemm_contiguous")
    }
    assert {(size, cap) for size, cap, _, _ in jobs} == launched
    pairs = [t for t in plan() if t.kind in ("pairs", "hold")]
    caps = {cap for _, cap, _, _ in gemms_of(pairs, DEFAULT_SCENARIOS, 2)}
    assert caps == {132, 124, 116, 108, 100, 68, 36}


def test_compiling_is_spread_by_shape_and_cap_and_loses_nothing() -> None:
    jobs = [
        (gemm(m, n, 7168, "fp8_block"), cap, 256, 1)
        for m in (8, 64, 512)
        for n in (2112, 4096)
        for cap in (0, 116)
    ]
    parts = parts_of(jobs, 3)
    assert sorted(map(str, (job for part in parts for job in part))) == sorted(map(str, jobs))
    homes = [{(j[0].dim("n"), j[1]) for j in part} for part in parts]
    assert sum(len(home) for home in homes) == len(set().union(*homes))
    assert len(parts_of(jobs, 99)) == 4


def loop(start: float, length: float, count: int, gap: float = 1.0) -> list[tuple[float, float]]:
    return [(start + i * (length + gap), start + i * (length + gap) + length) for i in range(count)]


def test_only_calls_wholly_beside_the_other_loop_count() -> None:
    """The first loop runs 10 calls of 30 from 0, the second 4 calls of 50 from 35."""
    first, second = loop(0, 30, 10), loop(35, 50, 4)
    inside = covered(first, second)
    assert all(start >= 35 and end <= second[-1][1] for start, end in inside)
    assert 0 < len(inside) < len(first)
    assert covered(first, []) == []


def test_slowdowns_are_over_the_mean_of_before_and_after() -> None:
    alone_first: Sequence[Any] = (loop(0, 20, 8), loop(0, 30, 8))
    alone_second: Sequence[Any] = (loop(0, 100, 8), loop(0, 100, 8))
    result = slowdowns(alone_first, alone_second, loop(0, 50, 40), loop(0, 120, 20))
    assert result.first == pytest.approx(2.0)
    assert result.second == pytest.approx(1.2)
    assert result.drift == pytest.approx(0.5)
    short = slowdowns(alone_first, alone_second, loop(0, 50, 40), loop(0, 120, 2))
    assert short.second is None


def test_both_loops_take_about_as_long_and_at_least_a_few_calls() -> None:
    assert calls_for(100e3, 5e6, 60) == 50
    assert calls_for(10e3, 5e6, 60) == 60
    assert calls_for(9e6, 5e6, 60) >= 4


@pytest.mark.parametrize("ranks", [4, 8])
def test_more_ranks_of_one_host_are_one_node(ranks: int) -> None:
    for asked in (PREFILL, DECODE):
        case = case_of(asked, DEFAULT_SCENARIOS, ranks, "h200-8x-ib")
        dims = [dict(op.work.dims) for op in case.ops(ranks - 1).values() if op.exchange]
        assert {(sizes["ep_size"], sizes["nodes"]) for sizes in dims if "nodes" in sizes} == {
            (ranks, 1)
        }
        assert len(case.batch.tokens) == ranks
