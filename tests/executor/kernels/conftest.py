"""Our kernels run on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") and find_spec("triton") else ["*.py"]
if not collect_ignore_glob:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> str:
    """Where the kernels under test run."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """What FP8 loses depends on the numbers that are drawn."""
    torch.manual_seed(0)
