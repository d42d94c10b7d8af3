"""Exchanges of two and four ranks, each a process of its own, over memory that both reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("rank_of_two.py")
REGION_BYTES = 4_000_000


def run(
    case: str, ranks: tuple[int, ...], folder: Path, dtype: str, *, gpus: bool, size: int = 2
) -> None:
    """The processes of these ranks, of `size` in all, end well."""
    for rank in range(size):
        (folder / f"{rank}").write_bytes(bytes(REGION_BYTES))
    interpret = "0" if gpus else "1"
    environment = os.environ | {"TRITON_INTERPRET": interpret, "PYTHONPATH": str(Path.cwd())}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), case, str(rank), str(folder), dtype, str(size)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in ranks
    ]
    for process in started:
        out, errors = process.communicate(timeout=180)
        assert out == "ok\n", errors[-2000:]


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
@pytest.mark.parametrize("through", ["normal", "collective", "low_latency"])
def test_rows_reach_their_experts_and_come_back_summed(
    tmp_path: Path, through: str, dtype: str
) -> None:
    run(through, (0, 1), tmp_path, dtype, gpus=False)


@pytest.mark.parametrize(("through", "dtype"), [("normal", "fp8"), ("collective", "bf16")])
def test_four_ranks_give_the_same(tmp_path: Path, through: str, dtype: str) -> None:
    run(through, (0, 1, 2, 3), tmp_path, dtype, gpus=False, size=4)


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
@pytest.mark.parametrize("through", ["normal", "collective", "low_latency"])
def test_rows_reach_other_gpus_and_come_back_summed(
    two_gpus: None, tmp_path: Path, through: str, dtype: str
) -> None:
    run(through, (0, 1), tmp_path, dtype, gpus=True)


def test_a_silent_peer_is_an_error_code_and_no_hang(tmp_path: Path) -> None:
    run("lost", (0,), tmp_path, "bf16", gpus=False)
