"""What a step does besides its MoE layers: embedding, dense layers and head, on the busiest rank.

It is the same under every schedule (two-batch overlap starts after the dense layers), so one small
program of it is simulated once per scenario.
"""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import Kernel
from models.layer import embedding_kernels, head_kernels, layer_kernels
from scenarios.resolve import Resolved
from schedules.program import Begin, Buffer, End, Launch, Op, Program, RankClass, Step, Stream

_DENSE_LETTERS = "PQCMXO"


def outside_program(resolved: Resolved) -> Program:
    """Embedding, the model's dense layers and the head in a row, on one stream of one rank."""
    deployment, batch = resolved.deployment, resolved.batch
    rank = max(range(deployment.ep_size), key=lambda r: batch.tokens[r])
    buffers: dict[str, int] = {}
    steps: list[Step] = list(_launches("embed", -1, embedding_kernels(deployment, batch, rank)))
    for layer in range(deployment.model.first_k_dense):
        dense = layer_kernels(deployment, batch, resolved.routing, rank, layer_kind="dense")
        buffers |= dense.buffers
        kernels = tuple(k for letter in _DENSE_LETTERS for k in dense.groups.get(letter, ()))
        steps += _launches(f"D{layer}", layer, kernels)
    steps += _launches("head", -1, head_kernels(deployment, batch, rank))
    if resolved.launch == "cuda_graph":
        steps = [Begin("graph", "outside"), *steps, End("graph", "outside")]
    named = tuple(Buffer(name, nbytes) for name, nbytes in buffers.items())
    return Program("outside", (Stream("main"),), (RankClass((rank,), tuple(steps), named),))


def _launches(prefix: str, layer: int, kernels: tuple[Kernel, ...]) -> Iterator[Launch]:
    for kernel in kernels:
        op = Op(
            f"{prefix}.{kernel.name}",
            "main",
            kernel.work,
            kernel.grid,
            kernel.reads,
            kernel.writes,
            layer=layer,
        )
        yield Launch(op, kernel.host_class)
