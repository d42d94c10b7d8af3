"""`moe-overlap calibrate` without a GPU: what is missing is named, records on disk become a profile."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from executor.calibrate.store import Store
from models.calibration_records import work_record
from models.calibration_schema import checked
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


WORK = {"kind": "gemm", "dims": {"m": 8, "n": 8, "k": 8}, "flops": {"bf16": 1024}}
ALONE = {
    "what": "alone", "sms": 132, "ns": 9.0, "spread": 0.0,
    "work": WORK | {"read_bytes": 1, "write_bytes": 1},
}  # fmt: skip
LAUNCH = {"kernel": "k", "ns": 9, "ctas": "many", "threads": 128, "registers": 0, "smem_bytes": 0}
HOLD = {
    "what": "hold", "compute": "dense", "kinds": ["gemm"], "held_sms": 24, "alone_ns": 9, "holds": [[3, 10]],
    "ctas": 132, "threads": 128, "registers": 1024, "smem_bytes": 0,
}  # fmt: skip
BESIDE = {
    "what": "beside", "victim": "dispatch on 8", "aggressor": "dense", "kinds": [], "family": "normal",
    "slowdown": 1.2, "busy": 0.5, "gbps": 9.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"what": "run", "ns": 0, "count": 5}, "ns: 0 is not usable; allowed: greater than 0"),
        ({"what": "run", "ns": 9, "count": 0}, "count: 0 is not usable"),
        ({"what": "run", "ns": 9, "count": 5, "period_ns": "later"}, "period_ns: 'later' is not"),
        (ALONE | {"ns": "12"}, "ns: '12' is not usable; allowed: a valid number"),
        (ALONE | {"ns": None}, "ns: 'null' is not usable"),
        (ALONE | {"sms": 0}, "sms: 0 is not usable"),
        (ALONE | {"spread": float("nan")}, "spread: nan is not usable; allowed: a finite number"),
        (ALONE | {"work": WORK}, "work.read_bytes: is missing; allowed: all of kind, dims, flops"),
        (ALONE | {"work": WORK | {"kind": "zebra"}}, "work.kind: 'zebra' is not usable"),
        (ALONE | {"work": WORK | {"dims": {"m": 0, "n": 8, "k": 8}}}, "allowed: m above 0"),
        (ALONE | {"work": WORK | {"dims": {"m": 8}}}, "allowed: gemm has k, m, n"),
        (ALONE | {"work": WORK | {"flops": {}}}, "work.flops: {} is not usable"),
        (ALONE | {"lunches": []}, "lunches: [] is not usable"),
        (ALONE | {"launches": [LAUNCH]}, "launches[0].ctas: 'many' is not usable"),
        ({"what": "host", "class": "gemm", "ns": "fast"}, "ns: 'fast' is not usable"),
        ({"what": "gaps", "ns": [1, 2]}, "ns: [1, 2] is not usable"),
        ({"what": "hbm", "gbps": "all"}, "gbps: 'all' is not usable"),
        (HOLD | {"registers": 10**6}, "registers: 1000000 is not usable"),
        (HOLD | {"holds": [[0, 9]]}, "holds[0][0]: 0 is not usable"),
        (BESIDE | {"slowdown": 0}, "slowdown: 0 is not usable"),
        (BESIDE | {"alone_ns": [1.0]}, "alone_ns: [1.0] is not usable"),
        (BESIDE | {"exchange": "dispatch"}, "exchange_sms: 'null' is not usable"),
        ({"what": "machine", "ranks": "two"}, "ranks: 'two' is not usable"),
        ({"what": "sideways"}, "what: 'sideways' is not usable; allowed: alone, beside"),
        ({"ns": 3}, "what: is missing"),
        ("alone", "not a finished task"),
        ([["what", "machine"]], "not a finished task"),
    ],
)
def test_a_record_that_cannot_be_is_refused_with_its_place(
    tmp_path: Path, broken: object, said: str
) -> None:
    store, target = records(tmp_path / "mine.jsonl"), tmp_path / "mine.yaml"
    given = [{"what": "trace_gap", "ns": 1000.0}, broken]
    with store.open("a") as file:
        file.write(json.dumps({"task": "m=256", "records": given}) + "\n")
    asked = ["calibrate", "-o", str(target), "--minutes", "0", "--records", str(store)]
    done = RUN.invoke(app, asked)
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(f"{store}:8: ")
    assert said in str(done.exception)
    assert isinstance(broken, dict) == ("records[1]." in str(done.exception))
    assert not list(tmp_path.glob("mine*.yaml")) and not list(tmp_path.glob("*.csv"))


def test_a_line_within_the_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    store = records(tmp_path / "mine.jsonl")
    lines = store.read_text().splitlines()
    store.write_text("\n".join([*lines[:3], lines[3][:50], *lines[4:]]) + "\n")
    asked = ["calibrate", "-o", str(tmp_path / "mine.yaml"), "--minutes", "0"]
    done = RUN.invoke(app, [*asked, "--records", str(store)])
    assert isinstance(done.exception, Refused)
    assert f"{store}:4: not a finished task" in str(done.exception)


def test_a_last_line_that_was_cut_off_is_left_out_and_told(tmp_path: Path) -> None:
    """It is a task that was interrupted; a file that is only read is left as it is."""
    store = records(tmp_path / "mine.jsonl")
    cut = store.read_text()[:-20]
    store.write_text(cut)
    target = tmp_path / "mine.yaml"
    asked = ["calibrate", "-o", str(target), "--minutes", "0", "--records", str(store)]
    done = RUN.invoke(app, asked)
    assert done.exit_code == 0
    assert f"{store}:7: cut off" in done.output
    assert store.read_text() == cut
    points = [
        line for line in (tmp_path / "mine.points.csv").read_text().splitlines() if "gemm," in line
    ]
    assert len(points) == 5


def test_records_are_checked_before_anything_is_measured(tmp_path: Path) -> None:
    store = tmp_path / "mine.jsonl"
    store.write_text(json.dumps({"task": "m=256", "records": [ALONE | {"ns": 0}]}) + "\n")
    asked = ["calibrate", "-o", str(tmp_path / "mine.yaml"), "--minutes", "1"]
    done = RUN.invoke(app, [*asked, "--records", str(store)])
    assert isinstance(done.exception, InputError)
    assert f"{store}:1: records[0].ns: 0 is not usable" in str(done.exception)


@pytest.mark.parametrize("gpus", [1, 2])
def test_what_calibrations_wrote_passes(gpus: int) -> None:
    with gzip.open(f"benchmarks/data/calibration_h200_{gpus}x.records.jsonl.gz", "rt") as file:
        given = [record for line in file for record in json.loads(line).get("records", ())]
    assert len(checked(given, "kept")) == len(given) > 500


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


@pytest.mark.parametrize("name", ["mine.yaml", "mine.points.csv"])
@pytest.mark.parametrize("option", ["--records", "--against"])
def test_what_is_read_is_not_written_over(tmp_path: Path, name: str, option: str) -> None:
    kept = tmp_path / name
    kept.write_text("raw\n")
    target = tmp_path / "mine.yaml"
    done = RUN.invoke(app, ["calibrate", "-o", str(target), "--minutes", "0", option, str(kept)])
    assert done.exit_code != 0
    assert f"would write over {kept}, the file of {option}" in str(done.exception)
    assert kept.read_text() == "raw\n"
