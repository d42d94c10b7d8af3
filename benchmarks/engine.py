"""Speed of the engine, as ratios to a bare SimPy FIFO loop measured in the same run.

    python -m benchmarks.engine

The bare loop is the least that has the same happenings: a host process lets each op's host time pass
and puts it into a `simpy.Store`, a stream process takes it out and lets a gap and its time pass. It
knows no SMs, rates, causes, spans or counters.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator
from functools import partial

import simpy

from models.machine import Machine
from models.spin import spin, spin_machine
from moe_overlap.cli import COLLECT_AFTER
from moe_overlap.prediction import program_of
from scenarios.load import load
from scenarios.resolve import resolve
from schedules.program import Launch, Op, Program, RankClass, Stream
from simulator import simulate

NUM_OPS = 4000
REPEATS = 15
LAYERS = 6


def bare_loop(num_ops: int) -> None:
    """As many ops through a SimPy store, in order."""
    env = simpy.Environment()
    queue = simpy.Store(env)

    def host() -> Generator[simpy.Event, int, None]:
        for _ in range(num_ops):
            yield env.timeout(1_000)
            yield queue.put(10_000)

    def stream() -> Generator[simpy.Event, int, None]:
        for _ in range(num_ops):
            ns = yield queue.get()
            yield env.timeout(1_800)
            yield env.timeout(ns)

    env.process(host())
    env.process(stream())
    env.run()


def uncontended() -> tuple[Program, Machine]:
    """One stream of kernels that never wait for SMs."""
    work = spin(132, 10_000)
    steps = tuple(Launch(Op(f"k{i}", "main", work)) for i in range(NUM_OPS))
    program = Program("uncontended", (Stream("main"),), (RankClass((0,), steps),))
    return program, spin_machine(host_ns=1_000)


def library(name: str, schedule: str) -> tuple[Program, Machine]:
    """Some layers of a library scenario, folded."""
    resolved = resolve(load(name, []))
    program = program_of(resolved, resolved.choice(schedule), layers=LAYERS)
    return program, resolved.deployment.machine


def seconds(run: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Print ops per second and ratios; runs alternate, and the best of each counts."""
    scenes = {
        "uncontended": (*uncontended(), 0.2),
        "EP8 decode, baseline": (*library("deepseek-v3-h200-ep8-decode", "baseline"), 0.05),
        "EP8 decode, TBO": (*library("deepseek-v3-h200-ep8-decode", "tbo"), 0.05),
    }
    gc.set_threshold(COLLECT_AFTER)  # as the command line does
    bare, ours = [], {name: [] for name in scenes}  # type: tuple[list[float], dict[str, list[float]]]
    for _ in range(REPEATS):
        bare.append(seconds(partial(bare_loop, NUM_OPS)))
        for name, (program, machine, _) in scenes.items():
            ours[name].append(seconds(partial(simulate, program, machine)))
    bare_rate = NUM_OPS / min(bare)
    print(f"{'bare SimPy FIFO loop':24s}{bare_rate:10.0f} ops/s")
    for name, (program, _, goal) in scenes.items():
        num_ops = sum(len(cls.ops) for cls in program.classes)
        rate = num_ops / min(ours[name])
        print(f"{name:24s}{rate:10.0f} ops/s   ratio {rate / bare_rate:.3f}   goal {goal}")


if __name__ == "__main__":
    main()
