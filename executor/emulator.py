"""Streams, events and a host, emulated: kernels run in any order that the program allows.

A real device runs kernels of different streams in an order that only streams and events restrict.
The emulator picks such an order: *host* order, or a seeded random one, in which chosen ops are put
off for as long as anything else can run. A missing wait then gives a wrong result instead of a
lucky right one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal, Protocol

Order = Literal["host", "random"]


class Task(Protocol):
    """One kernel of the emulated device."""

    @property
    def name(self) -> str:
        """The op's name."""
        ...

    def start(self) -> None:
        """Do the kernel's own work; an exchange sends its part."""
        ...

    def done(self) -> bool:
        """Whether the kernel has ended; an exchange takes what has arrived."""
        ...


@dataclass
class Event:
    """One record of an event: complete once the stream has come to it."""

    name: str
    complete: bool = False


@dataclass
class _Entry:
    sequence: int
    task: Task | None = None
    records: Event | None = None
    awaits: Event | None = None
    started: bool = False


class Starved(Exception):
    """Everything that could run waits for peers, and nothing came from them; names such an op."""


@dataclass
class Emulator:
    """In-order streams of one rank.

    `arrival` blocks for at most so many seconds until something comes from a peer, and says whether
    it did. `delayed` names the ops that are put off: while any other kernel runs or waits for peers
    they are not started, for `patience_s`. Starved is raised after `timeout_s` without an arrival.
    """

    arrival: Callable[[float], bool]
    order: Order = "host"
    seed: int = 0
    delayed: Collection[str] = ()
    timeout_s: float = 15.0
    patience_s: float = 0.1
    ended: list[tuple[str, int, int]] = field(default_factory=list)
    _streams: dict[str, deque[_Entry]] = field(default_factory=dict)
    _events: dict[str, Event] = field(default_factory=dict)
    _sequence: int = 0
    _clock: int = 0
    _starts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def launch(self, stream: str, task: Task) -> None:
        """Queue a kernel."""
        self._queue(stream, task=task)

    def record(self, event: str, stream: str) -> None:
        """Queue a record; later waits are for this one."""
        self._events[event] = Event(event)
        self._queue(stream, records=self._events[event])

    def wait(self, event: str, stream: str) -> None:
        """Queue a wait for the latest record; nothing when there is none, as in CUDA."""
        if event in self._events:
            self._queue(stream, awaits=self._events[event])

    def host_wait(self, event: str) -> None:
        """Run the device until the event's latest record completes."""
        token = self._events.get(event)
        while token is not None and not token.complete:
            self._step(f"the host's wait for event {event!r}")

    def drain(self) -> None:
        """Run until every stream is empty."""
        while any(self._streams.values()):
            self._step("the end of the program")

    def _queue(
        self,
        stream: str,
        task: Task | None = None,
        records: Event | None = None,
        awaits: Event | None = None,
    ) -> None:
        entry = _Entry(self._sequence, task, records, awaits)
        self._sequence += 1
        self._streams.setdefault(stream, deque()).append(entry)

    def _step(self, goal: str) -> None:
        self._pass_events()
        heads = [queue[0] for queue in self._streams.values() if queue and queue[0].task]
        if self._retire([entry for entry in heads if entry.started]):
            return
        ready = [entry for entry in heads if not entry.started]
        prompt = [e for e in ready if e.task is not None and e.task.name not in self.delayed]
        waiting = [entry.task.name for entry in heads if entry.started and entry.task]
        if prompt:
            self._start(self._pick(prompt))
        elif waiting and self.arrival(self.patience_s if ready else self.timeout_s):
            return
        elif ready:
            self._start(self._pick(ready))
        elif waiting:
            raise Starved(waiting[0])
        elif any(self._streams.values()):
            stuck = [q[0].awaits.name for q in self._streams.values() if q and q[0].awaits]
            raise RuntimeError(f"{goal}: streams wait for events {stuck} for ever")

    def _pass_events(self) -> None:
        """Take records and satisfied waits off the heads, until none is left there."""
        moved = True
        while moved:
            moved = False
            for queue in self._streams.values():
                while queue and self._passes(queue[0]):
                    queue.popleft()
                    moved = True

    def _passes(self, entry: _Entry) -> bool:
        if entry.records is not None:
            entry.records.complete = True
            return True
        return entry.awaits is not None and entry.awaits.complete

    def _pick(self, ready: list[_Entry]) -> _Entry:
        """The next kernel, in host or random order."""
        if self.order == "host":
            return min(ready, key=lambda entry: entry.sequence)
        return self._random.choice(ready)

    def _start(self, entry: _Entry) -> None:
        assert entry.task is not None
        entry.started = True
        self._starts[entry.task.name] = self._clock
        self._clock += 1
        entry.task.start()
        self._retire([entry])

    def _retire(self, started: list[_Entry]) -> bool:
        """Take ended kernels off their streams; whether there was one."""
        retired = False
        for entry in started:
            assert entry.task is not None
            if entry.task.done():
                queue = next(q for q in self._streams.values() if q and q[0] is entry)
                queue.popleft()
                name = entry.task.name
                self.ended.append((name, self._starts[name], self._clock))
                retired = True
        return retired
