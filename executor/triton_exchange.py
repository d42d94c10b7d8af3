"""The exchanges of the Triton set: one mode, a buffer for each child, routes kept by layer."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from executor.collective_exchange import Collective
from executor.kernel_set import MissingResource, PeerLost
from executor.kernels import low_latency, normal
from executor.kernels.gemm import Grain, Signals, signal_words
from executor.kernels.low_latency import LowLatency
from executor.kernels.normal import Normal, NormalShape, Route
from executor.kernels.peer_memory import PeerMemory, alone, symmetric
from executor.peers import gathered
from models.deployment import Deployment
from schedules.program import Op

# A peer may still be compiling what it launches next.
DEADLINE_NS = 30_000_000_000
BUFFERS = {"": 0, "a": 0, "b": 1}
GRAINS: tuple[Grain, ...] = ("rows", "experts")
PHASES = {0: "dispatch", 1: "signal", 2: "combine", 3: "notify", 4: "transfer", 5: "combine"}


@dataclass
class TritonExchange:
    """What the launchers of one rank use; exactly one of `normal` and `low` is there. `routes` and, in
    page-locked memory of the host, the `plans` that it waits for are kept by layer and child."""

    normal: Normal | Collective | None
    low: LowLatency | None
    routes: dict[str, Route] = field(default_factory=dict)
    plans: dict[str, torch.Tensor] = field(default_factory=dict)
    words: dict[tuple[int, Grain], Signals] = field(default_factory=dict)

    def buffer(self, op: Op) -> int:
        """Which of the two buffers an op uses: children do not share one."""
        return BUFFERS[op.child]

    def signals(self, op: Op, grain: Grain) -> Signals:
        """The words that the down GEMM of this child raises."""
        return self.words[self.buffer(op), grain]

    def check(self, rank: int) -> None:
        """PeerLost when a wait on the device ran past its deadline since the last check."""
        exchange = self.low or self.normal
        assert exchange is not None
        code = int(exchange.error)
        if code:
            exchange.error.zero_()
            phase = PHASES.get(code // 1000, "combine")
            who = "expert" if phase == "signal" else "rank"
            raise PeerLost(f"rank {rank}: a {phase} waited too long for {who} {code % 1000 - 1}")


def collective_group(group: Any, device: torch.device) -> Any:
    """A group of the same ranks for collectives between GPUs, or between hosts for the CPU."""
    import torch.distributed as dist

    backend = "nccl" if device.type == "cuda" else "gloo"
    return dist.new_group(dist.get_process_group_ranks(group), backend=backend)


def peer_region(nbytes: int, ranks: int, group: Any, device: torch.device) -> PeerMemory:
    """Memory that all ranks can write; MissingResource on every rank when one cannot have it."""
    if ranks == 1:
        return alone(nbytes, device)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    if here < ranks:
        raise MissingResource(f"{ranks} ranks span hosts of {here}, which share no memory")
    reason, region = unreachable(ranks, device), None
    if not any(gathered(reason)):
        try:
            region = symmetric(nbytes, group, device)
        except MissingResource as error:
            reason = str(error)
    reasons = [said for said in gathered(reason) if said]
    if reasons or region is None:
        raise MissingResource(reasons[0])
    return region


def unreachable(ranks: int, device: torch.device) -> str:
    """Which GPU of a rank this one cannot reach, in words; empty when it reaches all."""
    if device.type != "cuda":
        return ""
    for other in range(min(ranks, torch.cuda.device_count())):
        if other != device.index and not torch.cuda.can_device_access_peer(device, other):
            return f"GPU {device.index} cannot reach GPU {other}'s memory"
    return ""


def open_exchange(
    deployment: Deployment, most_tokens: int, group: Any, device: torch.device
) -> TritonExchange:
    """Peer memory and the exchange of the deployment's mode, for at most `most_tokens` tokens a rank in
    normal mode. A fused shared expert is one more expert of each rank and one more choice of each
    token. `group` None is a single rank.

    Where peers cannot write each other's memory, normal mode falls to collectives with a warning; low
    latency, whose sends and signals need it, raises MissingResource.
    """
    model, ranks = deployment.model, deployment.ep_size
    fp8 = deployment.quantization.dispatch == "fp8"
    experts = ranks * deployment.slots_per_rank
    top_k = model.top_k + deployment.fusion.slots
    if deployment.a2a.mode == "normal":
        scales = model.hidden_size // 128 if fp8 else 0
        shape = NormalShape(ranks, experts, model.hidden_size, top_k, most_tokens, scales)
        try:
            own = peer_region(normal.region_bytes(shape), ranks, group, device)
        except MissingResource as error:
            warnings.warn(
                f"{error}; exchanges go through collectives, without a budget", stacklevel=2
            )
            return TritonExchange(Collective(shape, collective_group(group, device), device), None)
        return TritonExchange(Normal(own, shape, deadline_ns=DEADLINE_NS), None)
    most = deployment.a2a.max_dispatch_tokens_per_rank
    low = low_latency.Shape(ranks, experts, model.hidden_size, top_k, most, fp8)
    words = {
        (buffer, grain): signal_words(low.local_experts, low.capacity, grain, device)
        for buffer in set(BUFFERS.values())
        for grain in GRAINS
    }
    own = peer_region(low_latency.region_bytes(low), ranks, group, device)
    exchange = LowLatency(own, low, deadline_ns=DEADLINE_NS)
    return TritonExchange(None, exchange, words=words)
