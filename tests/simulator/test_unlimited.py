"""Kernels that take no number of SMs hold what they hold, whatever a schedule asks of them."""

from __future__ import annotations

import pytest

from moe_overlap.prediction import simulate
from scenarios import load
from scenarios.resolve import resolve
from schedules.timeline import Span


def send(hardware: str) -> Span:
    settings = [f"hardware={hardware}", "phase.decode.batch_per_rank=20", "schedules=[sbo.v3]"]
    resolved = resolve(load("deepseek-v3-h200-ep2-decode", settings))
    timeline = simulate(resolved, "sbo.v3", layers=1, allow_refused=True)
    return next(s for s in timeline.spans if s.op.endswith("combine.send") and s.rank == 0)


@pytest.mark.parametrize(
    ("hardware", "sms"),
    [
        # SGLang's DeepEP sends on the 32 SMs that single-batch overlap asks for.
        ("h200-2x-nvlink", 32),
        # DeepEP 1.2.1 launches a CTA for each of 64 experts: so did two H200 (traced: 64).
        ("h200-2x-nvlink-measured", 64),
    ],
)
def test_a_budget_that_nobody_heeds_limits_nothing(hardware: str, sms: int) -> None:
    assert send(hardware).sms == sms
