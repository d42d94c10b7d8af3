"""The host's probe without a GPU: its program, its times from a fake, and that ranks stay in step."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from executor.calibrate.layers import HostTimer
from executor.calibrate.plan import DECODE_TOKENS, KV_TOKENS, PREFILL_TOKENS
from executor.host_probe import RUNS, WARM_UPS, Prober, of_slowest, probe_case, probe_of
from executor.recording import Recording
from models.deployment import Fusion, Phase
from models.host import HostProbe
from models.profile import load_machine
from moe_overlap.gated import makespan_ns, predicted
from scenarios import load
from scenarios.resolve import Resolved, resolve

pytestmark = pytest.mark.torch
SCENARIO = "deepseek-v3-h200-ep2-{phase}"


def resolved(phase: str, ranks: int = 2) -> Resolved:
    put = [f"parallel.ep={ranks}", f"parallel.attention_dp={ranks}"]
    return resolve(load(SCENARIO.format(phase=phase), put))


@pytest.mark.parametrize(("phase", "ranks"), [("prefill", 2), ("decode", 2), ("decode", 1)])
def test_the_program_is_on_the_calibrations_grid_and_takes_no_longer_than_allowed(
    phase: Phase, ranks: int
) -> None:
    deployment = resolved(phase, ranks).deployment
    case = probe_case(deployment, phase)
    assert len(case.batch.tokens) == ranks
    assert case.batch.tokens[0] in (PREFILL_TOKENS if phase == "prefill" else DECODE_TOKENS)
    assert set(case.batch.prefix_tokens[0]) <= {0, *KV_TOKENS}
    rows = [set(row) for row in case.routing.ids[0].tolist()]
    assert all(len(row) == deployment.model.top_k for row in rows)
    slow = load_machine("h200-2x-nvlink-measured" if ranks == 2 else "h200-1x-measured")
    run_ns = makespan_ns(predicted(case.program, slow))
    assert run_ns * (RUNS + WARM_UPS) < 0.3e9


def test_its_host_decides_so_that_the_probe_sees_it() -> None:
    """The fake GPU of a profile whose host takes twice as long takes twice as long in all."""
    machine = load_machine("h200-2x-nvlink-measured")
    slow = replace(
        machine.host, by_class=tuple((name, 2 * ns) for name, ns in machine.host.by_class)
    )
    for phase in ("prefill", "decode"):
        case = probe_case(resolved(phase).deployment, phase)
        own, twice = (
            makespan_ns(predicted(case.program, m)) for m in (machine, replace(machine, host=slow))
        )
        assert 1.5 < twice / own < 2.6


def test_small_buffers_and_fused_shared_experts_are_probed_too() -> None:
    deployment = resolved("decode").deployment
    small = replace(deployment, a2a=replace(deployment.a2a, max_dispatch_tokens_per_rank=8))
    assert probe_case(small, "decode").batch.tokens == (8, 8)
    fused = replace(deployment, fusion=Fusion(1, "per_rank"))
    plain = {op.name for op in probe_case(deployment, "decode").program.launches(0)}
    assert {op.name for op in probe_case(fused, "decode").program.launches(0)} < plain


class Slow:
    """A kernel set on a clock of its own: every call takes what is left of a list, by hand."""

    def __init__(self, *ns: int) -> None:
        self.now, self.left = 0, list(ns)

    def take(self, *_: Any) -> None:
        self.now += self.left.pop(0)

    launch = record = host_wait = wait = take


def timed(monkeypatch: pytest.MonkeyPatch, program: Any, calls: list[tuple[str, int]]) -> HostTimer:
    """A run of these calls: (kind of work, "event", "host_wait", or "walk" for what lies between, ns)."""
    ops = {op.work.kind: op for op in program.launches(0)}
    kernels = Slow(*(ns for _, ns in calls))
    timer = HostTimer(cast("Any", kernels))
    monkeypatch.setattr("executor.calibrate.layers.time.perf_counter_ns", lambda: kernels.now)
    for name, _ in calls:
        if name == "walk":
            kernels.take()
        elif name == "event":
            timer.record("e", "main")
        elif name == "host_wait":
            timer.host_wait("e")
        else:
            timer.launch(ops[name])
    return timer


def test_a_launch_takes_the_mean_of_a_run_and_what_lies_before_it_but_for_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first begins with its own call. Of the second run's waits for peers nothing counts, and the median
    of two runs is their mean."""
    program = probe_case(resolved("prefill").deployment, "prefill").program
    first = [("gemm", 40), ("walk", 2), ("gemm", 50), ("event", 5), ("walk", 1), ("gemm", 87)]
    second = [
        ("gemm", 50), ("notify", 9_999), ("walk", 3), ("gemm", 57), ("host_wait", 777),
        ("combine", 80), ("walk", 4), ("event", 7),
    ]  # fmt: skip
    runs = [timed(monkeypatch, program, calls) for calls in (first, second)]
    assert sum(ns for _, ns in runs[0].launches) + sum(runs[0].events) == 185
    gemm = ((40 + 52 + 88) / 3 + (50 + 60) / 2) / 2
    assert dict(probe_of(runs, calls=True).ns) == {"event": 8, "gemm": round(gemm), "combine": 80}
    assert "notify" in dict(probe_of(runs, calls=False).ns)


class Counting(Recording):
    """Counts its runs."""

    walks_calls = True
    runs = 0

    def prepare(self, program: Any, rank: int) -> None:
        self.runs += 1
        super().prepare(program, rank)


def test_every_probe_makes_as_many_runs_after_the_first_ones_warm_up() -> None:
    case = probe_case(resolved("decode").deployment, "decode")
    session: Any = type("Session", (), {"rank": 0})()
    kernels: Any = Counting()
    prober = Prober(session, kernels, case)
    found = dict(prober.probe().ns)
    assert kernels.runs == WARM_UPS + RUNS
    prober.probe()
    assert kernels.runs == WARM_UPS + 2 * RUNS
    assert {op.work.kind for op in case.program.launches(0)} <= found.keys() | {"event"}


def test_a_probe_says_whose_host_it_is_and_one_rank_needs_no_peers() -> None:
    case = probe_case(resolved("decode", 1).deployment, "decode")
    session: Any = type("Session", (), {"rank": 0})()
    kernels: Any = Counting()
    own = Prober(session, kernels, case).probe()
    assert own.rank == 0
    assert of_slowest((own,)) == (own,)


def probes(rank: int) -> tuple[HostProbe, HostProbe]:
    """Rank 1 waits less for its peer, and takes longer for all else."""
    ns = ((50, 30, 900), (80, 45, 200))[rank]
    first = HostProbe(tuple(zip(("gemm", "norm", "dispatch_call"), ns, strict=True)), 0.01, rank)
    return first, replace(first, spread=0.02)


def worker(rank: int, meeting: str, results: Queue[tuple[int, tuple[HostProbe, ...]]]) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    results.put((rank, of_slowest(probes(rank))))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_agree_on_the_slower_host(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: Queue[tuple[int, tuple[HostProbe, ...]]] = context.Queue()
    meeting = (tmp_path / "meeting").as_uri()
    ranks = [context.Process(target=worker, args=(rank, meeting, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join(20)
        assert process.exitcode == 0
    assert found == {0: probes(1), 1: probes(1)}
