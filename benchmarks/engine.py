"""Speed of the engine, as ratios to a bare SimPy FIFO loop measured in the same run.

    python -m benchmarks.engine

The bare loop is one process that puts the same ops into a `simpy.Store` and one that takes them out
and lets their time pass: no streams, gaps, placement, rates or spans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

import simpy

from models.spin import spin, spin_machine
from schedules.program import Launch, Op, Program, RankClass, Stream
from simulator import simulate

NUM_OPS = 4000
REPEATS = 5


def bare_loop(durations: list[int]) -> None:
    """The same ops through a SimPy store, in order."""
    env = simpy.Environment()
    queue = simpy.Store(env)

    def host() -> Generator[simpy.Event, None, None]:
        for ns in durations:
            yield queue.put(ns)

    def stream() -> Generator[simpy.Event, None, None]:
        for _ in durations:
            ns = yield queue.get()
            yield env.timeout(ns or 0)

    env.process(host())
    env.process(stream())
    env.run()


def uncontended() -> Program:
    """One stream of kernels that never wait for SMs."""
    work = spin(132, 10_000)
    steps = tuple(Launch(Op(f"k{i}", "main", work)) for i in range(NUM_OPS))
    return Program("uncontended", (Stream("main"),), (RankClass((0,), steps),))


def best_seconds(run: Callable[[], object]) -> float:
    """Least time of some repeats."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print ops per second and the ratio to the bare loop."""
    machine = spin_machine()
    program = uncontended()
    bare = NUM_OPS / best_seconds(lambda: bare_loop([10_000] * NUM_OPS))
    ours = NUM_OPS / best_seconds(lambda: simulate(program, machine))
    print(f"bare SimPy FIFO loop    {bare:10.0f} ops/s")
    print(f"uncontended program     {ours:10.0f} ops/s   ratio {ours / bare:.3f}  (goal 0.2)")


if __name__ == "__main__":
    main()
