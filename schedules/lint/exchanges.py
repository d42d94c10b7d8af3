"""Exchanges over ranks: all join, in one order, and no more live results than there are buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from schedules.lint.clocks import Clocks
from schedules.lint.finding import Finding, finding
from schedules.program import Exchange, Launch, Program, RankClass

Joins = dict[str, list[tuple[str, int]]]

LL_BUFFERS = 2  # what DeepEP keeps: a third result would overwrite the first


def exchange_findings(program: Program) -> Iterator[Finding]:
    """Exchanges that a rank does not join as the others do, and orders that differ."""
    joins = [_joins(cls) for cls in program.classes]
    for exchange in program.exchanges:
        yield from _joined(program, exchange, joins)
    yield from _orders(program)


def _joins(cls: RankClass) -> Joins:
    """For each exchange the roles that a class launches, with the step."""
    found: Joins = {}
    for index, step in enumerate(cls.steps):
        if isinstance(step, Launch) and step.op.exchange is not None:
            found.setdefault(step.op.exchange, []).append((step.op.role or "", index))
    return found


def _joined(program: Program, exchange: Exchange, joins: Sequence[Joins]) -> Iterator[Finding]:
    members = set(exchange.ranks)
    roles = {role for found in joins for role, _ in found.get(exchange.name, ())}
    if not roles:
        yield finding("exchange-join", f"no rank launches {exchange.name!r}")
        return
    if ("send" in roles) != ("recv" in roles):
        missing = "recv" if "send" in roles else "send"
        yield finding("exchange-join", f"{exchange.name!r} has no {missing} on any rank")
    for cls, found in zip(program.classes, joins, strict=True):
        here = found.get(exchange.name, [])
        inside = [rank for rank in cls.ranks if rank in members]
        outside = [rank for rank in cls.ranks if rank not in members]
        if here and outside:
            message = f"rank {outside[0]} launches {exchange.name!r}, which it does not belong to"
            yield finding("exchange-join", message, outside[0], here[0][1])
        if not inside:
            continue
        for role in sorted(roles - {role for role, _ in here}):
            message = (
                f"rank {inside[0]} never launches the {role} of {exchange.name!r}: its peers wait"
            )
            yield finding("exchange-join", message, inside[0])
        seen: set[str] = set()
        for role, index in here:
            if role in seen:
                message = f"the {role} of {exchange.name!r} is launched twice"
                yield finding("exchange-join", message, inside[0], index)
            seen.add(role)


def _orders(program: Program) -> Iterator[Finding]:
    """Compares each class with the first one, over the kernels that both launch."""
    if not program.classes:
        return
    first = program.classes[0]
    reference = _order(first)
    place = {key: at for at, (key, _) in enumerate(reference)}
    for cls in program.classes[1:]:
        common = [(key, index) for key, index in _order(cls) if key in place]
        for (key, _), (other, index) in pairwise(common):
            if place[key] > place[other]:
                message = (
                    f"rank {cls.ranks[0]} launches the {other[1]} of {other[0]!r} after the {key[1]} "
                    f"of {key[0]!r}, rank {first.ranks[0]} before it"
                )
                yield finding("exchange-order", message, cls.ranks[0], index)
                break


def _order(cls: RankClass) -> list[tuple[tuple[str, str], int]]:
    return [
        ((step.op.exchange, step.op.role or ""), index)
        for index, step in enumerate(cls.steps)
        if isinstance(step, Launch) and step.op.exchange is not None
    ]


def buffer_findings(
    cls: RankClass, exchanges: Mapping[str, Exchange], clocks: Clocks
) -> Iterator[Finding]:
    """Low-latency results alive at a send. A result lives from its send to the last op that reads
    what its receive wrote; it is dead for a send that starts after that op has ended. At most
    `LL_BUFFERS` may be alive, and no two in one buffer."""
    rank = cls.ranks[0] if cls.ranks else None
    ends = _last_uses(cls, exchanges)
    live: list[str] = []
    for index, step in enumerate(cls.steps):
        if not isinstance(step, Launch) or step.op.role != "send":
            continue
        exchange = exchanges.get(step.op.exchange or "")
        if exchange is None or exchange.buffer is None:
            continue
        live = [name for name in live if not _dead(name, ends, clocks, index)]
        same = [name for name in live if exchanges[name].buffer == exchange.buffer]
        if same:
            message = (
                f"{step.op.name} writes buffer {exchange.buffer!r} while the result of "
                f"{same[0]!r} in it is alive"
            )
            yield finding("low-latency-buffer", message, rank, index)
        elif len(live) >= LL_BUFFERS:
            message = f"{step.op.name} starts a third result while {' and '.join(live)} are alive"
            yield finding("low-latency-buffer", message, rank, index)
        live.append(exchange.name)


def _dead(name: str, ends: Mapping[str, list[int]], clocks: Clocks, send: int) -> bool:
    found = ends.get(name, [])
    return bool(found) and all(end < send and clocks.ordered(end, send) for end in found)


def _last_uses(cls: RankClass, exchanges: Mapping[str, Exchange]) -> dict[str, list[int]]:
    """For each low-latency exchange its receive and the later readers of what that wrote, until the
    next op that writes the same."""
    ends: dict[str, list[int]] = {}
    holder: dict[str, str] = {}
    for index, step in enumerate(cls.steps):
        if not isinstance(step, Launch):
            continue
        op = step.op
        for buffer in op.reads:
            if buffer in holder:
                ends[holder[buffer]].append(index)
        for buffer in op.writes:
            holder.pop(buffer, None)
        exchange = exchanges.get(op.exchange or "")
        if op.role == "recv" and exchange is not None and exchange.buffer is not None:
            ends.setdefault(exchange.name, []).append(index)
            holder.update(dict.fromkeys(op.writes, exchange.name))
    return ends
