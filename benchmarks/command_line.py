"""Seconds of the command line, each the best of three processes started from nothing.

    python -m benchmarks.command_line

Goals: `--help` below 0.5 s, the demo's comparison (report included) at most 3 s, on a quiet machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = {
    "--help": 0.5,
    "scenarios": 1.0,
    "compare tiny": 3.0,
    "compare deepseek-v3-h100-ep72-decode": 3.0,
    "compare deepseek-v3-h100-ep32-prefill": 5.0,
}
REPEATS = 3


def main() -> None:
    """Print one line per case: seconds, goal, command."""
    print(f"{'best s':>7} {'goal s':>7}  command")
    with tempfile.TemporaryDirectory() as folder:
        for arguments, goal in CASES.items():
            best = min(_seconds(arguments, folder) for _ in range(REPEATS))
            print(f"{best:7.2f} {goal:7.2f}  moe-overlap {arguments}")


def _seconds(arguments: str, folder: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "moe_overlap", *arguments.split()],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
