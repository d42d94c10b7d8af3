"""`moe-overlap calibrate` without a GPU: what is missing is named, records on disk become a profile."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from executor.calibrate.store import Store
from models.calibration_records import work_record
from models.counts import gemm
from models.errors import InputError
from models.profile import load_machine
from moe_overlap.cli import app
from moe_overlap.errors import MachineLacks, Refused

RUN = CliRunner()


def records(path: Path) -> Path:
    """A small calibration: dense GEMMs 10 % slower than the library's profile."""
    base = load_machine("h200-2x-nvlink")
    store = Store(path)
    store.add("gaps", [{"what": "machine", "gpu": "NVIDIA H200", "ranks": 2, "torch": "2.11.0"}])
    for m in (256, 512, 1024, 2048, 4096, 8192):
        work = gemm(m, 7168, 16384, "fp8_block")
        ns = 1.1 * base.costs.alone(work, base.grid("gemm"), 132).ns
        point: dict[str, Any] = {"what": "alone", "work": work_record(work), "sms": 132}
        store.add(f"m={m}", [point | {"ns": ns, "spread": 0.01, "mhz": 1980, "watts": 500}])
    return path


def test_records_on_disk_become_a_profile_that_loads(tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    store = records(tmp_path / "mine.records.jsonl")
    done = RUN.invoke(app, ["calibrate", "-o", str(target), "--minutes", "0"])
    assert done.exit_code == 0, done.output
    assert "held out" in done.output
    machine = load_machine(target)
    base = load_machine("h200-2x-nvlink")
    work = gemm(3000, 7168, 16384, "fp8_block")
    grid = base.grid("gemm")
    ratio = machine.costs.alone(work, grid, 132).ns / base.costs.alone(work, grid, 132).ns
    assert ratio == pytest.approx(1.1, rel=1e-3)
    assert machine.name == "mine"
    assert store.exists()


@pytest.mark.torch
def test_without_a_gpu_the_message_says_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = RUN.invoke(app, ["calibrate", "-o", str(tmp_path / "mine.yaml"), "--minutes", "1"])
    assert isinstance(done.exception, MachineLacks)
    assert "CUDA GPU" in str(done.exception)


@pytest.mark.parametrize(("library", "extra"), [("scipy", "calibrate"), ("torch", "executor")])
def test_a_missing_library_is_named_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == library else real(name, *a)
    )
    done = RUN.invoke(app, ["calibrate", "-o", str(tmp_path / "mine.yaml")])
    assert isinstance(done.exception, MachineLacks)
    assert f"moe-overlap[{extra}]" in str(done.exception)


def test_records_that_are_not_there_or_no_records_are_refused(tmp_path: Path) -> None:
    target = str(tmp_path / "mine.yaml")
    done = RUN.invoke(app, ["calibrate", "-o", target, "--minutes", "0"])
    assert isinstance(done.exception, Refused)
    other = tmp_path / "other.jsonl"
    other.write_text("nonsense\n")
    done = RUN.invoke(app, ["calibrate", "-o", target, "--minutes", "0", "--records", str(other)])
    assert isinstance(done.exception, Refused)
    other.write_text(json.dumps({"task": "gaps", "records": []}) + "\n")
    done = RUN.invoke(app, ["calibrate", "-o", target, "--minutes", "0", "--records", str(other)])
    assert isinstance(done.exception, Refused)
    assert "no kernel's time" in str(done.exception)


@pytest.mark.parametrize(
    "broken",
    [
        {"what": "run", "ns": 0, "count": 5},
        {"what": "run", "ns": 9, "count": 0},
        {"what": "run", "ns": 9, "count": 5, "period_ns": "later"},
        {"what": "alone", "work": {"kind": "zebra", "dims": {}, "flops": {}}},
        "alone",
    ],
)
def test_a_record_that_cannot_be_is_refused_with_its_place(tmp_path: Path, broken: object) -> None:
    store = records(tmp_path / "mine.jsonl")
    with store.open("a") as file:
        file.write(json.dumps({"task": "m=256", "records": [broken]}) + "\n")
    asked = ["calibrate", "-o", str(tmp_path / "mine.yaml"), "--minutes", "0"]
    done = RUN.invoke(app, [*asked, "--records", str(store)])
    assert isinstance(done.exception, InputError | Refused)
    assert str(store) in str(done.exception)


def test_records_without_loads_take_no_power_law_from_their_base(tmp_path: Path) -> None:
    """Their points are times as they were measured, not those at rest."""
    target, store = tmp_path / "mine.yaml", records(tmp_path / "mine.jsonl")
    asked = ["calibrate", "-o", str(target), "--minutes", "0", "--records", str(store)]
    for base, law in (("h200-2x-nvlink-measured", True), ("h200-2x-nvlink", False)):
        assert (load_machine(base).power is not None) is law
        done = RUN.invoke(app, [*asked, "--base", base])
        assert done.exit_code == 0, done.output
        assert load_machine(target).power is None


def test_validate_refuses_a_profile_of_another_gpu(tmp_path: Path) -> None:
    scenario = "deepseek-v3-h200-ep2-decode"
    measured = str(tmp_path / "none.json")
    asked = ["validate", scenario, "-s", "baseline", "--measured", measured]
    done = RUN.invoke(app, [*asked, "--profile", "h100-8x-ib"])
    assert isinstance(done.exception, InputError)
    assert "--other-gpu" in str(done.exception)
    done = RUN.invoke(app, [*asked, "--profile", "h100-8x-ib", "--other-gpu"])
    assert "--other-gpu" not in str(done.exception)


def test_points_of_another_calibration_must_be_readable(tmp_path: Path) -> None:
    asked = ["calibrate", "-o", str(tmp_path / "mine.yaml"), "--minutes", "0"]
    done = RUN.invoke(app, [*asked, "--against", str(tmp_path / "none.points.csv")])
    assert isinstance(done.exception, InputError)
    assert "none.points.csv" in str(done.exception)
