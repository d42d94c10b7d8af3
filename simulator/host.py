"""The host thread of one rank: it walks the steps and the device sees each at its time (rule 1)."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import simpy

from models.machine import Machine
from schedules.program import (
    Begin,
    End,
    HostWait,
    HostWork,
    Launch,
    Record,
    Step,
    Wait,
)
from simulator.clock import Clock
from simulator.device import Device
from simulator.kernel import Kernel
from simulator.streams import Event, RecordItem, StreamQueue, WaitItem

_EVENT_CLASS = "event"


class Host:
    """One host thread. `time` is its own clock in ns: it runs ahead of the device's, and only a host
    wait makes it follow."""

    def __init__(
        self,
        clock: Clock,
        machine: Machine,
        device: Device,
        streams: dict[str, StreamQueue],
        steps: Sequence[Step],
        start_ns: int,
    ) -> None:
        self.device = device
        self.time = start_ns
        self.waits_for: Event | None = None
        self.done = False
        self.steps = steps
        self._clock = clock
        self._machine = machine
        self._costs = dict(machine.host.by_class)
        self._streams = streams
        self._events: dict[str, Event] = {}
        self._graph = 0
        self._graphs = 0
        self._blocked_by: Kernel | None = None

    def run(self) -> Generator[simpy.Event, None, None]:
        """Walk the steps in order."""
        for index, step in enumerate(self.steps):
            if isinstance(step, HostWait):
                yield from self._wait(step.event)
            else:
                self._take(step, index)
        self.done = True

    def _take(self, step: Step, index: int) -> None:
        """Spend the host's time of one step and hand it to its stream."""
        match step:
            case Launch(op, host_class):
                self._spend(op.work.kind if op.work.kind in self._costs else host_class)
                kernel = self.device.kernel(op, index, self.time, self._graph)
                kernel.blocked_by = self._blocked_by
                self._stream(op.stream).push(kernel)
            case Record(name, stream_name):
                self._spend(_EVENT_CLASS)
                stream = self._stream(stream_name)
                event = self._events[name] = Event(self._clock, name, stream, self._graph)
                stream.push(RecordItem(event, self.time))
            case Wait(name, stream_name):
                self._spend(_EVENT_CLASS)
                if name in self._events:  # CUDA ignores a wait for an event not yet recorded
                    self._stream(stream_name).push(WaitItem(self._events[name], self._graph))
            case HostWork(kind):
                self._spend(kind)
            case Begin("graph", _):
                self.time += self._machine.gaps.graph_launch
                self._graphs += 1
                self._graph = self._graphs
            case End("graph", _):
                self._graph = 0

    def _stream(self, name: str) -> StreamQueue:
        stream = self._streams.get(name)
        if stream is None:
            known = ", ".join(self._streams)
            raise ValueError(
                f"a step of rank {self.device.rank} names stream {name!r}, not of {known}"
            )
        return stream

    def _spend(self, host_class: str) -> None:
        """A replayed graph has no host work of its own: its launch has paid for all."""
        if not self._graph:
            cost = self._costs.get(host_class)
            self.time += self._machine.host.ns(host_class) if cost is None else cost

    def _wait(self, name: str) -> Generator[simpy.Event, None, None]:
        """Block until the event completes; at once when it was never recorded."""
        event = self._events.get(name)
        if event is None:
            return
        self.waits_for = event
        if event.at is None:
            yield event.known
        assert event.at is not None
        if event.at > self.time:
            self.time = event.at
            self._blocked_by = event.after
        if self.time > self._clock.ns:
            yield self._clock.timeout(self.time - self._clock.ns)
        self.waits_for = None
