"""A calibration of the Triton set: its plan and programs, and what a profile says of its launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.calibrate.bench import Options, tasks_of
from executor.calibrate.cases import DEFAULT_SCENARIOS, case_of
from executor.calibrate.kernel_times import Run
from executor.calibrate.layer_points import held_sms, launched_nothing, times_by_op
from executor.calibrate.plan import Task, task
from executor.calibrate.triton_plan import SENDS, triton_plan
from models.calibrated_interference import LEAST_BESIDE
from models.calibrated_profile import calibrated
from models.calibration_records import sorted_out, work_record
from models.counts import elementwise
from models.errors import InputError
from models.measured import is_held
from models.profile import load_machine
from schedules.program import Op

BASE = "h200-2x-nvlink"


def ops_of(made: Task, kind: str) -> list[Op]:
    case = case_of(made, DEFAULT_SCENARIOS, 2)
    return [op for op in case.program.launches(0) if op.work.kind == kind]


def test_the_set_decides_on_the_plan() -> None:
    options = Options(Path("x"), 2, DEFAULT_SCENARIOS, 1.0)
    assert tasks_of(options) != tasks_of(Options(Path("x"), 2, {}, 1.0, kernels="triton"))
    names = [made.name for made in triton_plan()]
    assert len(set(names)) == len(names)
    assert {made.name for made in triton_plan(quick=True)} < set(names)
    assert all(
        made.text("exchange").endswith("_ll")
        for made in triton_plan(ranks=1)
        if made.kind == "pairs"
    )


@pytest.mark.parametrize(("send", "cap"), SENDS)
def test_sends_and_gemms_keep_to_their_sms(send: int, cap: int) -> None:
    made = task("layers", phase="decode", tokens=8, kv=64, cap=cap, send=send)
    sends, gemms = ops_of(made, "combine_send"), ops_of(made, "grouped_gemm_masked")
    assert {held_sms(op, 132) for op in sends} == {send or 132}
    assert {held_sms(op, 132) for op in gemms} == {cap or 132}
    assert {held_sms(op, 132) for op in ops_of(made, "dispatch_send")} == {132}


def run(name: str, ns: float) -> Run:
    return Run(name, 0.0, ns, 7, 24, 512, 32768, 0)


def test_an_op_without_a_kernel_costs_nothing_and_the_others_their_own_kernels() -> None:
    made = task("layers", phase="prefill", tokens=1536, num_sms=24, cap=108)
    case = case_of(made, DEFAULT_SCENARIOS, 2)
    ops = {name: op for name, op in case.ops(0).items() if name.startswith("L3.")}
    runs: dict[str, list[tuple[Run, ...]]] = {
        "L3.dispatch": [(run("transfer_kernel", 90.0),)],
        "L3.combine.notify": [(), ()],
        "L3.add": [(), ()],
    }
    ops = {name: op for name, op in ops.items() if name in runs}
    assert times_by_op(runs, ops, 1.0, {}) == {"L3.dispatch": [90.0]}
    (nothing,) = launched_nothing(runs, ops)
    assert nothing["work"]["kind"] == "notify" and nothing["ns"] == 1.0


def profile(tmp_path: Path, kernels: str, *more: dict[str, Any]) -> Any:
    norms = [
        elementwise("norm", rows, 7168, rows * 14336, rows * 14336) for rows in (64, 512, 4096)
    ]
    records: list[dict[str, Any]] = [
        {"what": "machine", "gpu": "NVIDIA H200", "kernels": kernels},
        {"what": "host", "class": "combine", "ns": 40_000},
        {"what": "host", "class": "notify", "ns": 30_000},
        *more,
    ]
    records += [
        {"what": "alone", "work": work_record(work), "sms": 132, "ns": 1e4, "spread": 0.01}
        for work in norms
    ]
    made = calibrated(
        sorted_out(records, 0, "records"), name="mine", base=BASE, seed=0, source="synthetic"
    )
    (tmp_path / made.points_file).write_text(made.points)
    (tmp_path / "mine.yaml").write_text(made.profile)
    return load_machine(tmp_path / "mine.yaml")


def test_a_profile_of_the_set_launches_as_the_set_does(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    triton, production = profile(tmp_path, "triton"), profile(tmp_path, "production")
    assert not triton.grid("combine").gang and production.grid("combine").gang
    assert triton.grid("attention_decode").kind == "wave"
    assert production.grid("attention_decode") == load_machine(BASE).grid("attention_decode")
    for machine in (triton, production):
        costs = dict(machine.host.by_class)
        assert (costs["combine"], costs["notify"]) == (40_000, 30_000)


def test_a_set_that_nobody_wrote_down_is_named(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    with pytest.raises(InputError, match="kernels: 'tritn' is not usable") as caught:
        profile(tmp_path, "tritn")
    assert caught.value.source == "synthetic"
    assert caught.value.allowed == "production, triton; did you mean 'triton'?"


def signals(sms: int, rows: int, ratio: float) -> dict[str, Any]:
    return {
        "what": "signals",
        "kind": "combine_send",
        "sms": sms,
        "rows": rows,
        "ns": 2e4 * ratio,
        "plain_ns": 2e4,
    }


def test_what_polling_costs_is_in_the_profile_by_sms_and_rows(tmp_path: Path) -> None:
    """As measured at a point, between its neighbours elsewhere; nothing for a kernel, or a profile, of
    which nobody measured it."""
    pytest.importorskip("scipy")
    measured = (signals(32, 800, 1.1), signals(3, 800, 1.6), signals(3, 200, 2.0))
    machine = profile(tmp_path, "triton", *measured)
    ratio = machine.signal_ratio
    assert ratio("combine_send", 800, 3) == pytest.approx(1.6)
    assert ratio("combine_send", 200, 3) == pytest.approx(2.0)
    assert ratio("combine_send", 400, 3) == pytest.approx(1.8)
    assert 1.1 < ratio("combine_send", 800, 16) < ratio("combine_send", 800, 8) < 1.6
    assert ratio("combine_send", 5000, 132) == pytest.approx(1.1)
    assert ratio("grouped_gemm_masked", 800, 129) == 1.0
    assert load_machine(BASE).signal_ratio("combine_send", 800, 3) == 1.0


@pytest.mark.parametrize(
    "sms", [made.number("num_sms") for made in triton_plan() if made.kind == "polls"]
)
def test_every_send_that_polls_also_runs_beside_enough_neighbours(sms: int) -> None:
    """A fit of the slowdown takes three neighbours that are not held out."""
    beside = [
        made.text("compute")
        for made in triton_plan()
        if made.kind == "pairs" and made.number("num_sms") == sms
    ]
    held = [is_held(f"combine_ll on {sms} beside {name} on {132 - sms}", 0) for name in beside]
    assert held.count(False) >= LEAST_BESIDE
