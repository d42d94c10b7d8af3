"""A rank that is killed ends the run with one line, soon, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc"),
]


def ranks_of(pid: int) -> list[int]:
    """Children of a process that are ranks (and not the resource tracker)."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [
            int(child)
            for child in children
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
    except OSError:
        return []


def started() -> tuple[subprocess.Popen[str], list[int]]:
    words = [sys.executable, "-m", "moe_overlap", "run", "tiny", "-s", "baseline"]
    run = subprocess.Popen(
        [*words, "--kernels", "reference", "--layers", "4"], stderr=subprocess.PIPE, text=True
    )
    ranks: list[int] = []
    limit = time.monotonic() + 60
    while len(ranks) < 2 and time.monotonic() < limit and run.poll() is None:
        time.sleep(0.1)
        ranks = ranks_of(run.pid)
    assert len(ranks) == 2, run.stderr
    return run, ranks


def all_gone(ranks: list[int]) -> bool:
    limit = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in ranks) and time.monotonic() < limit:
        time.sleep(0.1)
    return not any(Path(f"/proc/{pid}").exists() for pid in ranks)


def test_ranks_end_when_the_command_is_killed() -> None:
    run, ranks = started()
    run.kill()
    run.communicate(timeout=60)
    assert all_gone(ranks)


def test_a_killed_rank_ends_the_run() -> None:
    run, ranks = started()
    os.kill(ranks[1], signal.SIGKILL)
    killed = time.monotonic()
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 4, errors
    assert time.monotonic() - killed < 30
    assert "rank" in errors.splitlines()[-1], errors
    assert all_gone(ranks)
