"""Missing waits (a data race) and excess waits (every access is ordered without)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from schedules.lint.accesses import Conflict, conflicts_of
from schedules.lint.clocks import Clock, Clocks, merged
from schedules.lint.finding import Finding, finding
from schedules.program import Begin, End, Exchange, HostWait, Launch, RankClass, Record, Wait


def wait_findings(
    cls: RankClass, exchanges: Mapping[str, Exchange], clocks: Clocks
) -> Iterator[Finding]:
    """Accesses that nothing orders, then waits that order nothing."""
    rank = cls.ranks[0] if cls.ranks else None
    conflicts = conflicts_of(cls, exchanges)
    races = [item for item in conflicts if not clocks.ordered(item.earlier, item.later)]
    yield from _missing(cls, races, rank)
    raced = set(map(id, races))
    needs: dict[int, list[int]] = {}
    for item in conflicts:
        if id(item) not in raced:
            needs.setdefault(item.later, []).append(item.earlier)
    _need_joins(cls, clocks, needs)
    last_use = {
        step.event: index
        for index, step in enumerate(cls.steps)
        if isinstance(step, Wait | HostWait)
    }
    for index, step in enumerate(cls.steps):
        if isinstance(step, Wait) and clocks.source[index] is not None:
            trial = _Without(cls, clocks, needs, last_use)
            if trial.still_ordered(index):
                message = (
                    f"{step.stream} need not wait for {step.event!r}: all accesses are ordered"
                )
                yield finding("excess-wait", message, rank, index)


def _missing(cls: RankClass, races: Sequence[Conflict], rank: int | None) -> Iterator[Finding]:
    seen: set[tuple[int, int]] = set()
    for item in races:
        if (item.earlier, item.later) in seen:
            continue
        seen.add((item.earlier, item.later))
        earlier, later = cls.steps[item.earlier], cls.steps[item.later]
        if isinstance(earlier, Launch) and isinstance(later, Launch):
            message = (
                f"{later.op.name} on {later.op.stream} does not wait for {earlier.op.name} on "
                f"{earlier.op.stream}, although it {item.kind}: {item.buffer!r}"
            )
            yield finding("missing-wait", message, rank, item.later)


def _need_joins(cls: RankClass, clocks: Clocks, needs: dict[int, list[int]]) -> None:
    """The end of a graph needs every stream's last launch to be ordered before the first stream."""
    begin: int | None = None
    for index, step in enumerate(cls.steps):
        if isinstance(step, Begin) and step.kind == "graph":
            begin = index
        elif isinstance(step, End) and step.kind == "graph" and begin is not None:
            inside = range(begin, index)
            last = {clocks.stream_of[i]: i for i in inside if clocks.position[i] >= 0}
            origin = next((clocks.stream_of[i] for i in inside if clocks.stream_of[i]), "")
            tail = max((i for i in inside if clocks.stream_of[i] == origin), default=None)
            if tail is None:
                continue
            known = clocks.after[tail]
            clocks.stream_of[index] = origin
            clocks.before[index] = clocks.after[index] = known
            needs[index] = [
                i
                for stream, i in last.items()
                if stream != origin and clocks.position[i] <= known[clocks.streams[stream]]
            ]
            begin = None


@dataclass
class _Without:
    """The clocks as they would be without one wait: only what differs is kept, and following it ends
    when nothing differs any more."""

    cls: RankClass
    clocks: Clocks
    needs: Mapping[int, Sequence[int]]
    last_use: Mapping[str, int]
    streams: dict[str, Clock] = field(default_factory=dict)
    events: dict[str, Clock] = field(default_factory=dict)
    ends: dict[int, Clock] = field(default_factory=dict)
    host: Clock | None = None

    def still_ordered(self, wait: int) -> bool:
        """Whether all needs are met without the wait in step `wait`."""
        clocks = self.clocks
        if clocks.after[wait] == clocks.held[wait]:
            return True
        self.streams[clocks.stream_of[wait]] = clocks.held[wait]
        for index in range(wait + 1, len(self.cls.steps)):
            if not (self.streams or self.events or self.host is not None):
                return True
            if not self._follow(index):
                return False
        return True

    def _follow(self, index: int) -> bool:
        step, clocks = self.cls.steps[index], self.clocks
        stream = clocks.stream_of[index]
        match step:
            case Launch():
                return self._launch(index, stream)
            case Record(event=event):
                if stream in self.streams and self.last_use.get(event, -1) > index:
                    self.events[event] = self.streams[stream]
                else:
                    self.events.pop(event, None)
            case Wait(event=event):
                if stream in self.streams or event in self.events:
                    held = self.streams.get(stream, clocks.held[index])
                    now = merged(held, self._event(index, event))
                    self._keep(stream, now, clocks.after[index])
            case HostWait(event=event):
                if self.host is not None or event in self.events:
                    host = merged(self.host or clocks.host[index], self._event(index, event))
                    self.host = None if host == clocks.after[index] else host
            case End(kind="graph") if stream in self.streams:
                return self._met(index, self.streams[stream])
            case _:
                pass
        return True

    def _launch(self, index: int, stream: str) -> bool:
        clocks = self.clocks
        raiser = clocks.raiser.get(index, -1)
        if stream not in self.streams and self.host is None and raiser not in self.ends:
            return True
        held = self.streams.get(stream, clocks.held[index])
        before = merged(held, self.host or clocks.host[index])
        if not self._met(index, before):
            return False
        source = self.ends.get(raiser, clocks.source[index])
        after = list(before if source is None else merged(before, source))
        after[clocks.streams[stream]] = clocks.position[index]
        if self._keep(stream, tuple(after), clocks.after[index]):
            self.ends[index] = tuple(after)
        return True

    def _event(self, index: int, event: str) -> Clock:
        known = self.events.get(event, self.clocks.source[index])
        if self.last_use.get(event, -1) <= index:
            self.events.pop(event, None)
        return known if known is not None else (-1,) * len(self.clocks.streams)

    def _keep(self, stream: str, now: Clock, original: Clock) -> bool:
        """Notes the stream's clock if it differs from the original; returns whether it does."""
        if now == original:
            self.streams.pop(stream, None)
            return False
        self.streams[stream] = now
        return True

    def _met(self, index: int, before: Clock) -> bool:
        clocks = self.clocks
        return all(
            clocks.position[earlier] <= before[clocks.streams[clocks.stream_of[earlier]]]
            for earlier in self.needs.get(index, ())
        )
