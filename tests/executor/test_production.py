"""The production kernels' arithmetic, layouts and buffers, without a GPU or its libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor.kernel_set import MissingResource
from executor.libraries import load_library

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_production_layers_equal_the_plain_model() -> None:
    """FP8 activations, cut off rather than rounded by the interpreter, cost some percent."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-m", "tests.executor.production_fakes"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) == 4, done.stderr[-2000:]
    for line in lines:
        assert float(line.split()[-1]) < 0.15, line


def test_a_missing_library_is_named() -> None:
    with pytest.raises(
        MissingResource, match="exchanges needs no_such_library, which does not load"
    ):
        load_library("no_such_library", "exchanges")
