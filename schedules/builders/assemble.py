"""Ranks' steps to a program: exchanges with their bytes and buffers, streams, buffers, the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from models.deployment import Deployment, LayerKernels
from models.exchanges import exchange_bytes
from models.routing import Routing
from models.work import Work
from schedules.builders.placing import Place
from schedules.builders.request import Request
from schedules.program import (
    Begin,
    Buffer,
    End,
    Exchange,
    Family,
    Launch,
    Op,
    Program,
    RankClass,
    Signal,
    Step,
    Stream,
    Traffic,
)


@dataclass
class ClassSteps:
    """The steps of one class as they are built, with the bytes of its buffers; `prologue` is what the
    host does before anything is launched, which no graph captures."""

    prologue: list[Step] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    buffers: dict[str, int] = field(default_factory=dict)

    def own(self, place: Place, sizes: Mapping[str, int]) -> None:
        """Note the buffers that a layer writes at its place, and the inputs that it takes."""
        head = place.prefix
        for name in place.flow.written:
            self.buffers[head + name] = sizes.get(name, 0)
        names = {name for reads in place.flow.carried.values() for name in reads}
        for name in sorted(names - place.inherited.keys()):
            source = f"in.{place.child}.{name}" if place.child else f"in.{name}"
            self.buffers[source] = sizes.get(name, 0)


@dataclass(frozen=True)
class Transfers:
    """The exchanges of one child's layers: bytes by exchange, and flights."""

    traffic: Mapping[str, Traffic]
    flights: Mapping[str, Work]


def transfers_of(deployment: Deployment, routing: Routing, layer: LayerKernels) -> Transfers:
    """The transfers of a child batch with this routing; all its layers share the matrices."""
    traffic = {name: exchange_bytes(deployment, routing, name) for name in ("dispatch", "combine")}
    return Transfers(traffic, layer.flights)


def assemble(
    request: Request,
    ranks: Sequence[tuple[int, ...]],
    classes: Sequence[ClassSteps],
    transfers: Mapping[str, Transfers],
    signals: Iterable[Signal] = (),
    declared: Iterable[Stream] = (),
) -> Program:
    """The program of classes that launch the same ops in the same order. `declared` streams keep the
    priority that a user's lines gave them; the others have that of the rules."""
    graph = request.launching == "cuda_graph"
    ops = [step.op for step in classes[0].steps if isinstance(step, Launch)]
    used = {op.stream for op in ops}
    return Program(
        name=request.name,
        streams=_streams(request, used, declared),
        classes=tuple(
            RankClass(members, _wrapped(built, graph), _buffers(built))
            for members, built in zip(ranks, classes, strict=True)
        ),
        exchanges=_exchanges(request, ops, transfers),
        signals=tuple(signals),
    )


def _streams(request: Request, used: set[str], declared: Iterable[Stream]) -> tuple[Stream, ...]:
    priorities = dict(request.rules.streams)
    priorities.update({stream.name: stream.priority for stream in declared if stream.priority})
    names = [name for name in priorities if name in used] + sorted(used - priorities.keys())
    return tuple(Stream(name, priorities.get(name, 0)) for name in names)


def _wrapped(built: ClassSteps, graph: bool) -> tuple[Step, ...]:
    if not graph:
        return (*built.prologue, *built.steps)
    return (*built.prologue, Begin("graph", "step"), *built.steps, End("graph", "step"))


def _buffers(built: ClassSteps) -> tuple[Buffer, ...]:
    return tuple(Buffer(name, nbytes) for name, nbytes in built.buffers.items())


def _family(request: Request) -> Family:
    if request.deployment.a2a.collective:
        return "collective"
    return "low_latency" if request.low_latency else "normal"


def _exchanges(
    request: Request, ops: Iterable[Op], transfers: Mapping[str, Transfers]
) -> tuple[Exchange, ...]:
    """Exchanges in host order; low-latency ones take DeepEP's buffers in turn."""
    members = tuple(range(request.deployment.ep_size))
    buffers = request.rules.defaults.ll_buffers
    found: dict[str, Exchange] = {}
    for op in ops:
        if op.exchange is None or op.exchange in found:
            continue
        kind = op.exchange.rpartition(".")[2]
        transfer = transfers[op.child]
        found[op.exchange] = Exchange(
            name=op.exchange,
            family=_family(request),
            ranks=members,
            bytes=transfer.traffic[kind],
            buffer=f"ll{len(found) % buffers}" if request.low_latency else None,
            flight=transfer.flights.get(kind),
        )
    return tuple(found.values())
