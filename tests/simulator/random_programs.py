"""Random programs for property tests: any streams, priorities, kinds of kernel, events and exchanges.

Every rank joins the exchanges in the same order, and their kernels always fit together, so that a
program never deadlocks.
"""

from __future__ import annotations

from hypothesis import strategies as st

from models.work import Grid, GridKind
from schedules.program import (
    Begin,
    End,
    Exchange,
    HostWait,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Step,
    Stream,
    Wait,
)
from tests.simulator.spinning import STATIC, exchange, host, kernel

STREAMS = ("main", "alt", "third")
_EXCHANGE_CTAS = 16
_MOST_EXCHANGES = 4
_KIND = st.sampled_from(
    ["kernel"] * 6 + ["exchange", "record", "wait", "host_wait", "host", "graph"]
)


@st.composite
def programs(draw: st.DrawFn, *, own_sm: bool = False, max_ranks: int = 3) -> Program:
    """A program of up to `max_ranks` ranks; with `own_sm` every CTA of a compute kernel fills an SM and
    nothing is dynamic."""
    num_ranks = draw(st.integers(1, max_ranks))
    plan = draw(st.lists(_KIND, min_size=3, max_size=24))
    exchanges: list[Exchange] = []
    ranks: list[list[Step]] = [[] for _ in range(num_ranks)]
    recorded: set[str] = set()
    for index, kind in enumerate(plan):
        stream = draw(st.sampled_from(STREAMS))
        if kind == "exchange" and len(exchanges) < _MOST_EXCHANGES:
            steps = _exchange(draw, exchanges, f"x{index}", stream, num_ranks, own_sm)
            _extend(ranks, [steps] * num_ranks)
        elif kind == "record":
            recorded.add(f"E{index}")
            _extend(ranks, [[Record(f"E{index}", stream)]] * num_ranks)
        elif kind in ("wait", "host_wait") and recorded:
            event = draw(st.sampled_from(sorted(recorded)))
            step = Wait(event, stream) if kind == "wait" else HostWait(event)
            _extend(ranks, [[step]] * num_ranks)
        elif kind == "host":
            _extend(ranks, [list(host(draw(st.integers(0, 40)))) for _ in ranks])
        elif kind == "graph":
            inside = [_compute(draw, f"k{index}.{i}", stream, own_sm) for i in range(2)]
            steps = [Begin("graph", f"g{index}"), *inside, End("graph", f"g{index}")]
            _extend(ranks, [steps] * num_ranks)
        else:
            _extend(ranks, [[_compute(draw, f"k{index}", stream, own_sm)] for _ in ranks])
    streams = tuple(Stream(name, draw(st.integers(-2, 0))) for name in STREAMS)
    classes = tuple(RankClass((rank,), tuple(steps)) for rank, steps in enumerate(ranks))
    return Program("random", streams, classes, tuple(exchanges))


def _extend(ranks: list[list[Step]], steps: list[list[Step]]) -> None:
    for rank, more in zip(ranks, steps, strict=True):
        rank.extend(more)


def _compute(draw: st.DrawFn, name: str, stream: str, own_sm: bool) -> Launch:
    kinds: list[GridKind] = ["wave", "wave", "static"] if own_sm else ["wave", "static", "dynamic"]
    kind = draw(st.sampled_from(kinds))
    gang = draw(st.booleans()) and draw(st.booleans())
    most = 132 if gang or kind == "static" else 600
    smem = 204800 if own_sm else draw(st.sampled_from([204800, 100000, 20000, 0]))
    return kernel(
        name,
        draw(st.integers(1, most)),
        draw(st.integers(1, 60)),
        stream,
        Grid(kind=kind, gang=gang),
        smem_bytes=smem,
        read_bytes=draw(st.sampled_from([0, 0, 10**7])) if not own_sm else 0,
    )


def _exchange(
    draw: st.DrawFn,
    exchanges: list[Exchange],
    name: str,
    stream: str,
    num_ranks: int,
    own_sm: bool,
) -> list[Step]:
    """The steps of one exchange on every rank; with `own_sm` its kernels are gangs."""
    matrix = tuple(
        tuple(draw(st.integers(0, 10**6)) for _ in range(num_ranks)) for _ in range(num_ranks)
    )
    us = draw(st.integers(1, 40))
    grid = Grid(gang=own_sm or draw(st.booleans()))
    if draw(st.booleans()):
        exchanges.append(exchange(name, matrix))
        whole = kernel(
            f"{name}.whole", _EXCHANGE_CTAS, us, stream, grid, exchange=name, role="whole"
        )
        return [whole]
    flight_us = draw(st.sampled_from([None, 5.0, 50.0]))
    exchanges.append(exchange(name, matrix, flight_us=flight_us, family="low_latency"))
    send = kernel(f"{name}.send", _EXCHANGE_CTAS, us, stream, grid, exchange=name, role="send")
    between = kernel(f"{name}.between", draw(st.integers(1, 132)), 10, stream, STATIC)
    recv = kernel(f"{name}.recv", _EXCHANGE_CTAS, 3, stream, grid, exchange=name, role="recv")
    return [send, between, recv]


def ops(program: Program) -> list[tuple[int, Op]]:
    """(rank, op) of all launches."""
    return [(rank, op) for rank in program.ranks for op in program.launches(rank)]
