"""When nothing can happen any more and something is unfinished: who waits for whom, in a circle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from simulator.held import Held
from simulator.host import Host
from simulator.kernel import Kernel
from simulator.streams import Event, Item, RecordItem, StreamQueue


class Deadlock(Exception):
    """A program that cannot end. `cycle` names what waits for the next of the circle, op by op; it is
    empty when something waits for what never comes. `stuck` lists all that waits, a line each."""

    def __init__(self, message: str, cycle: tuple[str, ...] = (), stuck: tuple[str, ...] = ()):
        super().__init__(message)
        self.cycle = cycle
        self.stuck = stuck


class Waiting(NamedTuple):
    """Something waits for something else, and why."""

    waiter: str
    why: str
    other: str


def explain(now: int, hosts: Sequence[Host], streams: Sequence[StreamQueue]) -> Deadlock:
    """The deadlock that these hosts and streams are in at `now` ns."""
    waiting = {(w.waiter, w.other): w for w in _all_waiting(hosts, streams)}
    circle = [waiting[pair] for pair in _cycle(waiting)]
    stuck = tuple(sorted(" ".join(w) for w in waiting.values()))
    lines = [" ".join(w) for w in circle] if circle else stuck
    message = f"deadlock at {now} ns:\n  " + "\n  ".join(lines)
    return Deadlock(message, tuple(w.waiter for w in circle), stuck)


def _cycle(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A circle among (waiter, other) pairs; empty when there is none."""
    import networkx as nx  # slow to load, and only a deadlock needs it

    graph = nx.DiGraph(list(pairs))
    try:
        return [(waiter, other) for waiter, other in nx.find_cycle(graph)]
    except nx.NetworkXNoCycle:
        return []


def _all_waiting(hosts: Sequence[Host], streams: Sequence[StreamQueue]) -> Iterator[Waiting]:
    """Everything unfinished, with what it waits for."""
    kernels = _unfinished(streams)
    for host in hosts:
        if host.waits_for is not None:
            yield Waiting(_host(host.device.rank), "waits for", _event(host.waits_for))
            yield from _of_event(host.waits_for)
    for stream in streams:
        current = stream.current
        if current is None:
            continue
        for item in stream.items:
            if isinstance(item, Kernel):
                yield Waiting(_op(item), "is in its stream behind", _item(current, stream))
        if isinstance(current, Kernel):
            yield from _of_kernel(current, kernels)
        elif not isinstance(current, RecordItem):
            yield Waiting(_item(current, stream), "waits for", _event(current.event))
            yield from _of_event(current.event)


def _unfinished(streams: Sequence[StreamQueue]) -> list[Kernel]:
    items: list[Item | None] = [
        item for stream in streams for item in (stream.current, *stream.items)
    ]
    return [item for item in items if isinstance(item, Kernel)]


def _of_event(event: Event) -> Iterator[Waiting]:
    """An event completes when its stream has come to its record."""
    current = event.stream.current
    if event.at is None and current is not None:
        yield Waiting(_event(event), "is recorded behind", _item(current, event.stream))


def _of_kernel(kernel: Kernel, kernels: Sequence[Kernel]) -> Iterator[Waiting]:
    """What a kernel at the head of its stream waits for: SMs, signals, or peers."""
    device = kernel.device
    if kernel.unplaced:
        for other in device.running:
            if other is not kernel:
                yield Waiting(_op(kernel), "waits for SMs of", _op(other))
        for other in device.queue[: device.queue.index(kernel)]:
            yield Waiting(_op(kernel), "waits for SMs after", _op(other))
    elif isinstance(kernel, Held):
        yield from _of_signal(kernel)
        yield from _of_peers(kernel, kernels)


def _of_signal(kernel: Held) -> Iterator[Waiting]:
    if kernel.poll is None:
        return
    raiser = kernel.poll.raiser
    if raiser is None:
        host = _host(kernel.device.rank)
        yield Waiting(_op(kernel), "polls a signal not launched by the", host)
    elif raiser.end < 0:
        yield Waiting(_op(kernel), "polls the signals of", _op(raiser))


def _of_peers(kernel: Held, kernels: Sequence[Kernel]) -> Iterator[Waiting]:
    if kernel.gate is None:
        return
    for rank, role in kernel.gate.missing(kernel):
        peer = _peer(kernels, rank, kernel.op.exchange, role)
        target = f"{role} of rank {rank}, never launched" if peer is None else _op(peer)
        yield Waiting(_op(kernel), "waits for its peer", target)
        if peer is None:
            yield Waiting(target, "is up to the", _host(rank))


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
