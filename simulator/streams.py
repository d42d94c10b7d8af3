"""Streams: in-order queues of kernels, records and waits, with the gaps of the launch machinery (rule 2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

import simpy

from models.machine import Gaps
from schedules.program import Stream
from simulator.clock import Clock
from simulator.device import Device
from simulator.kernel import Kernel, Queued


class Event:
    """One record of a CUDA event on one rank. `at` is when it completes (it may lie ahead), None while
    unknown; `after` is the last kernel before it; `graph` numbers the graph region, or is 0."""

    __slots__ = ("after", "at", "graph", "known", "name", "stream")

    def __init__(self, clock: Clock, name: str, stream: StreamQueue, graph: int) -> None:
        self.name = name
        self.stream = stream
        self.graph = graph
        self.at: int | None = None
        self.after: Kernel | None = None
        self.known = simpy.Event(clock)

    def complete(self, at: int, after: Kernel | None) -> None:
        """It completes at `at` ns, after this kernel."""
        self.at = at
        self.after = after
        self.known.succeed()


@dataclass(slots=True)
class RecordItem:
    """A record, as its stream sees it: not before `launched` ns."""

    event: Event
    launched: int


@dataclass(slots=True)
class WaitItem:
    """A wait for a recorded event, as its stream sees it; `graph` as in `Event`."""

    event: Event
    graph: int


Item = Kernel | RecordItem | WaitItem


class FrontEnd:
    """What starts the kernels of some streams, looking at those that have work pending in turn.

    A release is seen a turn later when another stream has work pending too, and a turn after the
    release before it.
    """

    def __init__(self, turn_ns: int) -> None:
        self.streams: list[StreamQueue] = []
        self._turn_ns = turn_ns
        self._seen = -turn_ns

    def sees(self, stream: StreamQueue, released: int) -> int:
        """When it sees that the next kernel of `stream` was released at this time."""
        if not self._turn_ns:
            return released
        if any(other.pending for other in self.streams if other is not stream):
            released += self._turn_ns
        self._seen = max(released, self._seen + self._turn_ns)
        return self._seen


class StreamQueue:
    """One stream of one rank.

    Between kernels it keeps what the next one depends on: the last kernel and its end, whether an
    event lies between, and the latest awaited event.
    """

    def __init__(self, clock: Clock, device: Device, stream: Stream, front_end: FrontEnd) -> None:
        self.name = stream.name
        self.priority = stream.priority
        self.device = device
        self.items: deque[Item] = deque()
        self.current: Item | None = None
        self.last: Kernel | None = None
        self._clock = clock
        self._front_end = front_end
        front_end.streams.append(self)
        self._gaps: Gaps = device.machine.gaps
        self._refilled: simpy.Event | None = None
        self._started = (
            False  # whether the present item is a kernel that its front end is done with
        )
        self._event_between = False
        self._passed = 0  # when everything before the present item is over, ns
        self._after: Kernel | None = None  # the kernel that `_passed` is due to
        self._awaited = 0  # earliest start of the next kernel by awaited events, ns
        self._awaited_by: Kernel | None = None

    @property
    def busy(self) -> bool:
        """Whether an item is still to pass."""
        return self.current is not None or bool(self.items)

    @property
    def pending(self) -> bool:
        """Whether a kernel that was launched has still to be started."""
        now = self._clock.ns
        if isinstance(self.current, Kernel) and not self._started:
            return self.current.launched <= now
        return any(isinstance(item, Kernel) and item.launched <= now for item in self.items)

    def push(self, item: Item) -> None:
        """The host adds an item; its `launched` time may lie ahead."""
        self.items.append(item)
        if self._refilled is not None:
            self._refilled.succeed()
            self._refilled = None

    def run(self) -> Generator[simpy.Event, None, None]:
        """Take items in order, for ever."""
        while True:
            while not self.items:
                self._refilled = simpy.Event(self._clock)
                yield self._refilled
            item = self.current = self.items.popleft()
            if isinstance(item, Kernel):
                wait_ns = self._ready(item) - self._clock.ns
                if wait_ns > 0:
                    yield simpy.Timeout(self._clock, wait_ns)
                self._started = True
                self.device.submit(item, self.priority)
                yield item.done
                self._started = False
                self.last = self._after = item
                self._passed = item.end
            elif isinstance(item, RecordItem):
                item.event.complete(max(item.launched, self._passed), self._after)
            else:
                if item.event.at is None:
                    yield item.event.known
                self._wait(item)
            self._event_between = not isinstance(item, Kernel)
            self.current = None

    def _ready(self, kernel: Kernel) -> int:
        """When a kernel is ready: launched, one gap after its predecessor, and after its events."""
        last = self.last
        gap_end = last.end + self._gap(last, kernel) if last is not None else 0
        released = max(gap_end, self._awaited)
        if released > kernel.launched and not kernel.graph:
            seen = self._front_end.sees(self, released)
            if gap_end >= self._awaited:
                gap_end = seen
            else:
                self._awaited = seen
        kernel.queued = Queued(last, gap_end, self._awaited, self._awaited_by)
        return max(kernel.launched, gap_end, self._awaited)

    def _gap(self, last: Kernel, kernel: Kernel) -> int:
        if kernel.graph and kernel.graph == last.graph:
            return self._gaps.graph_node
        return self._gaps.event if self._event_between else self._gaps.stream

    def _wait(self, item: WaitItem) -> None:
        """Later work starts no earlier than the event, and one edge more. Inside a graph a record or
        wait is no node, so that what it passes on is the event's own time."""
        event = item.event
        if event.stream is self or event.at is None:
            return
        in_graph = item.graph != 0 and item.graph == event.graph
        start = event.at + (self._gaps.graph_edge if in_graph else self._gaps.cross_stream)
        if start > self._awaited:
            self._awaited, self._awaited_by = start, event.after
        passed = event.at if in_graph else start
        if passed > self._passed:
            self._passed, self._after = passed, event.after
