"""Random programs of spin kernels: whatever their shapes, only placement and peers decide.

Every program starts with a gate, an exchange of one small CTA, behind which the hosts launch all the
rest: what follows starts with the gate's end and owes nothing to the host.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.spin import spin
from models.work import Grid, Work
from schedules.program import (
    Exchange,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Role,
    Step,
    Stream,
    Wait,
)

GATE_NS = 2_500_000
SMALL_BYTES = 1024
MAIN_TIMER_NS = 11_000
US = 1000


@dataclass(frozen=True)
class _Draft:
    """One op before its times are drawn for each rank."""

    name: str
    stream: str
    grid: Grid
    ctas: int
    cta_ns: int
    smem_bytes: int = 204800
    exchange: bool = False


def random_program(seed: int, *, ranks: int, num_sms: int, fan_out: bool = False) -> Program:
    """Two to three streams of three to eleven kernels, their events, and exchanges with two ranks.

    Streams start one after another, each released by the timer of the one before; with `fan_out` the
    gate releases them all, which a GPU does one by one, microseconds apart. An exchange takes the same
    time on all ranks, other kernels their own.
    """
    rng = random.Random(seed)
    streams = (
        Stream("main"),
        Stream("side", rng.choice((0, -1))),
        Stream("comm", rng.choice((0, -1))),
    )
    queues = {
        "main": [_compute(rng, f"main.{i}", "main", num_sms) for i in range(rng.randint(3, 5))],
        "side": [_compute(rng, f"side.{i}", "side", num_sms) for i in range(rng.randint(0, 2))],
        "comm": [_transfer(rng, f"comm.{i}", ranks > 1) for i in range(rng.randint(1, 3))],
    }
    order = _interleaved(rng, queues)
    edges = _edges(rng, order)
    exchanges = tuple(
        Exchange(name, "normal", tuple(range(ranks)), ((0,) * ranks,) * ranks)
        for name in ("gate", *(draft.name for draft in order if draft.exchange))
    )
    classes = tuple(
        RankClass((rank,), _steps(random.Random(seed * 64 + rank), order, edges, queues, fan_out))
        for rank in range(ranks)
    )
    return Program(f"spin {seed}", streams, classes, exchanges)


def _compute(rng: random.Random, name: str, stream: str, num_sms: int) -> _Draft:
    kind = rng.choice(("wave", "static", "dynamic"))
    if kind == "wave":
        ctas = rng.randint(1, 6 * num_sms)
        return _Draft(name, stream, Grid(), ctas, rng.randint(30, 150) * US)
    budget = rng.choice((None, None, num_sms - 24, num_sms - 12))
    tiles = rng.randint(num_sms // 2, 4 * num_sms)
    grid = Grid(budget, "grid", "static" if kind == "static" else "dynamic")
    return _Draft(name, stream, grid, tiles, rng.randint(30, 150) * US)


def _transfer(rng: random.Random, name: str, exchange: bool) -> _Draft:
    grid = Grid(gang=rng.random() < 0.5)
    return _Draft(
        name,
        "comm",
        grid,
        rng.choice((8, 16, 20, 24, 32)),
        rng.randint(40, 400) * US,
        exchange=exchange,
    )


def _interleaved(rng: random.Random, queues: dict[str, list[_Draft]]) -> list[_Draft]:
    """A random host order that keeps each stream's own."""
    left = {name: list(queue) for name, queue in queues.items()}
    order = []
    while any(left.values()):
        name = rng.choice([name for name, queue in left.items() for _ in queue])
        order.append(left[name].pop(0))
    return order


def _edges(rng: random.Random, order: Sequence[_Draft]) -> list[tuple[str, str]]:
    """(producer, consumer) pairs across streams, forward in host order."""
    edges = []
    for index, consumer in enumerate(order):
        others = [draft for draft in order[:index] if draft.stream != consumer.stream]
        if others and rng.random() < 0.35:
            edges.append((rng.choice(others).name, consumer.name))
    return edges


def _steps(
    rng: random.Random,
    order: Sequence[_Draft],
    edges: Sequence[tuple[str, str]],
    queues: dict[str, list[_Draft]],
    fan_out: bool,
) -> tuple[Step, ...]:
    """Gate, timers that stagger the streams, then the kernels with this rank's own times."""
    steps: list[Step] = [
        Launch(
            _op("gate", "main", spin(1, GATE_NS, smem_bytes=SMALL_BYTES), exchange="gate"), "cpp"
        ),
        Record("gate", "main"),
    ]
    if not fan_out:
        timer = spin(1, MAIN_TIMER_NS, smem_bytes=SMALL_BYTES)
        steps.append(Launch(_op("main.timer", "main", timer), "cpp"))
    released_by = "gate"
    for stream in [name for name, queue in queues.items() if queue and name != "main"]:
        timer = spin(1, rng.randint(20, 300) * US, smem_bytes=SMALL_BYTES)
        name = f"{stream}.timer"
        steps += [Wait(released_by, stream), Launch(_op(name, stream, timer), "cpp")]
        if not fan_out:
            steps.append(Record(name, stream))
            released_by = name
    recorded = {producer for producer, _ in edges}
    for draft in order:
        for producer, consumer in edges:
            if consumer == draft.name:
                steps.append(Wait(producer, draft.stream))
        own = 1.0 if draft.exchange else rng.uniform(0.7, 1.3)
        work = spin(draft.ctas, int(draft.cta_ns * own), smem_bytes=draft.smem_bytes)
        op = _op(draft.name, draft.stream, work, draft.grid, draft.name if draft.exchange else None)
        steps.append(Launch(op, "cpp"))
        if draft.name in recorded:
            steps.append(Record(draft.name, draft.stream))
    return tuple(steps)


def _op(
    name: str, stream: str, work: Work, grid: Grid | None = None, exchange: str | None = None
) -> Op:
    role: Role | None = "whole" if exchange else None
    return Op(name, stream, work, grid or Grid(), exchange=exchange, role=role)


def scaled(program: Program, factor: float) -> Program:
    """The same program with all CTA times but the gate's multiplied."""

    def step_scaled(step: Step) -> Step:
        if not isinstance(step, Launch) or step.op.name == "gate":
            return step
        w = step.op.work
        cta_ns = int(w.dim("cta_ns") * factor)
        work = spin(w.dim("ctas"), cta_ns, smem_bytes=w.dim("smem_bytes"))
        return replace(step, op=replace(step.op, work=work))

    classes = tuple(
        replace(cls, steps=tuple(step_scaled(step) for step in cls.steps))
        for cls in program.classes
    )
    return replace(program, classes=classes)
