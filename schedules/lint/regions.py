"""Regions: begin and end in pairs, and what the capture of a graph forbids.

A graph captures the stream of its first step and every stream that comes to wait for an event
recorded inside; all of them must have joined the first one where the region ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedules.lint.finding import Finding, finding
from schedules.program import Begin, End, HostWait, HostWork, Launch, RankClass, Record, Wait


def region_findings(cls: RankClass) -> Iterator[Finding]:
    """Regions that do not match, and faults of graph regions."""
    rank = cls.ranks[0] if cls.ranks else None
    opened: list[tuple[int, Begin]] = []
    for index, step in enumerate(cls.steps):
        if isinstance(step, Begin):
            if step.kind == "graph" and any(begin.kind == "graph" for _, begin in opened):
                message = f"graph {step.name!r} begins inside another graph"
                yield finding("graph-capture", message, rank, index)
            opened.append((index, step))
        elif isinstance(step, End):
            if not opened:
                yield finding(
                    "regions", f"end of {step.kind} {step.name!r} without a begin", rank, index
                )
                continue
            _, begin = opened.pop()
            if (begin.kind, begin.name) != (step.kind, step.name):
                message = f"end of {step.kind} {step.name!r} inside {begin.kind} {begin.name!r}"
                yield finding("regions", message, rank, index)
    for index, begin in opened:
        yield finding("regions", f"{begin.kind} {begin.name!r} is never ended", rank, index)
    yield from _captures(cls, rank)


def _captures(cls: RankClass, rank: int | None) -> Iterator[Finding]:
    capture: _Tracker | None = None
    captured: dict[str, str] = {}
    for index, step in enumerate(cls.steps):
        if isinstance(step, Begin) and step.kind == "graph":
            capture = _Tracker(step.name)
        elif isinstance(step, End) and step.kind == "graph" and capture is not None:
            for stream in capture.loose():
                message = f"stream {stream} is not joined to {capture.origin} where graph {capture.name!r} ends"
                yield finding("graph-capture", message, rank, index)
            captured.update(dict.fromkeys(capture.events, capture.name))
            capture = None
        elif capture is not None:
            message = capture.step(step)
            if message:
                yield finding("graph-capture", message, rank, index)
        elif isinstance(step, Wait | HostWait) and step.event in captured:
            message = f"{step.event!r} was recorded inside graph {captured[step.event]!r}"
            yield finding(
                "graph-capture", f"{message}, only its nodes may wait for it", rank, index
            )
        elif isinstance(step, Record):
            captured.pop(step.event, None)


class _Tracker:
    """Follows the streams of one graph region. A stream's state counts, for each stream, the steps
    launches the capture knows to precede it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.origin = ""
        self.events: dict[str, dict[str, int]] = {}
        self.states: dict[str, dict[str, int]] = {}
        self.counts: dict[str, int] = {}

    def step(self, step: object) -> str:
        """Takes one step; returns what is wrong with it, or ""."""
        match step:
            case HostWait(event=event):
                return f"the host waits for {event!r} inside graph {self.name!r}"
            case HostWork(kind=kind):
                return (
                    f"host work {kind!r} inside graph {self.name!r} is not done when it is replayed"
                )
            case Launch(op=op):
                wrong = self._on(op.stream, f"{op.name} runs")
                self.counts[op.stream] = self.counts.get(op.stream, 0) + 1
                self.states[op.stream][op.stream] = self.counts[op.stream]
                return wrong
            case Record(event=event, stream=stream):
                wrong = self._on(stream, f"{event!r} is recorded")
                self.events[event] = dict(self.states.get(stream, {}))
                return wrong
            case Wait(event=event, stream=stream):
                return self._wait(event, stream)
            case _:
                return ""

    def _on(self, stream: str, what: str) -> str:
        if not self.origin:
            self.origin = stream
            self.states[stream] = {}
        if stream in self.states:
            return ""
        self.states[stream] = {}
        return (
            f"{what} on {stream} inside graph {self.name!r}, but {stream} does not wait for "
            f"an event of the capture first"
        )

    def _wait(self, event: str, stream: str) -> str:
        if event not in self.events:
            return f"{stream} waits inside graph {self.name!r} for {event!r}, recorded outside it"
        state = self.states.setdefault(stream, {})
        for other, count in self.events[event].items():
            state[other] = max(state.get(other, 0), count)
        return ""

    def loose(self) -> list[str]:
        """Streams with launches that the origin does not know of."""
        known = self.states.get(self.origin, {})
        return [stream for stream, count in self.counts.items() if known.get(stream, 0) < count]
