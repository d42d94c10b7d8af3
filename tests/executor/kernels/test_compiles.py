"""Every kernel compiles for sm_90 without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def said_by(script: str) -> list[str]:
    """The lines that a script prints without the interpreter."""
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(Path(__file__).with_name(script))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_all_kernels_compile_for_hopper() -> None:
    lines = said_by("compile_all.py")
    multiply = [line for line in lines if "gemm_kernel" in line or "mla_kernel" in line]
    assert len(multiply) == 11
    assert not any(line.endswith(" 0 wgmma") for line in multiply)


def test_warps_are_told_their_part_through_one_word_behind_barriers() -> None:
    """What racecheck reports at the first lines of the specialised kernels: two writes and a read of the
    last bytes of shared memory, a barrier of all warps between any two of them."""
    found: dict[str, list[list[str]]] = {}
    for line in said_by("partition_words.py"):
        name, *access = line.split()
        found.setdefault(name, []).append(access)
    assert len(found) == 2
    for entries in found.values():
        assert [kind for kind, *_ in entries] == ["st", "ld", "st"]
        assert all(entry[-1] == "barrier" for entry in entries)
        written = {byte for kind, byte, *_ in entries if kind == "st"}
        assert len(written) == 1
