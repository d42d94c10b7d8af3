"""A user's schedule of one layer: stream lines over the kernels of that layer.

    stream comm priority=-1
    main: gate
    main: dispatch.send
    alt: wait main              waits for what main holds at this point
    main: rec E0
    main: experts.down @comp +down
    alt: combine.send ?down
    host: wait counts

The streams main, alt and comm need no declaration. A name stands for one kernel, for all kernels below a dotted prefix (`shared`), or for a group
letter of the operation lists (`S`). A budget may be a name that the scenario gives. A remark in
parentheses says nothing to the program, except `(poll)`: the op polls the one signal that is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from models.deployment import Kernel, LayerKernels
from schedules.caret import allowed
from schedules.program import Launch, Op, Record, Signal, Step, Stream, Wait
from schedules.text_read import read_signal, read_stream
from schedules.text_step import GRID_ATTRIBUTES, HOST, LaunchLine, read_line
from schedules.tokens import Cursor

Catalogue = Mapping[str, tuple[Launch, ...]]

COMMON_STREAMS = ("main", "alt", "comm")

_GIVEN = (*GRID_ATTRIBUTES, "host", "child", "stage")


@dataclass(frozen=True, slots=True)
class StreamLines:
    """What a user's lines say: streams in order of appearance, declared signals, and the steps of
    one layer, whose ops, events, signals and exchanges have no layer in their names yet."""

    streams: tuple[Stream, ...]
    signals: tuple[Signal, ...]
    steps: tuple[Step, ...]


def layer_catalogue(layer: LayerKernels) -> dict[str, tuple[Launch, ...]]:
    """What may be launched by name: every kernel, every dotted prefix, every group letter."""
    found: dict[str, tuple[Launch, ...]] = {}
    for letter, kernels in layer.groups.items():
        launches = tuple(_launch(kernel) for kernel in kernels)
        found[letter] = launches
        for launch in launches:
            parts = launch.op.name.split(".")
            for depth in range(1, len(parts) + 1):
                name = ".".join(parts[:depth])
                found[name] = (*found.get(name, ()), launch)
    return found


def _launch(kernel: Kernel) -> Launch:
    op = Op(
        kernel.name,
        "",
        kernel.work,
        kernel.grid,
        kernel.reads,
        kernel.writes,
        kernel.exchange,
        kernel.role,
    )
    return Launch(op, kernel.host_class)


def parse_stream_lines(
    lines: str | Iterable[str], catalogue: Catalogue, budgets: Mapping[str, int] | None = None
) -> StreamLines:
    """The steps of a user's stream lines, a text or a list of lines, in host order.

    `budgets` are the names allowed after `@`. GrammarError shows the line with a mark: an unknown
    name, a kernel launched twice, a budget that is not given, `(poll)` without one signal.
    """
    sources = lines.split("\n") if isinstance(lines, str) else list(lines)
    cursors = [Cursor(source, number) for number, source in enumerate(sources, start=1)]
    reader = _Reader(catalogue, budgets or {}, _streams_named(cursors), _raised(sources))
    for cursor in cursors:
        if not cursor.at_end:
            reader.read(cursor)
    return StreamLines(tuple(reader.streams.values()), tuple(reader.signals), tuple(reader.steps))


def _streams_named(cursors: Sequence[Cursor]) -> frozenset[str]:
    heads = {cursor.here.value for cursor in cursors if cursor.follows(":")}
    return frozenset(heads) - {HOST}


def _raised(sources: Sequence[str]) -> tuple[str, ...]:
    """Signals raised anywhere in the lines: the consumer may stand above its producer."""
    found: dict[str, None] = {}
    for number, source in enumerate(sources, start=1):
        cursor = Cursor(source, number)
        if cursor.follows(":"):
            line = read_line(cursor)
            if isinstance(line, LaunchLine) and line.raises is not None:
                found[line.raises] = None
    return tuple(found)


@dataclass
class _Reader:
    catalogue: Catalogue
    budgets: Mapping[str, int]
    names: frozenset[str]
    raised: tuple[str, ...]
    streams: dict[str, Stream] = field(default_factory=dict)
    signals: list[Signal] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    launched: dict[str, int] = field(default_factory=dict)
    joins: int = 0

    def read(self, cursor: Cursor) -> None:
        if not cursor.follows(":"):
            self._declare(cursor)
            return
        stream = cursor.here.value
        if stream != HOST and stream not in self.streams:
            known = {*COMMON_STREAMS, *self.streams}
            if stream not in known:
                cursor.fail(f"stream {stream!r} is not declared{allowed(stream, known)}")
            self.streams[stream] = Stream(stream)
        line = read_line(cursor)
        if isinstance(line, LaunchLine):
            self.steps.extend(self._launches(cursor, line))
        elif isinstance(line, Wait) and line.event in self.names:
            self.steps.extend(self._join(line))
        else:
            self.steps.append(line)

    def _declare(self, cursor: Cursor) -> None:
        if cursor.one_of(("stream", "signal"), "declaration") == "signal":
            self.signals.append(read_signal(cursor))
            return
        stream = read_stream(cursor)
        self.streams[stream.name] = stream

    def _join(self, wait: Wait) -> tuple[Step, ...]:
        """`alt: wait main` is an event of its own, recorded on main at this point."""
        self.joins += 1
        event = f"join{self.joins}.{wait.event}"
        return Record(event, wait.event), Wait(event, wait.stream)

    def _launches(self, cursor: Cursor, line: LaunchLine) -> tuple[Launch, ...]:
        if line.op not in self.catalogue:
            cursor.fail(f"unknown op {line.op!r}{allowed(line.op, self.catalogue)}", line.column)
        for name in line.attributes:
            if name not in _GIVEN:
                cursor.fail(f"{name!r} follows from the op and cannot be given", line.column)
        found = self.catalogue[line.op]
        for launch in found:
            first = self.launched.setdefault(launch.op.name, cursor.line)
            if first != cursor.line:
                message = f"{launch.op.name!r} is launched in line {first} already"
                cursor.fail(message, line.column)
        sms = self._sms(cursor, line)
        polls = self._polls(cursor, line)
        last = len(found) - 1
        return tuple(
            _placed(
                launch, line, sms, line.raises if i == last else None, polls if i == 0 else None
            )
            for i, launch in enumerate(found)
        )

    def _sms(self, cursor: Cursor, line: LaunchLine) -> int | None:
        if not isinstance(line.sms, str):
            if line.sms is not None and line.sms <= 0:
                cursor.fail(f"{line.sms} SMs is not a budget", line.column)
            return line.sms
        if line.sms not in self.budgets:
            cursor.fail(f"unknown budget @{line.sms}{allowed(line.sms, self.budgets)}", line.column)
        return self.budgets[line.sms]

    def _polls(self, cursor: Cursor, line: LaunchLine) -> str | None:
        if "poll" not in line.notes:
            return line.polls
        if len(self.raised) != 1:
            cursor.fail(f"(poll) needs one signal, {len(self.raised)} are raised", line.column)
        return self.raised[0]


def _placed(
    launch: Launch, line: LaunchLine, sms: int | None, raises: str | None, polls: str | None
) -> Launch:
    given: dict[str, Any] = dict(line.attributes)
    host_class = given.pop("host", launch.host_class)
    placement: dict[str, Any] = {key: given.pop(key) for key in GRID_ATTRIBUTES if key in given}
    if sms is not None:
        placement["sm_budget"] = sms
    grid = replace(launch.op.grid, **placement)
    op = replace(launch.op, stream=line.stream, grid=grid, raises=raises, polls=polls, **given)
    return Launch(op, host_class)
