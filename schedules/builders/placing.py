"""One layer's steps, put at their place in a program: names, buffers, events of that layer.

An op's name is `L3.b.dispatch.send`: layer, child (none for a whole batch), kernel. Buffers, events,
exchanges and signals get the same prefix. A buffer that a layer reads before it writes it comes from
the layer before, so that the residual stream forms a chain over the layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from models.deployment import Kernel, LayerKernels
from schedules.program import HostWait, Launch, Op, Record, Step, Wait


@dataclass(frozen=True)
class Flow:
    """What a layer's kernels take from before it (`carried`, by kernel) and what they write."""

    carried: Mapping[str, frozenset[str]]
    written: tuple[str, ...]


def flow_of(layer: LayerKernels) -> Flow:
    """The flow of a layer whose groups stand in the order of their data."""
    return flow_of_kernels(kernel for group in layer.groups.values() for kernel in group)


def flow_of_kernels(kernels: Iterable[Kernel]) -> Flow:
    """The flow of kernels in the order of their data."""
    carried: dict[str, frozenset[str]] = {}
    written: dict[str, None] = {}
    for kernel in kernels:
        carried[kernel.name] = frozenset(kernel.reads).difference(written)
        written |= dict.fromkeys(kernel.writes)
    return Flow(carried, tuple(written))


@dataclass(frozen=True)
class Place:
    """Where steps go: layer, child and stage, the buffers that come from before (`inherited`, by
    name in the layer), and what is appended to signals so that classes do not share them."""

    layer: int
    flow: Flow
    inherited: Mapping[str, tuple[str, ...]]
    child: str = ""
    stage: int = -1
    signal_suffix: str = ""

    @property
    def prefix(self) -> str:
        """What the names of this layer and child begin with."""
        return prefix(self.layer, self.child)


def prefix(layer: int, child: str) -> str:
    """What names begin with: `L3.`, or `L3.b.`."""
    return f"L{layer}.{child}." if child else f"L{layer}."


def put(steps: Iterable[Step], place: Place) -> Iterator[Step]:
    """The steps at their place."""
    head = place.prefix
    for step in steps:
        match step:
            case Launch(op=op, host_class=host_class):
                yield Launch(_put_op(op, place, head), host_class)
            case Record(event=event, stream=stream):
                yield Record(head + event, stream)
            case Wait(event=event, stream=stream):
                yield Wait(head + event, stream)
            case HostWait(event=event):
                yield HostWait(head + event)
            case _:
                yield step


def _put_op(op: Op, place: Place, head: str) -> Op:
    carried = place.flow.carried[op.name]
    reads: list[str] = []
    for name in op.reads:
        reads += inherited(name, place) if name in carried else (head + name,)
    suffix = place.signal_suffix
    return Op(
        name=head + op.name,
        stream=op.stream,
        work=op.work,
        grid=op.grid,
        reads=tuple(reads),
        writes=tuple(head + name for name in op.writes),
        exchange=head + op.exchange if op.exchange else None,
        role=op.role,
        raises=head + op.raises + suffix if op.raises else None,
        polls=head + op.polls + suffix if op.polls else None,
        layer=place.layer,
        child=place.child,
        stage=place.stage,
    )


def inherited(name: str, place: Place) -> tuple[str, ...]:
    """The buffers that stand for a carried name: the layer before's, or the program's input."""
    found = place.inherited.get(name)
    if found is not None:
        return found
    return (f"in.{place.child}.{name}" if place.child else f"in.{name}",)


def handed_on(place: Place) -> dict[str, tuple[str, ...]]:
    """What the next layer inherits."""
    head = place.prefix
    return {**place.inherited, **{name: (head + name,) for name in place.flow.written}}


def check_flow(ops: Iterable[Op]) -> None:
    """ValueError when an op reads a buffer that only a later op in host order writes: the order that
    a user's schedule gives the operations is then not one of their data."""
    ops = tuple(ops)
    writers = {buffer: op.name for op in ops for buffer in op.writes}
    written: set[str] = set()
    for op in ops:
        early = [buffer for buffer in op.reads if buffer in writers and buffer not in written]
        if early:
            raise ValueError(f"{op.name} reads {early[0]!r} before {writers[early[0]]} writes it")
        written.update(op.writes)
