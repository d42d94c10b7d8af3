"""`run` and `validate` on a machine without a GPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from executor.job import GATE_NS
from models.profile import load_machine

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_recording_lists_every_op_of_every_rank(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "recorded.json"
    done = run("run", "tiny", "-s", "tbo", "--kernels", "recording", "-o", str(target))
    assert done.returncode == 0, done.stderr
    spans = json.loads(target.read_text())["spans"]
    per_rank = [sum(1 for span in spans if span["rank"] == rank) for rank in (0, 1)]
    assert per_rank[0] == per_rank[1] > 100


def measured_file(run: Run, target: Path, schedule: str, *settings: str) -> None:
    """What `run -o` writes on a GPU: the recording's file, under the name of one."""
    words = ("run", "tiny", "-s", schedule, "--kernels", "recording", "-o", str(target))
    done = run(*words, *settings)
    assert done.returncode == 0, done.stderr
    document = json.loads(target.read_text()) | {"machine": "NVIDIA H200"}
    target.write_text(json.dumps(document))


def test_an_earlier_measurement_is_validated_without_running(run: Run, tmp_path: Path) -> None:
    target, page = tmp_path / "recorded.json", tmp_path / "page.html"
    measured_file(run, target, "tbo")
    words = ("validate", "tiny", "-s", "tbo", "--measured", str(target))
    done = run(*words, "-o", str(page), "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["schedules"]
    assert row["schedule"] == "tbo" and row["predicted_us"] > 100
    assert "L0" in page.read_text() or "dispatch" in page.read_text()


def test_predicted_and_measured_become_one_trace(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    recorded, trace = tmp_path / "recorded.json", tmp_path / "both.pftrace"
    measured_file(run, recorded, "tbo")
    done = run("validate", "tiny", "-s", "tbo", "--measured", str(recorded), "-o", str(trace))
    assert done.returncode == 0, done.stderr
    assert b"tbo, predicted" in trace.read_bytes()
    assert b"tbo, measured" in trace.read_bytes()


def test_a_probe_in_the_file_is_the_host_of_the_prediction(run: Run, tmp_path: Path) -> None:
    """Half as fast a host makes an op-by-op decode step longer, from the start of
    launching on by at most twice: the gate lets the host get ahead first."""
    target, page = tmp_path / "recorded.json", tmp_path / "page.html"
    eager = ("--set", "runtime.launch=eager", "--set", "hardware=h200-2x-nvlink-measured")
    measured_file(run, target, "baseline", *eager)
    words = ("validate", "tiny", "-s", "baseline", "--measured", str(target), *eager)
    told = run(*words)
    assert "baseline: the profile's own host: no probe of it stands" in told.stdout, told.stderr
    before = json.loads(run(*words, "--json").stdout)["schedules"][0]
    assert before["host_ratio"] is before["probe_rank"] is None
    assert before["profile_host_error"] == before["error"]
    host = dict(load_machine("h200-2x-nvlink-measured").host.by_class)
    probe = {"ns": {kind: 2 * host[kind] for kind in ("gemm", "norm", "event")}, "spread": 0.01}
    document = json.loads(target.read_text()) | {"host_probes": [probe | {"rank": 1}] * 2}
    target.write_text(json.dumps(document))
    after = json.loads(run(*words, "--json", "-o", str(page)).stdout)["schedules"][0]
    assert after["host_ratio"] == pytest.approx(2.0)
    assert after["probe_rank"] == 1
    ahead_us = GATE_NS / 1e3
    assert after["predicted_us"] / before["predicted_us"] > 1.2
    assert after["predicted_us"] <= 2 * before["predicted_us"] + ahead_us
    assert after["profile_host_error"] == pytest.approx(before["error"])
    assert "host 2.00 of the profile" in page.read_text()
    if find_spec("perfetto"):
        trace = tmp_path / "both.pftrace"
        run(*words, "-o", str(trace))
        assert b"baseline, predicted (host 2.00 of the profile's)" in trace.read_bytes()
    kept = json.loads(run(*words, "--json", "--host", "profile").stdout)["schedules"][0]
    assert kept == before
    assert "baseline: host 2.00 of the profile's, by rank 1's probes" in run(*words).stdout
    wrong = run(*words, "--host", "fast")
    assert wrong.returncode == 1
    assert "measured, profile" in wrong.stderr


@pytest.mark.parametrize(
    ("kernels", "named"),
    [
        ("recording", "recording"),
        pytest.param(
            "reference",
            "reference (cpu)",
            marks=[needs_torch, pytest.mark.torch, pytest.mark.slow],
        ),
    ],
)
def test_a_stand_in_for_gpus_is_no_measurement(
    run: Run, tmp_path: Path, kernels: str, named: str
) -> None:
    target = tmp_path / "stood-in.json"
    ran = run("run", "tiny", "-s", "tbo", "--kernels", kernels, "--layers", "1", "-o", str(target))
    assert ran.returncode == 0, ran.stderr
    done = run("validate", "tiny", "-s", "tbo", "--measured", str(target))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: --measured: {target}: is of the {named} kernels, which time nothing; "
        "allowed: what `run -o` wrote with --kernels production or triton\n"
    )


def test_a_file_without_a_span_is_no_measurement(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "nothing.json"
    measured_file(run, target, "tbo")
    target.write_text(json.dumps(json.loads(target.read_text()) | {"spans": []}))
    done = run("validate", "tiny", "-s", "tbo", "--measured", str(target))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{target}: lasts no time" in done.stderr


def test_as_many_files_as_schedules(run: Run) -> None:
    done = run("validate", "tiny", "-s", "tbo", "-s", "baseline", "--measured", "one.json")
    assert done.returncode == 1 and "one for each of 2 schedules" in done.stderr


def test_a_file_that_is_absent_or_of_another_schedule_is_named(run: Run, tmp_path: Path) -> None:
    recorded, absent = tmp_path / "recorded.json", tmp_path / "absent.json"
    measured_file(run, recorded, "tbo")
    done = run("validate", "tiny", "-s", "baseline", "--measured", str(recorded))
    assert done.returncode == 1 and "'tbo' is not usable; allowed: baseline" in done.stderr
    done = run("validate", "tiny", "-s", "baseline", "--measured", str(absent))
    assert done.returncode == 1 and f"--measured: {absent}: No such file" in done.stderr
    run("simulate", "tiny", "-s", "tbo", "-o", str(recorded))
    done = run("validate", "tiny", "-s", "tbo", "--measured", str(recorded))
    assert done.returncode == 1 and f"{recorded}: is predicted" in done.stderr


def test_an_unknown_kernel_set_is_refused(run: Run) -> None:
    done = run("run", "tiny", "-s", "tbo", "--kernels", "cuda")
    assert done.returncode == 1 and "recording, reference, production" in done.stderr


@needs_torch
@pytest.mark.torch
def test_a_machine_without_gpus_is_told_so(run: Run) -> None:
    for words in (("run", "tiny", "-s", "tbo"), ("validate", "tiny")):
        done = run(*words)
        assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
        assert "needs 2 CUDA GPUs; torch sees 0" in done.stderr


@needs_torch
@pytest.mark.torch
@pytest.mark.slow
def test_ranks_with_different_scenarios_are_told_so() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank, tokens in enumerate((2, 3)):
        launcher = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        words = ["run", "tiny", "-s", "baseline", "--kernels", "reference", "--layers", "1"]
        words += ["--set", f"phase.decode.batch_per_rank={tokens}"]
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", "moe_overlap", *words],
                env=os.environ | launcher | {"MASTER_PORT": port},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for process in ranks:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1, errors
        assert "ranks were started with different programs" in errors


@needs_torch
@pytest.mark.torch
@pytest.mark.slow
def test_two_gloo_ranks_give_the_plain_models_output(process: Run) -> None:
    small = ("--set", "phase.decode.batch_per_rank=3", "--set", "phase.decode.kv_tokens=5")
    done = process(
        "run", "tiny", "-s", "tbo", "--kernels", "reference", "--layers", "1", "--json", *small
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["relative_error"] < 1e-10
