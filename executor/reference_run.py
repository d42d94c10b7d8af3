"""Layers on the reference kernel set: a program's output beside the plain model's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch

from executor.arithmetic import LAYER_KERNELS
from executor.collective_arithmetic import collective_table
from executor.emulator import Order
from executor.execute import execute
from executor.kernel_set import PeerLost
from executor.layer_state import layer_state
from executor.moe_arithmetic import table
from executor.plain_layer import RankState, plain_model, rank_state
from executor.reference import POISON, Reference
from executor.transport import Transport, in_process
from executor.weights import LayerWeights, layer_weights
from models.deployment import Batch, Fusion, Model
from models.routing import Routing
from schedules.program import Program
from schedules.split import Cut
from schedules.timeline import Timeline


@dataclass(frozen=True)
class Case:
    """A model with seeded weights and inputs, a batch and its routing: everything but a schedule.
    `routing` holds routed experts only; `fusion` is that of the programs."""

    model: Model
    batch: Batch
    routing: Routing
    cuts: tuple[Cut, ...]
    layers: int = 1
    seed: int = 0
    dtype: torch.dtype = torch.float64
    fusion: Fusion = Fusion()

    def weights(self) -> list[LayerWeights]:
        """Weights of all layers, drawn anew."""
        return [
            layer_weights(self.model, layer, seed=self.seed, dtype=self.dtype)
            for layer in range(self.layers)
        ]

    def inputs(self) -> list[RankState]:
        """Inputs of all ranks."""
        return [
            rank_state(
                self.model, self.batch, rank, layers=self.layers, seed=self.seed, dtype=self.dtype
            )
            for rank in range(self.routing.ep_size)
        ]

    def expected(self) -> list[torch.Tensor]:
        """What the plain model gives, a tensor [T, H] a rank."""
        ids = [torch.as_tensor(rows) for rows in self.routing.ids]
        return plain_model(self.model, self.weights(), self.batch, ids, self.inputs())


@dataclass(frozen=True)
class Run:
    """How the emulated device orders things; see `executor.emulator.Emulator`."""

    order: Order = "host"
    seed: int = 0
    delayed: Collection[str] = ()
    timeout_s: float = 15.0


@dataclass
class Result:
    """One rank's timeline and output [T, H], NaN where it depends on an unwritten buffer; or the
    error that ended the rank."""

    timeline: Timeline | None = None
    output: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    error: Exception | None = None


def run_rank(case: Case, program: Program, rank: int, transport: Transport, run: Run) -> Result:
    """One rank's run; the other ranks run at the same time on connected transports."""
    inputs = case.inputs()[rank]
    at = case.cuts[rank].token_index
    collective = any(exchange.family == "collective" for exchange in program.exchanges)
    kernels = Reference(
        collective_table() if collective else table(LAYER_KERNELS),
        transport,
        layer_state(
            case.model,
            case.weights(),
            case.batch,
            case.routing,
            rank,
            case.cuts[rank],
            inputs,
            case.fusion,
        ),
        inputs={
            "in.hidden": inputs.hidden,
            "in.a.hidden": inputs.hidden[:at],
            "in.b.hidden": inputs.hidden[at:],
        },
        order=run.order,
        seed=run.seed * 64 + rank,
        delayed=run.delayed,
        timeout_s=run.timeout_s,
    )
    timeline = execute(program, kernels, rank=rank)
    return Result(timeline, _output(program, rank, kernels, inputs.hidden))


def run_threads(case: Case, program: Program, run: Run | None = None) -> list[Result]:
    """All ranks of this process, a thread each. An error of any rank is raised, the cause before
    the PeerLost of those that waited for it."""
    transports = in_process(case.routing.ep_size)
    results = [Result() for _ in transports]

    def body(rank: int) -> Callable[[], None]:
        def on_thread() -> None:
            try:
                results[rank] = run_rank(case, program, rank, transports[rank], run or Run())
            except Exception as error:  # noqa: BLE001 - raised again on the caller's thread
                results[rank].error = error

        return on_thread

    threads = [threading.Thread(target=body(rank)) for rank in range(len(transports))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [result.error for result in results if result.error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
        raise error
    return results


def _output(program: Program, rank: int, kernels: Reference, like: torch.Tensor) -> torch.Tensor:
    """The last residual stream, children joined."""
    ops = [op for op in program.launches(rank) if op.layer >= 0]
    last = max(op.layer for op in ops)
    children = sorted({op.child for op in ops if op.layer == last})
    names = [f"L{last}.{child}.hidden" if child else f"L{last}.hidden" for child in children]
    parts = [kernels.buffers.get(name, POISON) for name in names]
    if any(part is POISON for part in parts):
        return torch.full_like(like, float("nan"))
    return torch.cat(parts)


def worst_error(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest of the ranks' ||out - ref|| / ||ref||; infinite when anything is not finite."""
    worst = 0.0
    for out, ref in zip(outputs, expected, strict=True):
        if ref.numel() == 0:
            continue
        if out.shape != ref.shape or not bool(out.isfinite().all()):
            return float("inf")
        worst = max(worst, float((out - ref).norm() / ref.norm()))
    return worst
