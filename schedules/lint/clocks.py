"""Happens-before on one rank, as vector clocks over its streams.

The clock of a step holds, for each stream, the position of the last launch there that is known to
have ended when the step takes effect. One pass in host order suffices, because an awaited event
stands for its latest record before the wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schedules.program import HostWait, Launch, RankClass, Record, Wait

Clock = tuple[int, ...]


@dataclass
class Clocks:
    """Clocks of the steps of one class, by step index.

    `held[i]` is what the stream held before the step, `host[i]` what the host knew; `before[i]` is
    what a launch finds ended, which is both. `after[i]` what its end, its event, its stream or the host stands for then. `source[i]` is what
    else flows in: the clock of the awaited event, or of a signal or send that ends first.
    """

    streams: dict[str, int]
    position: list[int]
    held: list[Clock]
    before: list[Clock]
    after: list[Clock]
    host: list[Clock]
    source: list[Clock | None]
    stream_of: list[str]
    raiser: dict[int, int] = field(default_factory=dict)

    def ordered(self, earlier: int, later: int) -> bool:
        """Whether launch `earlier` has ended whenever launch `later` starts."""
        return self.position[earlier] <= self.before[later][self.streams[self.stream_of[earlier]]]


def merged(one: Clock, other: Clock) -> Clock:
    """The later of both, stream by stream."""
    if one is other:
        return one
    return tuple([a if a > b else b for a, b in zip(one, other, strict=True)])


def clocks_of(cls: RankClass) -> Clocks:
    """The clocks of one class. A wait for an event without an earlier record adds nothing."""
    walk = _Walk(cls)
    for index, step in enumerate(cls.steps):
        walk.take(index, step)
    return walk.clocks


class _Walk:
    def __init__(self, cls: RankClass) -> None:
        names = dict.fromkeys(
            step.op.stream if isinstance(step, Launch) else step.stream
            for step in cls.steps
            if isinstance(step, Launch | Record | Wait)
        )
        size = len(cls.steps)
        self.streams = {name: number for number, name in enumerate(names)}
        self.none: Clock = (-1,) * len(names)
        self.clocks = Clocks(
            self.streams,
            [-1] * size,
            [self.none] * size,
            [self.none] * size,
            [self.none] * size,
            [self.none] * size,
            [None] * size,
            [""] * size,
        )
        self.now = dict.fromkeys(names, self.none)
        self.counts = dict.fromkeys(names, 0)
        self.events: dict[str, Clock] = {}
        self.host = self.none
        self.raised: dict[str, int] = {}
        self.polled: dict[str, list[int]] = {}

    def take(self, index: int, step: object) -> None:
        clocks = self.clocks
        clocks.host[index] = self.host
        match step:
            case Launch():
                self._launch(index, step)
            case Record(event=event, stream=stream):
                clocks.stream_of[index] = stream
                clocks.held[index] = clocks.after[index] = self.now[stream]
                self.events[event] = self.now[stream]
            case Wait(event=event, stream=stream):
                clocks.stream_of[index] = stream
                clocks.held[index] = self.now[stream]
                clocks.source[index] = self.events.get(event)
                self.now[stream] = merged(self.now[stream], self.events.get(event, self.none))
                clocks.after[index] = self.now[stream]
            case HostWait(event=event):
                clocks.source[index] = self.events.get(event)
                self.host = merged(self.host, self.events.get(event, self.none))
                clocks.after[index] = self.host
            case _:
                pass

    def _launch(self, index: int, step: Launch) -> None:
        clocks, op = self.clocks, step.op
        number = self.streams[op.stream]
        before = merged(self.now[op.stream], self.host)
        position = self.counts[op.stream]
        self.counts[op.stream] += 1
        source = self._ends_first(index, step)
        after = list(before if source is None else merged(before, source))
        after[number] = position
        clocks.stream_of[index] = op.stream
        clocks.position[index] = position
        clocks.held[index] = self.now[op.stream]
        clocks.before[index] = before
        clocks.source[index] = source
        clocks.after[index] = self.now[op.stream] = tuple(after)

    def _ends_first(self, index: int, step: Launch) -> Clock | None:
        """The clock of the launch that ends before this one does: the one that raises its signal, or
        the send of its own exchange."""
        op = step.op
        if op.raises is not None:
            self.raised[f"signal {op.raises}"] = index
        if op.role == "send":
            self.raised[f"exchange {op.exchange}"] = index
        awaited = f"signal {op.polls}" if op.polls is not None else ""
        if op.role == "recv":
            awaited = f"exchange {op.exchange}"
        if awaited not in self.raised:
            return None
        self.clocks.raiser[index] = self.raised[awaited]
        return self.clocks.after[self.raised[awaited]]
