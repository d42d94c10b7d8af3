"""What the production set refuses before any rank is started, and what it tells the GPU of counts."""

from __future__ import annotations

import pytest
import torch

from executor.kernel_set import MissingKernel
from executor.production import LAUNCHERS, check_kernels
from executor.production_moe import Starts
from tests.executor.layer_programs import case, program

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("schedule", "shape"),
    [("sequential", "prefill"), ("tbo", "prefill"), ("baseline", "decode"), ("tbo", "decode")],
)
def test_layers_without_signals_have_all_their_kernels(schedule: str, shape: str) -> None:
    check_kernels(program(schedule, case(shape, 1)), LAUNCHERS, signals=False)


def test_a_down_gemm_that_signals_is_refused_by_op() -> None:
    made = program("sbo.v1", case("decode", 1))
    with pytest.raises(MissingKernel, match=r"op L0\.gemm2 signals by blocks"):
        check_kernels(made, LAUNCHERS, signals=False)


def test_a_kernel_that_is_not_there_is_named() -> None:
    made = program("sequential", case("prefill", 1))
    fewer = {name: launch for name, launch in LAUNCHERS.items() if name != "permute"}
    with pytest.raises(MissingKernel, match=r"no kernel 'permute' \(op L0\.permute\)"):
        check_kernels(made, fewer, signals=False)


def test_starts_are_those_of_the_latest_counts() -> None:
    at = Starts(3, torch.device("cpu"))
    assert at.fill([128, 0, 256]) == 384
    assert at.starts.tolist() == [0, 128, 128, 384]
    assert at.next_row.tolist() == [0, 128, 128]
    at.next_row.add_(5)
    assert at.fill([0, 128, 0]) == 128
    assert at.starts.tolist() == [0, 0, 128, 128]
    assert at.next_row.tolist() == [0, 0, 128]
