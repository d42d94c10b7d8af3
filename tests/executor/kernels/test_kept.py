"""Kept forms of Triton kernels are those that Triton itself would launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.kernels.kept import Kept
from executor.triton_kernels import add_kernel

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def launched() -> list[list[Any]]:
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).with_name("kept_forms.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_kept_form_is_the_one_that_triton_chooses() -> None:
    """Pointers and integers that are divisible by 16 and that are not, 1, 64-bit integers, other types
    and constants; grid, stream and arguments too."""
    cases = launched()
    assert len(cases) == 17
    for theirs, ours in cases:
        assert ours == theirs
    forms = {json.dumps(theirs[:4]) for theirs, _ in cases}
    assert len(forms) > 10, "the cases do not tell forms apart"


def test_constants_in_another_order_are_refused(device: str) -> None:
    x = torch.zeros(4, device=device)
    with pytest.raises(ValueError, match=r"add_kernel takes \('BLOCK',\) here, not \('SIZE',\)"):
        Kept(add_kernel)((1, 1, 1), (x, x, x, x), 4, SIZE=4)
