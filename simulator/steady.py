"""Identical layers: simulate until the pattern repeats, then extrapolate (rule 9).

A step of dozens of MoE layers is a few that differ (the pipeline fills, the pipeline drains) and many
that repeat to the ns. Tests hold the extrapolated step equal to the full one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from models.machine import Machine
from models.power import under_loads
from models.work import EXCHANGE_KINDS
from schedules.program import Program
from schedules.timeline import Timeline
from simulator.engine import runner, simulate
from simulator.load import (
    DIGITS,
    Loads,
    as_loaded,
    bound_works,
    busy_ns,
    by_rank,
    loads_of,
    of_all,
    settle,
    settled,
)

_LONGEST_PERIOD = 4
_SAME = 0.5 * 10**-DIGITS  # Loads of a step have settled when their digits are the same.


@dataclass(frozen=True, slots=True)
class Pattern:
    """`layers` consecutive layers that take `ns` together, again and again."""

    layers: int
    ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step of `layers` MoE layers that takes `ns`; `timeline` holds its first `simulated` ones, and
    `machine` is the one that it was simulated on, under the loads of the whole step where it has any.
    `load_off` is by how much the load of a rank differs from the one that it was simulated under."""

    timeline: Timeline
    layers: int
    simulated: int
    ns: int
    machine: Machine
    load_off: float = 0.0


def find_pattern(timeline: Timeline) -> Pattern | None:
    """The shortest pattern of layers that has been seen twice in a row; None while there is none.

    Layers are compared by the time between their ends on the rank that ends last. The last layer is
    left out, since with nothing behind it the pipeline drains.
    """
    ends = _moe_layer_ends(timeline)
    times = [later - sooner for sooner, later in pairwise(ends[:-1])]
    for layers in range(1, _LONGEST_PERIOD + 1):
        if len(times) >= 2 * layers and times[-layers:] == times[-2 * layers : -layers]:
            return Pattern(layers, sum(times[-layers:]))
    return None


def extrapolate(timeline: Timeline, more_layers: int) -> int:
    """Makespan in ns with `more_layers` more MoE layers; ValueError when the pattern has not repeated
    or `more_layers` is no multiple of it."""
    pattern = find_pattern(timeline)
    if pattern is None:
        raise ValueError(f"the layers of {timeline.program!r} do not repeat yet")
    periods, rest = divmod(more_layers, pattern.layers)
    if rest or more_layers < 0:
        raise ValueError(f"{more_layers} more layers are no multiple of {pattern.layers}")
    return timeline.makespan_ns + periods * pattern.ns


def quick_step_ns(
    build: Callable[[int], Program], machine: Machine, layers: int, *, few: int = 4
) -> int:
    """A step of `layers` MoE layers in ns for one question among many: `few` layers, twice as many if
    they do not repeat, and the mean of the later ones for all others."""
    if layers <= 2 * few:
        return simulate(build(layers), machine, counters=False).makespan_ns
    first = simulate(build(few), machine, counters=False)
    pattern = find_pattern(first)
    if pattern is not None and (layers - few) % pattern.layers == 0:
        return extrapolate(first, layers - few)
    guess = dict(as_loaded(build(few), machine, first).loads)
    second = simulate(build(2 * few), machine, counters=False, guess=guess)
    grown = second.makespan_ns - first.makespan_ns
    return second.makespan_ns + round(grown * (layers - 2 * few) / few)


def simulate_step(
    build: Callable[[int], Program],
    machine: Machine,
    layers: int,
    *,
    fold: bool = True,
    skew_ns: int | None = None,
    seed: int = 0,
) -> Step:
    """A step of `layers` MoE layers; `build` gives the program of any number of them.

    Simulates four layers, then two more at a time until the pattern repeats; all of them if it never
    does. At a power limit layers are as loaded as in the whole step, of which dense layers are less.
    """

    def once(at: Machine) -> Step:
        return _step(build, at, layers, fold=fold, skew_ns=skew_ns, seed=seed)

    def loads(step: Step) -> Loads:
        return _loads(build(step.simulated), machine, step)

    step = once(machine)
    if machine.power is None or machine.loads or step.simulated == layers:
        return step
    step, off = settle(lambda at: once(under_loads(machine, at)), loads, loads(step), _SAME)
    return replace(step, load_off=off)


def _loads(program: Program, machine: Machine, step: Step) -> Loads:
    """The load of each rank in the whole step, of which the simulated layers but the last repeat."""
    law, pattern = machine.power, find_pattern(step.timeline)
    if law is None:
        raise ValueError(f"machine {machine.name!r} has no power law")
    works = bound_works(program, machine)
    if pattern is None:
        return loads_of(program, step.timeline, works, law)
    own = step.timeline.makespan_ns
    periods = (step.layers - step.simulated) // pattern.layers
    last = max(span.layer for span in step.timeline.spans)
    again = range(last - pattern.layers, last)
    inside = by_rank(
        replace(step.timeline, spans=tuple(s for s in step.timeline.spans if s.layer in again))
    )
    loads = loads_of(program, step.timeline, works, law)
    return of_all(
        program,
        {
            rank: (loads[rank] * own + periods * busy_ns(spans, works, law)) / step.ns
            for rank, spans in inside.items()
        },
    )


def _step(
    build: Callable[[int], Program],
    machine: Machine,
    layers: int,
    *,
    fold: bool,
    skew_ns: int | None,
    seed: int,
) -> Step:
    simulated, guess = min(4, layers), dict[int, float]()
    while True:
        program = build(simulated)
        run = runner(program, fold=fold, skew_ns=skew_ns, seed=seed)
        timeline, off = settled(program, machine, run, guess)
        if simulated == layers:
            return Step(timeline, layers, simulated, timeline.makespan_ns, machine, off)
        pattern = find_pattern(timeline)
        if pattern is not None and (layers - simulated) % pattern.layers == 0:
            ns = extrapolate(timeline, layers - simulated)
            return Step(timeline, layers, simulated, ns, machine)
        guess = dict(as_loaded(program, machine, timeline).loads)
        simulated = min(simulated + 2, layers)


def _moe_layer_ends(timeline: Timeline) -> list[int]:
    """Ends of the layers that have a kernel of an exchange (or of all, if none has), in order."""
    ends: dict[int, int] = {}
    moe = set()
    for span in timeline.spans:
        if span.layer >= 0:
            ends[span.layer] = max(ends.get(span.layer, 0), span.end_ns)
            if span.kind in EXCHANGE_KINDS:
                moe.add(span.layer)
    return [ends[layer] for layer in sorted(moe or ends)]
