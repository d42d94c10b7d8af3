"""Small programs of spin kernels, for timelines that can be worked out by hand. Times in us."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from models.machine import Gaps, Interference, Machine, SmResources
from models.spin import spin, spin_machine
from models.work import Grid
from schedules.program import (
    Exchange,
    Family,
    HostWork,
    Launch,
    Op,
    Program,
    RankClass,
    Role,
    Signal,
    Step,
    Stream,
    Traffic,
)
from schedules.timeline import Span, Timeline

US = 1000
STATIC = Grid(kind="static")
DYNAMIC = Grid(kind="dynamic")
GANG = Grid(gang=True)
_DELAYS = {f"{us}us": us * US for us in (1000, 100, 10, 1)}


def machine(
    *,
    num_sms: int = 132,
    gaps: Gaps | None = None,
    interference: Interference | None = None,
    nvlink_gbps: float = 400.0,
    nic_gbps: float = 50.0,
    gpus_per_node: int = 8,
    static_tail: float = 1.0,
    sm: SmResources | None = None,
) -> Machine:
    """A spin machine whose host costs nothing but what `host` steps ask for."""
    return spin_machine(
        num_sms,
        gaps=gaps,
        host=_DELAYS,
        interference=interference,
        nvlink_gbps=nvlink_gbps,
        nic_gbps=nic_gbps,
        gpus_per_node=gpus_per_node,
        static_tail=static_tail,
        sm=sm,
    )


def host(us: int) -> tuple[HostWork, ...]:
    """Host work of `us` microseconds."""
    steps: list[HostWork] = []
    for name, ns in _DELAYS.items():
        steps += [HostWork(name)] * (us * US // ns)
        us -= us * US // ns * (ns // US)
    return tuple(steps)


def kernel(
    name: str,
    ctas: int,
    us: float,
    stream: str = "main",
    grid: Grid = Grid(),
    *,
    exchange: str | None = None,
    role: Role | None = None,
    raises: str | None = None,
    polls: str | None = None,
    smem_bytes: int = 204800,
    read_bytes: int = 0,
) -> Launch:
    """A launch of a spin kernel of CTAs of `us` each, one to an SM unless `smem_bytes` is less."""
    work = spin(ctas, round(us * US), smem_bytes=smem_bytes, read_bytes=read_bytes)
    op = Op(
        name,
        stream,
        work,
        grid,
        exchange=exchange,
        role=role,
        raises=raises,
        polls=polls,
    )
    return Launch(op)


def program(
    *ranks: Iterable[object],
    streams: Sequence[Stream] = (Stream("main"), Stream("alt")),
    exchanges: Sequence[Exchange] = (),
    signals: Sequence[Signal] = (),
) -> Program:
    """One class per rank; a step may be a group of steps."""
    classes = []
    for rank, steps in enumerate(ranks):
        flat: list[Step] = []
        for step in steps:
            flat.extend(cast(tuple[Step, ...], step if isinstance(step, tuple) else (step,)))
        classes.append(RankClass((rank,), tuple(flat)))
    return Program("test", tuple(streams), tuple(classes), tuple(exchanges), tuple(signals))


def exchange(
    name: str,
    matrix: Traffic,
    *,
    flight_us: float | None = None,
    family: Family = "normal",
) -> Exchange:
    """An exchange of as many ranks as the matrix has rows."""
    flight = None if flight_us is None else spin(1, round(flight_us * US))
    if flight is not None:
        family = "low_latency"
    return Exchange(name, family, tuple(range(len(matrix))), matrix, flight=flight)


def span(timeline: Timeline, op: str, rank: int = 0) -> Span:
    """The span of an op on a rank."""
    return next(s for s in timeline.spans if s.op == op and s.rank == rank)


def times(timeline: Timeline, op: str, rank: int = 0) -> tuple[float, float]:
    """Start and end in us."""
    found = span(timeline, op, rank)
    return found.start_ns / US, found.end_ns / US
