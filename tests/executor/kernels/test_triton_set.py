"""The Triton set's launchers against the plain model, schedule by schedule, on one rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from executor.kernel_set import MissingResource, PeerLost
from executor.triton_exchange import open_exchange
from models.deployment import A2A, Deployment
from tests.executor.layer_programs import MACHINE, TINY

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCHEDULES = (
    "prefill/tbo",
    "decode/sbo.v1",
    "decode/sbo.v2",
    "prefill/baseline+fused",
    "decode/tbo+fused",
)


def test_layers_equal_the_plain_model() -> None:
    """FP8 activations, cut off rather than rounded by the interpreter, cost some percent."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-m", "tests.executor.kernels.triton_layers", *SCHEDULES],
        capture_output=True,
        text=True,
        env=environment,
        timeout=400,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(SCHEDULES), done.stderr[-2000:]
    for line in lines:
        assert float(line.split()[-1]) < 0.16, line


@pytest.mark.parametrize(
    ("code", "message"),
    [(3, "a dispatch waited too long for rank 2"), (1005, "a signal .* for expert 4"),
     (2001, "a combine .* for rank 0"), (0, "")],
)  # fmt: skip
def test_a_wait_past_its_deadline_says_what_and_whom(code: int, message: str) -> None:
    deployment = Deployment(TINY, MACHINE, 1, a2a=A2A(mode="low_latency"))
    exchange = open_exchange(deployment, 8, None, torch.device("cpu"))
    assert exchange.low is not None
    exchange.low.error.fill_(code)
    if not code:
        exchange.check(0)
        return
    with pytest.raises(PeerLost, match=message):
        exchange.check(0)
    exchange.check(0)


def test_low_latency_between_hosts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    deployment = Deployment(TINY, MACHINE, 2, a2a=A2A(mode="low_latency"))
    with pytest.raises(MissingResource, match="2 ranks span hosts of 1"):
        open_exchange(deployment, 8, None, torch.device("cpu"))
