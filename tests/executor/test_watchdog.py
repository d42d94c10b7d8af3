"""The watcher ends a stuck rank with one line, and leaves a slow but living one alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executor.watchdog import last_began

pytestmark = pytest.mark.torch

SCRIPT = """
import ctypes, sys, time
from executor.watchdog import Watchdog
dog = Watchdog(3, limit_s=0.6)
{body}
dog.stop()
print("alive")
"""


def run(body: str) -> tuple[int, str, str, float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def test_a_rank_stuck_in_a_library_call_is_ended_with_its_op() -> None:
    """PyDLL calls hold the interpreter's lock, as a library that spins on its peers may."""
    body = 'dog.beat("op L0.dispatch of exchange L0.dispatch"); ctypes.PyDLL(None).sleep(30)'
    status, _, errors, _ = run(body)
    assert status == -signal.SIGKILL
    assert errors.strip() == (
        "rank 3: no progress for 1 s in op L0.dispatch of exchange L0.dispatch; "
        "a peer is lost or stuck"
    )


def test_what_a_killed_rank_last_began_can_be_read(tmp_path: Path) -> None:
    told = tmp_path / "began"
    assert last_began(told) == ""
    body = f"""
import os, pathlib
dog.stop()
dog = Watchdog(1, told=pathlib.Path({str(told)!r}))
dog.beat("op L0.dispatch of exchange L0.dispatch")
os.kill(os.getpid(), 9)
"""
    assert run(body)[0] == -signal.SIGKILL
    assert last_began(told) == "op L0.dispatch of exchange L0.dispatch"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends children with their parent")
def test_a_stopped_watcher_ends_with_its_rank() -> None:
    body = """
import os, signal
time.sleep(1.0)
os.kill(dog._pid, signal.SIGSTOP)
print(dog._pid, flush=True)
os.kill(os.getpid(), 9)
"""
    status, output, _, took = run(body)  # returns once the watcher, too, has closed its output
    assert status == -signal.SIGKILL and took < 30
    limit = time.monotonic() + 10
    while alive(output.strip()) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not alive(output.strip())


def alive(pid: str) -> bool:
    """Whether a process runs or is stopped; where nobody reaps orphans, the dead stay listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_beats_and_pauses_keep_a_rank_alive() -> None:
    body = "\n".join(
        [
            'for i in range(4): dog.beat(f"op {i}"); time.sleep(0.4)',
            'dog.pause("compiling"); time.sleep(1.5)',
        ]
    )
    status, output, errors, _ = run(body)
    assert (status, output.strip(), errors) == (0, "alive", "")
