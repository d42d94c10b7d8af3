"""What the production set refuses before any rank is started."""

from __future__ import annotations

import pytest

from executor.kernel_set import MissingKernel
from executor.production import LAUNCHERS, check_kernels
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
