"""From a deployment to a production kernel set on this rank's GPU, and the check of its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from executor.clocks import ClockLog
from executor.cuda import StreamPool, many_hardware_queues
from executor.execute import execute
from executor.gate import Gate, StartGate
from executor.kernel_set import MissingResource
from executor.libraries import DeepEp, DeepGemm
from executor.plain_layer import RankState, plain_model
from executor.production import Production
from executor.production_state import (
    ProductionState,
    empty_caches,
    tokens_by_child,
)
from executor.production_weights import ProductionWeights, production_weights, weight_bytes
from models.deployment import Batch, Deployment
from models.routing import Routing
from schedules.program import Program
from schedules.split import split_batch

SPARE = 1.25


@dataclass
class Session:
    """What outlives a batch on one rank: libraries, weights, the gate, the GPU's clock log."""

    deployment: Deployment
    rank: int
    group: Any
    gate: StartGate
    pool: StreamPool
    clocks: ClockLog
    gemm: DeepGemm
    exchange: DeepEp
    weights: ProductionWeights
    seed: int
    beat: Callable[[str], None]

    @property
    def device(self) -> torch.device:
        """This rank's GPU."""
        return torch.device("cuda", torch.cuda.current_device())


def open_session(
    deployment: Deployment,
    rank: int,
    group: Any,
    *,
    most_sms: int,
    seed: int = 0,
    beat: Callable[[str], None] = lambda what: None,
) -> Session:
    """Libraries, buffers and one layer's weights; MissingResource before anything is allocated when
    a library, a GPU or memory is missing."""
    many_hardware_queues()
    require_weights(deployment, rank)
    gemm = DeepGemm(torch.cuda.get_device_properties("cuda").multi_processor_count)
    exchange = open_deep_ep(deployment, group, most_sms=most_sms)
    session = session_around(gemm, exchange, deployment, rank, group, seed=seed, beat=beat)
    if deployment.a2a.mode == "normal":
        session.pool.adopt("comm", exchange.comm_stream)
    return session


def open_deep_ep(deployment: Deployment, group: Any, *, most_sms: int) -> DeepEp:
    """DeepEP's buffer for the deployment's mode."""
    return DeepEp(
        group,
        deployment.a2a.mode,
        hidden=deployment.model.hidden_size,
        num_experts=deployment.physical_experts,
        max_tokens=deployment.a2a.max_dispatch_tokens_per_rank,
        most_sms=most_sms,
    )


def require_weights(deployment: Deployment, rank: int) -> None:
    """MissingResource unless this rank's part of a layer's weights fits what its GPU has free."""
    free = torch.cuda.mem_get_info()[0]
    need = weight_bytes(deployment.model, deployment.slots_per_rank)
    if need * SPARE > free:
        raise MissingResource(
            f"rank {rank}: weights of {need / 2**30:.1f} GiB do not fit {free / 2**30:.1f} GiB"
        )


def session_around(
    gemm: Any,
    exchange: Any,
    deployment: Deployment,
    rank: int,
    group: Any,
    *,
    seed: int,
    beat: Callable[[str], None],
    gate: StartGate | None = None,
) -> Session:
    """A session on these libraries, with the rank's weights drawn; `gate` None needs peers' memory."""
    gpu = torch.cuda.current_device()
    return Session(
        deployment,
        rank,
        group,
        gate or Gate(rank, deployment.ep_size),
        StreamPool(),
        ClockLog(gpu),
        gemm,
        exchange,
        weights_of(deployment, rank, seed, torch.device("cuda", gpu)),
        seed,
        beat,
    )


def weights_of(
    deployment: Deployment, rank: int, seed: int, device: torch.device
) -> ProductionWeights:
    """One layer's weights with the experts of a rank, the fused shared one included."""
    first = rank * deployment.experts_per_rank
    local = range(first, first + deployment.experts_per_rank)
    fused = deployment.fusion.slots > 0
    return production_weights(deployment.model, local, seed, device, fused=fused)


def kernels_for(
    session: Session, batch: Batch, routing: Routing, *, layers: int, **options: Any
) -> Production:
    """A kernel set for one batch; `options` are those of `Production`. `routing` holds routed experts
    only; the session's deployment says what is fused."""
    rank, device, fusion = session.rank, session.device, session.deployment.fusion
    cut = split_batch(batch)[2][rank]
    generator = torch.Generator(device=device).manual_seed(session.seed * 7919 + rank + 1)
    model = session.deployment.model
    hidden = torch.randn(
        batch.tokens[rank], model.hidden_size, generator=generator, device=device
    ).to(torch.bfloat16)
    state = ProductionState(
        model,
        session.weights,
        session.gemm,
        session.exchange,
        tokens_by_child(batch, routing, rank, cut, device, fusion),
        empty_caches(model, batch, rank, layers, session.seed, device),
        rank,
        routing.ep_size,
        routing.num_physical + routing.ep_size * fusion.slots,
    )
    inputs = {
        "in.hidden": hidden,
        "in.a.hidden": hidden[: cut.token_index],
        "in.b.hidden": hidden[cut.token_index :],
    }
    return Production(
        state, inputs, session.gate, session.pool, session.clocks, beat=session.beat, **options
    )


def require_memory(program: Program, rank: int) -> None:
    """MissingResource when the program's activations do not fit what is free."""
    need = sum(buffer.nbytes for buffer in program.rank_class(rank).buffers)
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    free -= torch.cuda.memory_allocated()
    if need * SPARE > free:
        raise MissingResource(
            f"rank {rank}: {program.name!r} needs {need / 2**30:.1f} GiB of activations; "
            f"{free / 2**30:.1f} GiB are free"
        )


def run_output(program: Program, kernels: Production, rank: int) -> torch.Tensor:
    """The last residual stream of one run, children joined, [T, H]."""
    execute(program, kernels, rank=rank)
    ops = [op for op in program.launches(rank) if op.layer >= 0]
    last = max(op.layer for op in ops)
    names = [
        f"L{last}.{child}.hidden" if child else f"L{last}.hidden"
        for child in sorted({op.child for op in ops if op.layer == last})
    ]
    return torch.cat([kernels.buffers[name] for name in names])


def plain_output(
    session: Session, kernels: Production, batch: Batch, routing: Routing, layers: int
) -> torch.Tensor:
    """What the plain model gives in float32 on this rank's GPU, [T, H]."""
    rank, model = session.rank, session.deployment.model
    att = model.attention
    weights = session.weights.plain(session.device)
    lens = list(zip(batch.new_tokens[rank], batch.prefix_tokens[rank], strict=True))

    def prefix(cache: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        rows = [cache[row, :old].float() for row, (_, old) in enumerate(lens)]
        return tuple((row[:, : att.kv_lora_rank], row[:, att.kv_lora_rank :]) for row in rows)

    state = RankState(
        kernels.inputs["in.hidden"].float(),
        tuple(prefix(cache) for cache in kernels.state.cache),
    )
    own = Batch(batch.phase, (batch.new_tokens[rank],), (batch.prefix_tokens[rank],))
    ids = torch.as_tensor(routing.ids[rank]).to(session.device)
    (out,) = plain_model(model, [weights] * layers, own, [ids], [state])
    return out


def relative_error(out: torch.Tensor, reference: torch.Tensor, start: torch.Tensor) -> float:
    """||out - reference|| / ||reference - start||: the error of what the layers added; infinite when
    anything is not finite. 0 for no tokens."""
    if not reference.numel():
        return 0.0
    if not bool(out.isfinite().all()):
        return float("inf")
    added = reference.float() - start.float()
    return float((out.float() - reference.float()).norm() / added.norm())
