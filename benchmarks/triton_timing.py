"""Times of GPU work: replays of a captured graph, or a plain loop, as medians with their spread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch

REPLAYS = 15
SLEEP_CYCLES = 6_000_000


@dataclass(frozen=True)
class Timing:
    """Median and tenth and ninetieth percentile of one call, in us; how it was launched."""

    us: float
    low_us: float
    high_us: float
    launch: str


def time_graph(
    call: Callable[[], object], inner: int = 4, replays: int = REPLAYS, *, aligned: bool = False
) -> Timing:
    """`call`, `inner` times in a graph. Its inputs must be several times the L2, or be rotated.

    `aligned` calls it twice before the clock starts, which brings the ranks of an exchange together; a
    sleep before them lets the host get ahead, so that ranks also start the graph together.
    """
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        for _ in range(inner):
            call()
    return _timed(graph.replay, call if aligned else None, inner, replays, "graph")


def time_loop(call: Callable[[], object], inner: int = 4, replays: int = REPLAYS) -> Timing:
    """`call`, `inner` times launched one by one, the host ahead behind a sleep; aligned."""

    def run() -> None:
        for _ in range(inner):
            call()

    return _timed(run, call, inner, replays, "eager")


def _timed(
    run: Callable[[], None],
    align: Callable[[], object] | None,
    inner: int,
    replays: int,
    launch: str,
) -> Timing:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP_CYCLES)
        if align is not None:
            align()
            align()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / inner)
    cuts = quantiles(times, n=10)
    return Timing(round(median(times), 2), round(cuts[0], 2), round(cuts[-1], 2), launch)
