"""A schedule is a program, and a program is data.

A `Program` lists, for every class of ranks, the steps that the host thread takes, in order.
`simulate`, `execute` and `lint` consume it; there is no other description of a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from models.work import Grid, Work

Family = Literal["normal", "low_latency", "collective"]
Role = Literal["notify", "send", "recv", "whole"]
RegionKind = Literal["graph", "call", "stage"]
Traffic = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """An in-order queue on every rank. A lower `priority` number is placed earlier (CUDA: -1 is high)."""

    name: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One all-to-all. `bytes[src][dst]` counts each byte once, the diagonal is loopback, and the
    indices are positions in `ranks`. Exchanges of identical layers share one matrix object.
    `buffer` names the low-latency buffer that it occupies from its send to the last read. `flight` is
    the part of a low-latency transfer that holds no SMs: it starts as the sends write and ends no
    earlier than the last send; None when the sends copy in line."""

    name: str
    family: Family
    ranks: tuple[int, ...]
    bytes: Traffic
    buffer: str | None = None
    flight: Work | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """Completion counters of a producer kernel: `blocks` of them, each complete at `threshold`
    increments. `order` says whether the consumer takes blocks by index or by arrival."""

    name: str
    blocks: int
    threshold: int
    order: Literal["index", "arrival"] = "index"


@dataclass(frozen=True, slots=True)
class Op:
    """One kernel of one rank. `name` is unique on its rank and is the same string everywhere
    (`L3.b.dispatch.send`). `reads` and `writes` name buffers of the rank. `exchange` and `role` are
    set together. `layer` is -1 outside layers; `child` is "" for a whole batch, else a or b."""

    name: str
    stream: str
    work: Work
    grid: Grid = Grid()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    exchange: str | None = None
    role: Role | None = None
    raises: str | None = None
    polls: str | None = None
    layer: int = -1
    child: str = ""
    stage: int = -1


@dataclass(frozen=True, slots=True)
class Launch:
    """The host launches a kernel; the call costs `host_class` on the host."""

    op: Op
    host_class: str = "torch"


@dataclass(frozen=True, slots=True)
class Record:
    """The host records `event` on `stream`: it completes when the stream's earlier work has."""

    event: str
    stream: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Later work of `stream` waits for `event`. CUDA ignores a wait for an event not yet recorded."""

    event: str
    stream: str


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host thread blocks until `event` completes (a receive count, for example)."""

    event: str


@dataclass(frozen=True, slots=True)
class HostWork:
    """Host time that launches nothing: allocation, split metadata, the vote of the ranks."""

    kind: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Opens a region: a CUDA graph, one library call, or a stage of the schedule (`a.3`)."""

    kind: RegionKind
    name: str


@dataclass(frozen=True, slots=True)
class End:
    """Closes the innermost region, which must have this kind and name."""

    kind: RegionKind
    name: str


Step = Launch | Record | Wait | HostWait | HostWork | Begin | End


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that ops read and write; alive from its first writer to its last reader."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that take the same steps with the same work. One class a rank is the unfolded form."""

    ranks: tuple[int, ...]
    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...] = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        """Ops in launch order."""
        return tuple(step.op for step in self.steps if isinstance(step, Launch))


@dataclass(frozen=True)
class Program:
    """A schedule of some layers on some ranks; see the module docstring."""

    name: str
    streams: tuple[Stream, ...]
    classes: tuple[RankClass, ...]
    exchanges: tuple[Exchange, ...] = ()
    signals: tuple[Signal, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, ascending."""
        return tuple(sorted(rank for cls in self.classes for rank in cls.ranks))

    def rank_class(self, rank: int) -> RankClass:
        """The class that holds `rank`; KeyError when none does."""
        for cls in self.classes:
            if rank in cls.ranks:
                return cls
        raise KeyError(f"program {self.name!r} has no rank {rank}; it has {self.ranks}")

    def exchange(self, name: str) -> Exchange:
        """The exchange called `name`; KeyError when there is none."""
        for exchange in self.exchanges:
            if exchange.name == name:
                return exchange
        raise KeyError(f"program {self.name!r} has no exchange {name!r}")

    def launches(self, rank: int) -> Iterator[Op]:
        """Ops of one rank in launch order."""
        return iter(self.rank_class(rank).ops)
