"""The Triton kernel set: our own grouped GEMM, exchanges and small kernels on CUDA streams.

It runs where torch and Triton do, needs no library, and raises and polls signals, so that every
schedule runs on it, single-batch overlap with signals included. Ranks are GPUs of one node that reach
each other's memory. Dense products that are not FP8 linear layers, and prefill attention, are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from executor.collective_exchange import Collective
from executor.cuda import many_hardware_queues, require_gpus
from executor.gate import CollectiveGate
from executor.kernel_set import MissingResource
from executor.production import Production
from executor.production_setup import Session, kernels_for, require_weights, session_around
from executor.triton_exchange import TritonExchange, open_exchange
from executor.triton_gemm import TritonGemm
from executor.triton_launchers import LAUNCHERS
from models.deployment import Batch, Deployment
from models.routing import Routing

OLDEST = (8, 9)


def open_triton_session(
    deployment: Deployment,
    rank: int,
    group: Any,
    *,
    most_tokens: int,
    seed: int = 0,
    beat: Callable[[str], None] = lambda what: None,
) -> Session:
    """Weights, peer memory and one rank's gate, for batches of at most `most_tokens` tokens a rank.

    MissingResource before anything is allocated when the GPU lacks FP8, memory or, in low latency,
    peers; without peers normal mode goes through collectives, and so does the gate.
    """
    many_hardware_queues()
    require_gpus(1)
    _require_fp8()
    require_weights(deployment, rank)
    device = torch.device("cuda", torch.cuda.current_device())
    exchange = open_exchange(deployment, most_tokens, group, device)
    gemm = TritonGemm(device)
    gate = None
    if isinstance(exchange.normal, Collective):
        gate = CollectiveGate(exchange.normal.group, device)
    return session_around(gemm, exchange, deployment, rank, group, seed=seed, beat=beat, gate=gate)


def triton_kernels(
    session: Session, batch: Batch, routing: Routing, *, layers: int, **options: Any
) -> Production:
    """A kernel set for one batch; `options` are those of `Production`."""
    exchange: Any = session.exchange
    assert isinstance(exchange, TritonExchange)
    return kernels_for(
        session,
        batch,
        routing,
        layers=layers,
        launchers=LAUNCHERS,
        walks_calls=True,
        signals=True,
        check=lambda: exchange.check(session.rank),
        **options,
    )


def _require_fp8() -> None:
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST:
        name = torch.cuda.get_device_name()
        raise MissingResource(
            f"the Triton set multiplies FP8, which {name} (compute capability "
            f"{capability[0]}.{capability[1]}) cannot; 8.9 is the oldest that can"
        )
