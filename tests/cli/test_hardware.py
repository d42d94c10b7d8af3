"""Profiles of one's own from the command line: written, loaded, and used in a comparison."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_new_profile_is_used_as_it_is_written(run: Run, tmp_path: Path) -> None:
    assert run("hardware", "new", "mine", "--base", "h200-8x-ib").returncode == 0
    compared = run(
        "compare", "tiny", "--set", "hardware=./mine.yaml", "--fidelity", "fast", "--json"
    )
    base = run("compare", "tiny", "--set", "hardware=h200-8x-ib", "--fidelity", "fast", "--json")
    mine, theirs = json.loads(compared.stdout), json.loads(base.stdout)
    assert mine["hardware"] == "mine"
    assert [r["step_us"] for r in mine["schedules"]] == [r["step_us"] for r in theirs["schedules"]]
    assert mine["profile_sha256"] != theirs["profile_sha256"]


def test_own_timings_are_merged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("n,k,m,us\n7168,7168,1024,50\n")
    options = ("--base", "h200-8x-ib", "--timings", "mine.csv", "--table", "gemm.fp8")
    done = run("hardware", "new", "timed", *options, "-o", "profiles/timed.yaml")
    assert done.returncode == 0
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == [
        "timed-gemm_fp8.csv",
        "timed.yaml",
    ]
    assert "7168,7168,1024,50\n" in (tmp_path / "profiles" / "timed-gemm_fp8.csv").read_text()


def test_a_profile_that_is_there_is_not_replaced(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("n,k,m,us\n7168,7168,1024,50\n")
    timings = ("--timings", "mine.csv", "--table", "gemm.fp8")
    (tmp_path / "mine.yaml").write_text("filled in\n")
    for options in ((), timings):
        done = run("hardware", "new", "mine", "--base", "h200-8x-ib", *options)
        assert (done.returncode, "is there already" in done.stderr) == (1, True)
    assert (tmp_path / "mine.yaml").read_text() == "filled in\n"
    assert not (tmp_path / "mine-gemm_fp8.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("new", "mine", "--base", "h200-8x"), 1, "did you mean"),
        (("new", "mine"), 2, "--base"),
        (("new", "", "--base", "h200-8x-ib"), 2, "needs a NAME"),
        (("list", "--base", "h200-8x-ib"), 2, "list takes nothing else"),
        (("new", "mine", "--base", "h200-8x-ib", "--table", "gemm.fp8"), 2, "belong together"),
    ],
)
def test_a_bad_request_is_one_message(
    run: Run, arguments: tuple[str, ...], status: int, message: str
) -> None:
    done = run("hardware", *arguments)
    assert done.returncode == status
    assert message in done.stderr


def test_the_library_is_listed(run: Run) -> None:
    assert "gb200-nvl72\n" in run("hardware", "list").stdout
