"""A calibration's plan, loop and records, without a GPU: what is measured, resumed and reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from executor.calibrate.clocks import Reading, Watch, summed_up
from executor.calibrate.plan import DECODE_TOKENS, PREFILL_TOKENS, Task, plan, task
from executor.calibrate.run import Progress, calibrate
from executor.calibrate.store import Record, Store
from executor.kernel_set import ExecutorError

TASKS = tuple(task("pairs", sms=sms, tokens=128) for sms in (12, 24, 66))


class Bench:
    """Measures by noting what it was asked."""

    def __init__(self, fails: str = "") -> None:
        self.asked: list[str] = []
        self.fails = fails

    def __call__(self, wanted: Task) -> Sequence[Record]:
        self.asked.append(wanted.name)
        if self.fails and self.fails in wanted.name:
            raise ExecutorError("no room")
        return [{"what": "alone", "ns": wanted.number("sms")}]


def run(
    bench: Bench,
    store: Store | None,
    *,
    minutes: float = 60.0,
    shared: list[object] | None = None,
    clock: Sequence[float] = (),
) -> tuple[str, ...]:
    told = iter(shared or ())
    ticks = iter(clock)
    seen: list[object] = shared if shared is not None and store is not None else []

    def share(value: object) -> object:
        if store is None:
            return next(told)
        seen.append(value)
        return value

    return calibrate(
        TASKS,
        bench,
        store,
        share=share,
        minutes=minutes,
        report=lambda progress: None,
        clock=lambda: next(ticks, 0.0),
    )


def test_names_are_unique_and_the_first_need_is_first() -> None:
    for quick in (True, False):
        tasks = plan(quick=quick)
        assert len({t.name for t in tasks}) == len(tasks)
        assert [t.kind for t in tasks][:2] == ["gaps", "layers"]
    quick_names = {t.name for t in plan(quick=True)}
    assert quick_names < {t.name for t in plan()}


def test_one_gpu_is_asked_for_low_latency_alone() -> None:
    names = {t.name for t in plan(ranks=1)}
    assert names < {t.name for t in plan()}
    assert {t.text("phase") for t in plan(ranks=1) if t.kind == "layers"} == {"decode"}
    exchanges = {t.text("exchange") for t in plan(ranks=1) if t.kind in ("ladder", "pairs")}
    assert exchanges == {"dispatch_ll", "combine_ll"}


def test_every_size_of_the_grid_is_measured_with_and_without_a_cap() -> None:
    layers = [t for t in plan() if t.kind == "layers"]
    for phase, sizes in (("prefill", PREFILL_TOKENS), ("decode", DECODE_TOKENS)):
        caps = {
            size: {
                t.number("cap")
                for t in layers
                if (t.text("phase"), t.number("tokens")) == (phase, size)
            }
            for size in sizes
        }
        assert all(0 in found and len(found) > 2 for found in caps.values())


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    first = Bench()
    run(first, Store(file), minutes=1.0, clock=(0.0, 1.0, 59.0, 61.0))
    assert first.asked == [t.name for t in TASKS[:2]]
    second = Bench()
    store = Store(file)
    run(second, store)
    assert second.asked == [TASKS[2].name]
    assert [r["ns"] for r in store.records()] == [12, 24, 66]
    assert [r["ns"] for r in Store(file).records()] == [12, 24, 66]


@pytest.mark.parametrize("cut", [3, 30, 60])
def test_a_cut_off_task_is_measured_again(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "records.jsonl"
    run(Bench(), Store(file))
    text = file.read_text()
    file.write_text(text[:-cut])
    again = Bench()
    run(again, Store(file))
    assert again.asked == [TASKS[2].name]
    assert sorted(r["ns"] for r in Store(file).records()) == [12, 24, 66]


def test_a_task_that_takes_its_process_with_it_is_tried_twice(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    for _ in range(2):
        store = Store(file)
        assert not store.hopeless
        store.begin(TASKS[0].name)
    bench = Bench()
    failed = run(bench, Store(file))
    assert bench.asked == [t.name for t in TASKS[1:]]
    assert failed == (f"{TASKS[0].name}: ended its process",)


def test_other_ranks_do_what_rank_0_says(tmp_path: Path) -> None:
    said: list[object] = []
    store = Store(tmp_path / "records.jsonl")
    store.add(TASKS[1].name, [])
    leader, follower = Bench(), Bench()
    run(leader, store, shared=said)
    assert said == [True, False, True]
    run(follower, None, shared=said)
    assert follower.asked == leader.asked


def test_a_task_that_fails_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path / "records.jsonl")
    bench = Bench(fails="sms=24")
    failed = run(bench, store)
    assert len(bench.asked) == 3
    assert failed == ("pairs sms=24 tokens=128: no room",)
    assert TASKS[1].name not in store.done


def test_a_file_that_is_no_record_is_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    good = json.dumps({"task": "gaps", "records": []})
    for bad in ("nonsense", "[]", "{}", "3", '{"task": 3}', '{"task": "a", "records": [[]]}'):
        file.write_text(f"{good}\n{bad}\n{good}\n")
        with pytest.raises(ExecutorError, match=r"records.jsonl:2"):
            Store(file)


def test_the_clock_state_is_that_of_the_busy_half() -> None:
    idle = [Reading(345, 90, 30)] * 4
    busy = [Reading(1700, 690, 60, reasons=0x4), Reading(1500, 695, 61, reasons=0x4 | 0x1)]
    state = summed_up([*idle, *busy, *busy])
    assert (state.mhz, state.mhz_low, state.watts, state.celsius) == (1600, 1500, 692, 61)
    assert state.throttled == ("power cap",)
    assert state.others == ()


def test_other_users_of_the_gpu_are_reported() -> None:
    with Watch(lambda: Reading(1980, 400, 50, others=(4711,)), period_s=0.001) as watch:
        pass
    assert watch.state is not None
    assert watch.state.others == (4711,)
    with Watch(None) as blind:
        pass
    assert blind.state is None


def test_progress_counts_up_to_the_end(tmp_path: Path) -> None:
    seen: list[Progress] = []
    calibrate(
        TASKS,
        Bench(),
        Store(tmp_path / "records.jsonl"),
        share=lambda value: value,
        minutes=60,
        report=seen.append,
    )
    assert [p.done for p in seen] == [0, 1, 2, 3]
    assert {p.total for p in seen} == {3}
