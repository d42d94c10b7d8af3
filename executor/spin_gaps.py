"""The launch machinery's own latencies on this GPU, measured with spin kernels.

Each figure is the median of repeats of a small program, run as any program is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

from executor.execute import execute
from executor.peers import gathered
from executor.spin import Spin
from models.machine import Gaps
from models.spin import spin
from models.work import Grid
from schedules.program import (
    Begin,
    End,
    Exchange,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Step,
    Stream,
    Wait,
)
from schedules.timeline import Timeline

Figure = Callable[[Timeline], int]
US = 1000
SMALL_BYTES = 1024
WAVES = 8
STREAMS = ("main", "side", "comm")
LEAST_TURN_NS = 400  # less is the gap's own spread
REPEATS = 15


@dataclass(frozen=True)
class SpinFigures:
    """Gaps of the machine, and what a CTA and the fetch of a tile cost beyond the time that is spun, in
    ns. `front_ends` numbers those of the streams main, side and comm, for as long as this process lives."""

    gaps: Gaps
    cta_overhead_ns: int
    pull_ns: int
    front_ends: tuple[int, ...]


def measure_figures(kernels: Spin, rank: int) -> SpinFigures:
    """All figures; `kernels` must run with no overhead taken off."""
    saved = kernels.cta_overhead_ns, kernels.pull_ns
    kernels.cta_overhead_ns = kernels.pull_ns = 0
    try:
        overhead = _repeated(kernels, rank, _waves(kernels.num_sms), _turnover)
        kernels.cta_overhead_ns = overhead
        pull = _repeated(kernels, rank, _waves(kernels.num_sms, Grid(kind="dynamic")), _turnover)
        stream = _repeated(kernels, rank, _chain(), _gap("a", "b"))
        event = _repeated(kernels, rank, _chain(Record("E", "main")), _gap("a", "b"))
        gaps = Gaps(
            stream=stream,
            event=event,
            cross_stream=_repeated(kernels, rank, _across(), _gap("a", "b")),
            graph_node=_repeated(kernels, rank, _graph(_chain()), _gap("a", "b")),
            graph_edge=_repeated(kernels, rank, _graph(_across()), _gap("a", "b")),
            reaction=_repeated(kernels, rank, _full(kernels.num_sms), _gap("a", "b")),
        )
        turns = {
            (one, other): _repeated(kernels, rank, _pending(one, other), _gap("a", "b")) - stream
            for one, other in combinations(STREAMS, 2)
        }
    finally:
        kernels.cta_overhead_ns, kernels.pull_ns = saved
    shared = {pair: turn for pair, turn in turns.items() if turn > LEAST_TURN_NS}
    gaps = replace(gaps, turn=round(median(shared.values())) if shared else 0)
    return SpinFigures(gaps, overhead, pull, _front_ends(shared))


def _front_ends(shared: Container[tuple[str, str]]) -> tuple[int, ...]:
    """A number for each stream, the same for pairs that share."""
    numbers: list[int] = []
    for index, stream in enumerate(STREAMS):
        same = [numbers[i] for i in range(index) if (STREAMS[i], stream) in shared]
        numbers.append(same[0] if same else max(numbers, default=-1) + 1)
    return tuple(numbers)


def measure_meeting(kernels: Spin, rank: int, world_size: int) -> int:
    """ns from the start of the rank that comes last to when all know that it is there: how much longer
    than its own time a kernel that waits for its peers lasts on that rank. Call it on every rank."""
    ranks = tuple(range(world_size))
    op = Op("a", "main", spin(16, 50 * US, smem_bytes=204800), exchange="x", role="whole")
    steps = (_launch("first", "main", 1, 300 * US), Launch(op, "cpp"))
    exchange = Exchange("x", "normal", ranks, ((0,) * world_size,) * world_size)
    program = Program("meeting", (Stream("main"),), (RankClass(ranks, steps),), (exchange,))
    longer: list[int] = []
    for _ in range(REPEATS):
        spans = {span.op: span for span in execute(program, kernels, rank=rank).spans}
        longer.append(min(gathered(spans["a"].duration_ns - 50 * US)))
    return max(0, round(median(longer[2:])))


def _repeated(kernels: Spin, rank: int, steps: Iterable[Step], figure: Figure) -> int:
    streams = tuple(Stream(name) for name in STREAMS)
    program = Program("gaps", streams, (RankClass((rank,), tuple(steps)),))
    runs = [figure(execute(program, kernels, rank=rank)) for _ in range(REPEATS)]
    return max(0, round(median(runs[2:])))


def _gap(before: str, after: str) -> Figure:
    """The time from one op's end to another's start."""

    def figure(timeline: Timeline) -> int:
        spans = {span.op: span for span in timeline.spans}
        return spans[after].start_ns - spans[before].end_ns

    return figure


def _turnover(timeline: Timeline) -> int:
    """What each of the waves took beyond its spinning."""
    (span,) = (span for span in timeline.spans if span.op == "a")
    return round(span.duration_ns / WAVES) - 50 * US


def _launch(
    name: str,
    stream: str,
    ctas: int,
    cta_ns: int,
    smem_bytes: int = SMALL_BYTES,
    grid: Grid | None = None,
) -> Launch:
    return Launch(
        Op(name, stream, spin(ctas, cta_ns, smem_bytes=smem_bytes), grid or Grid()), "cpp"
    )


def _waves(num_sms: int, grid: Grid | None = None) -> list[Step]:
    return [_launch("a", "main", WAVES * num_sms, 50 * US, 204800, grid)]


def _chain(*between: Step, stream: str = "main") -> list[Step]:
    """Two kernels on one stream, the first long enough for the host to be ahead."""
    return [
        _launch("first", stream, 1, 300 * US),
        _launch("a", stream, 1, 20 * US),
        *between,
        _launch("b", stream, 1, 20 * US),
    ]


def _across() -> list[Step]:
    return [
        _launch("first", "main", 1, 300 * US),
        _launch("a", "main", 1, 20 * US),
        Record("E", "main"),
        Wait("E", "side"),
        _launch("b", "side", 1, 20 * US),
    ]


def _pending(one: str, other: str) -> list[Step]:
    """A chain on one stream while another has a kernel to start, later."""
    return [
        *_chain(stream=one),
        Record("E", one),
        Wait("E", other),
        _launch("c", other, 1, 20 * US),
    ]


def _full(num_sms: int) -> list[Step]:
    """A kernel that waits for the room of another."""
    return [
        _launch("a", "main", num_sms, 500 * US, 204800),
        _launch("b", "side", 24, 20 * US, 204800),
    ]


def _graph(steps: list[Step]) -> list[Step]:
    return [Begin("graph", "g"), *steps, End("graph", "g")]
