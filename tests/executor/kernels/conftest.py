"""Our kernels run in Triton's interpreter, or on a GPU (mark `gpu`) where there is one."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

ON_GPU = False
collect_ignore_glob = [] if find_spec("torch") and find_spec("triton") else ["*.py"]
if not collect_ignore_glob:
    import torch

    ON_GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
    if not ON_GPU:
        os.environ["TRITON_INTERPRET"] = "1"

INTERPRETER = pytest.mark.skipif(ON_GPU, reason="kernels are compiled for the GPU in this process")
A_GPU = (pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="there is no GPU here"))


@pytest.fixture(params=[pytest.param("cpu", marks=INTERPRETER), pytest.param("cuda", marks=A_GPU)])
def device(request: pytest.FixtureRequest) -> str:
    """Where the kernels under test run."""
    return str(request.param)


@pytest.fixture(params=[pytest.param("cuda", marks=A_GPU)])
def hopper(request: pytest.FixtureRequest) -> str:
    """A device for kernels that only Hopper runs."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs compute capability 9")
    return str(request.param)


@pytest.fixture(params=[pytest.param(None, marks=A_GPU)])
def two_gpus() -> None:
    """For tests whose ranks are processes with a GPU each."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """What FP8 loses depends on the numbers that are drawn."""
    torch.manual_seed(0)
