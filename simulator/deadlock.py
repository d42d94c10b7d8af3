"""When nothing can happen any more and something is unfinished: who waits for whom, in a circle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import networkx as nx

from simulator.host import Host
from simulator.kernels import Held, Kernel
from simulator.streams import Event, Item, RecordItem, StreamQueue

if TYPE_CHECKING:
    Graph = nx.DiGraph[str]


class Deadlock(Exception):
    """A program that cannot end. `cycle` names what waits for the next of the circle, op by op; it is
    empty when something waits for what never comes. `stuck` lists all that waits, a line each."""

    def __init__(self, message: str, cycle: tuple[str, ...] = (), stuck: tuple[str, ...] = ()):
        super().__init__(message)
        self.cycle = cycle
        self.stuck = stuck


def explain(now: int, hosts: Sequence[Host], streams: Sequence[StreamQueue]) -> Deadlock:
    """The deadlock that these hosts and streams are in at `now` ns."""
    graph = _wait_graph(hosts, streams)
    try:
        edges = list(nx.find_cycle(graph))
    except nx.NetworkXNoCycle:
        edges = []
    stuck = tuple(sorted(_lines(graph, graph.edges)))
    lines = _lines(graph, edges) if edges else stuck
    message = f"deadlock at {now} ns:\n  " + "\n  ".join(lines)
    return Deadlock(message, tuple(waiter for waiter, _ in edges), stuck)


def _lines(graph: Graph, edges: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{waiter} {graph.edges[waiter, other]['why']} {other}" for waiter, other in edges]


def _wait_graph(hosts: Sequence[Host], streams: Sequence[StreamQueue]) -> Graph:
    """Edges from everything unfinished to what it waits for, with the reason."""
    graph: Graph = nx.DiGraph()
    kernels = _unfinished(streams)
    for host in hosts:
        if host.waits_for is not None:
            graph.add_edge(_host(host.device.rank), _event(host.waits_for), why="waits for")
            _add_event(graph, host.waits_for)
    for stream in streams:
        current = stream.current
        if current is None:
            continue
        for item in stream.items:
            if isinstance(item, Kernel):
                graph.add_edge(_op(item), _item(current, stream), why="is in its stream behind")
        if isinstance(current, Kernel):
            _add_kernel(graph, current, kernels)
        elif not isinstance(current, RecordItem):
            graph.add_edge(_item(current, stream), _event(current.event), why="waits for")
            _add_event(graph, current.event)
    return graph


def _unfinished(streams: Sequence[StreamQueue]) -> list[Kernel]:
    items: list[Item | None] = [
        item for stream in streams for item in (stream.current, *stream.items)
    ]
    return [item for item in items if isinstance(item, Kernel)]


def _add_event(graph: Graph, event: Event) -> None:
    """An event completes when its stream has come to its record."""
    current = event.stream.current
    if event.at is None and current is not None:
        graph.add_edge(_event(event), _item(current, event.stream), why="is recorded behind")


def _add_kernel(graph: Graph, kernel: Kernel, kernels: Sequence[Kernel]) -> None:
    """What a kernel at the head of its stream waits for: SMs, peers, or signals."""
    device = kernel.device
    if kernel.unplaced:
        for other in device.running:
            if other is not kernel:
                graph.add_edge(_op(kernel), _op(other), why="waits for SMs of")
        for other in device.queue[: device.queue.index(kernel)]:
            graph.add_edge(_op(kernel), _op(other), why="waits for SMs after")
        return
    if not isinstance(kernel, Held):
        return
    if kernel.poll is not None:
        raiser = kernel.poll.raiser
        if raiser is None:
            graph.add_edge(
                _op(kernel), _host(device.rank), why="polls a signal not launched by the"
            )
        elif raiser.end < 0:
            graph.add_edge(_op(kernel), _op(raiser), why="polls the signals of")
    if kernel.gate is not None:
        for rank, role in kernel.gate.missing(kernel):
            peer = _peer(kernels, rank, kernel.op.exchange, role)
            target = f"{role} of rank {rank}, never launched" if peer is None else _op(peer)
            graph.add_edge(_op(kernel), target, why="waits for its peer")
            if peer is None:
                graph.add_edge(target, _host(rank), why="is up to the")


def _peer(kernels: Sequence[Kernel], rank: int, exchange: str | None, role: str) -> Kernel | None:
    for kernel in kernels:
        op = kernel.op
        if kernel.device.rank == rank and op.exchange == exchange and op.role == role:
            return kernel
    return None


def _op(kernel: Kernel) -> str:
    return f"{kernel.op.name} (rank {kernel.device.rank})"


def _host(rank: int) -> str:
    return f"host of rank {rank}"


def _event(event: Event) -> str:
    return f"event {event.name} (rank {event.stream.device.rank})"


def _item(item: Item, stream: StreamQueue) -> str:
    if isinstance(item, Kernel):
        return _op(item)
    what = "record" if isinstance(item, RecordItem) else "wait"
    return f"{what} of {item.event.name} on {stream.name} (rank {stream.device.rank})"
