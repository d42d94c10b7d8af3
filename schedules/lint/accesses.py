"""Which accesses of one rank must be ordered: a write before what reads it, and what reads before the
next write. A low-latency exchange's own buffer counts as written by its send and read by its receive
and by what reads the received data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schedules.program import Exchange, Launch, Op, RankClass


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two launches, by step index in host order, that both touch `buffer` and one of which writes."""

    earlier: int
    later: int
    buffer: str
    kind: str


@dataclass(slots=True)
class _State:
    """The last write of a buffer, and the last read on each stream since."""

    write: int | None = None
    reads: dict[str, int] = field(default_factory=dict)


def conflicts_of(cls: RankClass, exchanges: Mapping[str, Exchange]) -> list[Conflict]:
    """Conflicts between neighbours on different streams: what is further apart follows from these.

    A producer that raises the signal that the other op polls is ordered block by block, and so is a
    send before the receive of its exchange.
    """
    found: list[Conflict] = []
    states: dict[str, _State] = {}
    ops: dict[int, Op] = {}

    def note(earlier: int | None, later: int, buffer: str, kind: str) -> None:
        if earlier is None or ops[earlier].stream == ops[later].stream:
            return
        if not _signalled(ops[earlier], ops[later]):
            found.append(Conflict(earlier, later, buffer, kind))

    for index, step in enumerate(cls.steps):
        if not isinstance(step, Launch):
            continue
        op = ops[index] = step.op
        reads, writes = _touched(op, exchanges)
        for buffer in reads:
            state = states.setdefault(buffer, _State())
            note(state.write, index, buffer, "reads what it writes")
            state.reads[op.stream] = index
        for buffer in writes:
            state = states.setdefault(buffer, _State())
            for earlier in state.reads.values():
                if earlier != index:
                    note(earlier, index, buffer, "overwrites what it reads")
            note(state.write, index, buffer, "overwrites what it writes")
            states[buffer] = _State(index)
    return found


def _touched(op: Op, exchanges: Mapping[str, Exchange]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    exchange = exchanges.get(op.exchange or "")
    if exchange is None or exchange.buffer is None:
        return op.reads, op.writes
    name = f"exchange buffer {exchange.buffer}"
    if op.role == "recv":
        return (*op.reads, name), op.writes
    return op.reads, (*op.writes, name)


def _signalled(one: Op, other: Op) -> bool:
    """Whether one of them goes on as the other does: by a signal, or as send and receive."""
    by_signal = (one.raises is not None and one.raises == other.polls) or (
        other.raises is not None and other.raises == one.polls
    )
    return by_signal or (one.exchange is not None and one.exchange == other.exchange)
