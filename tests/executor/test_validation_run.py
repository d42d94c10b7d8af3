"""What the run of the validation keeps, on fakes: probes around the repeats, and warm-ups until settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.validation_cases import CASES, Group, groups
from benchmarks.validation_outcome import cases, probes_of
from benchmarks.validation_run import WARM_UPS, Bench, between_ns, warm_up
from executor.host_probe import RUNS, settles
from executor.host_probe import WARM_UPS as PROBES_WARM_UPS
from executor.recording import Recording
from models.host import HostProbe

pytestmark = pytest.mark.torch


class Kernels(Recording):
    """Logs the programs that it is prepared for, in a list that all sets share."""

    walks_calls = True
    spans: Any = "none"
    makespan_ns = 1000

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.ran = log

    def prepare(self, program: Any, rank: int) -> None:
        self.ran.append(f"{program.name} of {len(list(program.launches(0)))}")
        super().prepare(program, rank)


def bench(log: list[str]) -> Bench:
    session = SimpleNamespace(rank=0, clocks=SimpleNamespace(samples=[]))
    sessions = SimpleNamespace(
        of=lambda deployment: session, kernel_set=lambda *given, **options: Kernels(log)
    )
    made = Bench.__new__(Bench)
    made.rank, made.ranks = 0, 1
    fakes: dict[str, Any] = {
        "sessions": sessions,
        "watchdog": SimpleNamespace(beat=lambda what: None),
        "clock": SimpleNamespace(start=lambda: None, mhz=lambda: 1980.0),
    }
    for name, fake in fakes.items():
        setattr(made, name, fake)
    return made


def group(name: str) -> Group:
    """One chosen by hand: drawn ones change with their seed."""
    return next(g for g in groups(CASES) if g.name == name)


def test_a_groups_entry_has_probes_before_between_and_after_its_repeats() -> None:
    log: list[str] = []
    chosen = group("decode 64 tokens eager")
    entry = bench(log).measure(chosen, 3)
    assert [len(times) for times in entry["makespans_ns"].values()] == [3] * len(chosen.schedules)
    assert entry["warm_ups"] == WARM_UPS
    probes = probes_of(entry)
    assert len(probes) == 4
    assert {"gemm", "norm", "attention_decode", "dispatch_send"} <= dict(probes[0].ns).keys()
    assert len({frozenset(dict(probe.ns)) for probe in probes}) == 1
    count = len(chosen.schedules)
    assert runs(log, count) == [
        (False, count), (True, PROBES_WARM_UPS + RUNS), (False, count * (WARM_UPS + 1)),
        *[(True, RUNS), (False, count)] * 2, (True, RUNS),
    ]  # fmt: skip


def test_a_program_whose_clock_has_to_settle_is_not_interrupted_by_probes() -> None:
    log: list[str] = []
    chosen = group("decode 64 tokens eager")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("executor.host_probe.settles", lambda batch: True)
        patch.setattr("benchmarks.validation_run.SETTLE_S", 0.0)
        entry = bench(log).measure(chosen, 3)
    count = len(chosen.schedules)
    assert len(entry["probe"]) == 2
    assert runs(log, count)[2] == (False, count * (WARM_UPS + 3))


def runs(log: Sequence[str], programs: int) -> list[tuple[bool, int]]:
    """(whether of the probe's program, how many) runs in a row, up to the last probe; the first `programs`
    runs are the group's."""
    small = log[programs]
    found = [(own, len(list(same))) for own, same in groupby(log, small.__eq__)]
    last = max(i for i, (own, _) in enumerate(found) if own)
    return found[: last + 1]


def test_the_probes_and_times_of_an_entry_are_of_the_rank_whose_host_is_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = group("decode 64 tokens eager")
    alone = bench([]).measure(chosen, 1)
    assert [probe.rank for probe in probes_of(alone)] == [0, 0] == alone["probe_rank"]

    def twice(probes: tuple[HostProbe, ...]) -> list[tuple[HostProbe, ...]]:
        other = (
            replace(p, ns=tuple((kind, 2 * ns + 1) for kind, ns in p.ns), rank=1) for p in probes
        )
        return [probes, tuple(other)]

    def peers(value: Any) -> list[Any]:
        return [
            value,
            (*value[:4], {"sequential": "rank 1"}) if isinstance(value, tuple) else value,
        ]

    monkeypatch.setattr("executor.host_probe.gathered", twice)
    monkeypatch.setattr("executor.peers.gathered", peers)
    entry = bench([]).measure(chosen, 1)
    assert entry["probe_rank"] == [1, 1]
    assert entry["host"] == {"sequential": "rank 1"}
    assert all(ns % 2 for probe in entry["probe"] for ns in probe.values())
    assert [probe.rank for probe in probes_of(entry)] == [1, 1]
    older = {key: value for key, value in entry.items() if key != "probe_rank"}
    assert [probe.rank for probe in probes_of(older)] == [0, 0]


def test_time_between_launches_leaves_out_steps_that_meet_the_peers() -> None:
    """Rank 0: norm to gemm 10, what lies beside its dispatch left out, act to add 7. Rank 1, whose spans
    are in no order: 25 before its combine, which runs beside: 9 of norm to quantise count, and of quantise
    to gemm nothing does, since the combine ends before that starts."""
    zero = [
        ("L0.norm1", 0, 0, 4), ("L0.gemm1", 0, 10, 19), ("L0.dispatch.send", 0, 20, 90),
        ("L0.act", 0, 100, 101), ("L0.add", 0, 107, 130),
    ]  # fmt: skip
    one = [
        ("L1.a.gemm1", 1, 2000, 2009), ("L0.a.add", 1, 1000, 1001), ("L0.a.act", 1, 975, 980),
        ("L0.b.combine", 1, 1001, 2000), ("L1.a.norm1", 1, 1002, 1010), ("L1.a.quantise", 1, 1011, 1020),
    ]  # fmt: skip
    assert between_ns([*one, *zero]) == [17, 34]
    assert between_ns(one) == [34]
    assert between_ns([]) == []


def test_an_entry_is_read_by_the_comparison() -> None:
    chosen = group("decode 64 tokens eager")
    entry = bench([]).measure(chosen, 2)
    record = {"group": chosen.name, "layers": 4, "overlapped": False, "ns": 1000.0, "low_ns": 900,
              "high_ns": 1100, "doubt_ns": {}, "others": {}, "ranks": 2, "unseen": True}  # fmt: skip
    (found,) = cases([record | {"schedule": "sequential", "phase": [1.0, 1.0]}], [entry])
    assert (found.measured_ns, found.error) == (1000.0, 0.0)


def test_warm_up_ends_once_the_time_has_passed_and_not_before_two_turns() -> None:
    for settle_s, wanted in ((0.0, 2), (0.5, 2), (2.0, 3), (2.1, 4)):
        now = [0.0]

        def turn(now: list[float] = now) -> None:
            now[0] += 0.7

        assert warm_up(turn, settle_s, lambda now=now: now[0]) == wanted  # type: ignore[misc]


def test_only_large_prefill_draws_so_much_power() -> None:
    assert settles(group("prefill 4096 tokens 8 SMs").batch)
    assert not settles(group("prefill 2048 tokens 12 SMs").batch)
    assert not settles(group("decode 112 tokens").batch)
