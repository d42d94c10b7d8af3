"""Exchanges of two and four ranks, each a process of its own, over memory that both reach."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("rank_of_two.py")
REGION_BYTES = 4_000_000
LIMIT_S = 180
THROUGH = ("normal", "collective", "low_latency")
DTYPES = ("fp8", "bf16")


def run(
    cases: Sequence[str], ranks: Sequence[int], folder: Path, *, gpus: bool, size: int = 2
) -> list[tuple[list[str], str]]:
    """What the processes of these ranks, of `size` in all, say: the cases that they have done, and the end
    of their errors."""
    for rank in range(size):
        (folder / f"{rank}").write_bytes(bytes(REGION_BYTES))
    interpret = "0" if gpus else "1"
    environment = os.environ | {"TRITON_INTERPRET": interpret, "PYTHONPATH": str(Path.cwd())}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), ",".join(cases), str(rank), str(folder), str(size)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in ranks
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(out.splitlines(), errors[-2000:]) for out, errors in said]


def ends_well(case: str, ranks: Sequence[int], folder: Path, size: int = 2) -> None:
    """The case, in the interpreter."""
    for done, errors in run([case], ranks, folder, gpus=False, size=size):
        assert done == [case], errors


@cache
def on_two_gpus() -> list[tuple[list[str], str]]:
    """All cases in one pair of processes: a pair for each would load torch and open its GPUs anew."""
    every = [f"{through}-{dtype}" for through in THROUGH for dtype in DTYPES]
    with tempfile.TemporaryDirectory() as folder:
        return run(every, (0, 1), Path(folder), gpus=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("through", THROUGH)
def test_rows_reach_their_experts_and_come_back_summed(
    tmp_path: Path, through: str, dtype: str
) -> None:
    ends_well(f"{through}-{dtype}", (0, 1), tmp_path)


@pytest.mark.parametrize("case", ["normal-fp8", "collective-bf16"])
def test_four_ranks_give_the_same(tmp_path: Path, case: str) -> None:
    ends_well(case, (0, 1, 2, 3), tmp_path, size=4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("through", THROUGH)
def test_rows_reach_other_gpus_and_come_back_summed(
    two_gpus: None, through: str, dtype: str
) -> None:
    for done, errors in on_two_gpus():
        assert f"{through}-{dtype}" in done, errors


def test_a_silent_peer_is_an_error_code_and_no_hang(tmp_path: Path) -> None:
    ends_well("lost-bf16", (0,), tmp_path)
