"""What lies around the MoE layers of a step: embedding, dense layers, head."""

from __future__ import annotations

from collections.abc import Mapping

from models.deployment import Kernel
from models.layer import embedding_kernels, head_kernels, layer_kernels
from schedules.builders.assemble import ClassSteps
from schedules.builders.placing import Place, flow_of, handed_on, put
from schedules.builders.request import Request
from schedules.program import Launch, Op, Step

Inherited = Mapping[str, tuple[str, ...]]


def first_layer(request: Request) -> int:
    """Index of the first MoE layer: 0 when nothing lies around the layers."""
    return request.deployment.model.first_k_dense if request.whole_step else 0


def step_begin(request: Request, rank: int, built: ClassSteps) -> Inherited:
    """Embedding and dense layers of the whole batch on main; returns what the MoE layers inherit."""
    if not request.whole_step:
        return {}
    inherited: Inherited = _outside(
        embedding_kernels(request.deployment, request.whole, rank), {}, built
    )
    layer = layer_kernels(
        request.deployment, request.whole, request.routing, rank, layer_kind="dense"
    )
    steps = tuple(launch(kernel, "main") for group in layer.groups.values() for kernel in group)
    flow = flow_of(layer)
    for index in range(first_layer(request)):
        place = Place(index, flow, inherited)
        built.steps.extend(put(steps, place))
        built.own(place, layer.buffers)
        inherited = handed_on(place)
    return inherited


def step_end(request: Request, rank: int, built: ClassSteps, inherited: Inherited) -> None:
    """The head, of the whole batch."""
    if request.whole_step:
        _outside(head_kernels(request.deployment, request.whole, rank), inherited, built)


def launch(kernel: Kernel, stream: str) -> Launch:
    """A kernel as it stands in a layer, without a place."""
    op = Op(
        kernel.name,
        stream,
        kernel.work,
        kernel.grid,
        kernel.reads,
        kernel.writes,
        kernel.exchange,
        kernel.role,
    )
    return Launch(op, kernel.host_class)


def _outside(
    kernels: tuple[Kernel, ...], inherited: Inherited, built: ClassSteps
) -> dict[str, tuple[str, ...]]:
    """Kernels outside all layers, in order on main, with `step.` before their buffers."""
    found = dict(inherited)
    steps: list[Step] = []
    for kernel in kernels:
        reads = tuple(name for read in kernel.reads for name in found.get(read, (f"in.{read}",)))
        writes = tuple(f"step.{name}" for name in kernel.writes)
        op = Op(kernel.name, "main", kernel.work, kernel.grid, reads, writes)
        steps.append(Launch(op, kernel.host_class))
        found.update({name: (f"step.{name}",) for name in kernel.writes})
        built.buffers.update(dict.fromkeys(writes, kernel.work.write_bytes))
    built.steps.extend(steps)
    return found
