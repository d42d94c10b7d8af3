"""Layers by the Triton set's launchers on one rank in the interpreter; one line for each schedule.

Run as a module under TRITON_INTERPRET=1, with names like `decode/sbo.v1`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from executor.triton_exchange import open_exchange
from executor.triton_gemm import TritonGemm
from executor.triton_launchers import LAUNCHERS
from models.deployment import Deployment
from tests.executor.production_fakes import CPU, MAX_TOKENS, error


def own_libraries(deployment: Deployment) -> tuple[Any, Any]:
    """Our kernels in the places of DeepGEMM and DeepEP."""
    return TritonGemm(CPU), open_exchange(deployment, MAX_TOKENS, None, CPU)


if __name__ == "__main__":
    torch.manual_seed(0)
    for name in sys.argv[1:]:
        phase, schedule = name.split("/")
        found = error(phase, schedule, LAUNCHERS, own_libraries)
        sys.stdout.write(f"{name} {found:.4f}\n")
