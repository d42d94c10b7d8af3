"""Names and shapes: what a program mentions exists, once, and has a form that makes sense."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from schedules.caret import allowed
from schedules.lint.finding import Finding, finding
from schedules.program import Exchange, Launch, Op, Program, RankClass, Record, Wait

Name = TypeVar("Name", bound=Hashable)


def name_findings(program: Program) -> Iterator[Finding]:
    """Unknown and repeated names, and shapes that fit nothing."""
    yield from _ranks(program)
    for what, names in (
        ("stream", [stream.name for stream in program.streams]),
        ("exchange", [exchange.name for exchange in program.exchanges]),
        ("signal", [signal.name for signal in program.signals]),
    ):
        for name in _repeated(names):
            yield finding("malformed", f"{what} {name!r} is declared twice")
    for signal in program.signals:
        if signal.blocks < 1 or signal.threshold < 1:
            yield finding("malformed", f"signal {signal.name!r} needs blocks and a threshold")
    for exchange in program.exchanges:
        yield from _exchange(exchange, program)
    for cls in program.classes:
        yield from _steps(program, cls)


def _ranks(program: Program) -> Iterator[Finding]:
    if not program.ranks:
        yield finding("malformed", "the program has no ranks")
    for number, cls in enumerate(program.classes):
        if not cls.ranks:
            yield finding("malformed", f"class {number} has no ranks")
    for rank in _repeated(program.ranks):
        yield finding("malformed", f"rank {rank} belongs to two classes", rank)


def _exchange(exchange: Exchange, program: Program) -> Iterator[Finding]:
    size = len(exchange.ranks)
    if len(exchange.bytes) != size or any(len(row) != size for row in exchange.bytes):
        yield finding("malformed", f"the bytes of {exchange.name!r} are not {size} x {size}")
    if any(count < 0 for row in exchange.bytes for count in row):
        yield finding("malformed", f"{exchange.name!r} has a negative number of bytes")
    strangers = sorted(set(exchange.ranks) - set(program.ranks))
    if strangers:
        yield finding("malformed", f"{exchange.name!r} has ranks that do not exist: {strangers}")
    if exchange.family == "low_latency" and exchange.buffer is None:
        yield finding("malformed", f"low-latency {exchange.name!r} names no buffer")


def _steps(program: Program, cls: RankClass) -> Iterator[Finding]:
    streams = {stream.name for stream in program.streams}
    exchanges = {exchange.name for exchange in program.exchanges}
    signals = {signal.name for signal in program.signals}
    buffers = {buffer.name for buffer in cls.buffers}
    rank = cls.ranks[0] if cls.ranks else None
    launched: dict[str, int] = {}
    for index, step in enumerate(cls.steps):
        if isinstance(step, Record | Wait) and step.stream not in streams:
            yield _unknown("stream", step.stream, streams, rank, index)
        if not isinstance(step, Launch):
            continue
        op = step.op
        first = launched.setdefault(op.name, index)
        if first != index:
            yield finding("duplicate-op", f"{op.name} is launched in step {first}", rank, index)
        if op.stream not in streams:
            yield _unknown("stream", op.stream, streams, rank, index)
        if op.exchange is not None and op.exchange not in exchanges:
            yield _unknown("exchange", op.exchange, exchanges, rank, index)
        if (op.exchange is None) != (op.role is None):
            yield finding("malformed", f"{op.name} needs exchange and role together", rank, index)
        for signal in (op.raises, op.polls):
            if signal is not None and signal not in signals:
                yield _unknown("signal", signal, signals, rank, index)
        for buffer in sorted({*op.reads, *op.writes} - buffers) if buffers else ():
            yield _unknown("buffer", buffer, buffers, rank, index)
    yield from _signals(cls, rank)


def _signals(cls: RankClass, rank: int | None) -> Iterator[Finding]:
    raised: dict[str, Op] = {}
    for op in cls.ops:
        if op.raises is None:
            continue
        if op.raises in raised:
            first = raised[op.raises].name
            yield finding(
                "malformed", f"signal {op.raises!r} is raised by {first} and {op.name}", rank
            )
        raised[op.raises] = op
    for index, step in enumerate(cls.steps):
        if isinstance(step, Launch) and step.op.polls is not None and step.op.polls not in raised:
            message = f"{step.op.name} polls {step.op.polls!r}, which no op of the rank raises"
            yield finding("unknown-name", message, rank, index)


def _unknown(what: str, name: str, known: Iterable[str], rank: int | None, index: int) -> Finding:
    names = sorted(known)
    tail = allowed(name, names) if len(names) <= 12 else f" ({len(names)} are known)"
    return finding("unknown-name", f"unknown {what} {name!r}{tail}", rank, index)


def _repeated(names: Iterable[Name]) -> list[Name]:
    return [name for name, count in Counter(names).items() if count > 1]
