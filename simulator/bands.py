"""The band of a timeline: what the phase between ranks does to it (rule 9).

An overlapped loop without SM budgets can lock into more than one pattern, and which one depends on
which rank comes first. So classes of equal ranks are split, every part starts at an offset of its
own, and the spread over several seeds is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from models.machine import Machine
from schedules.program import Program, RankClass
from simulator.engine import host_starts, simulate


@dataclass(frozen=True, slots=True)
class Band:
    """Makespans in ns, of which the first is without an offset; `seeds` gave the others."""

    makespans_ns: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def low_ns(self) -> int:
        """The least."""
        return min(self.makespans_ns)

    @property
    def high_ns(self) -> int:
        """The most."""
        return max(self.makespans_ns)


def band(
    program: Program,
    machine: Machine,
    *,
    skew_ns: int,
    seeds: Iterable[int] = range(4),
    parts: int = 2,
    in_phase_ns: int | None = None,
    member: Callable[[int], Machine] | None = None,
) -> Band:
    """Makespans of the folded program with every class in `parts`, each part's host starting up to
    `skew_ns` late. Makespans count from the last host's start; `in_phase_ns` is the one without an
    offset, where that is known. `member` is the machine of a seed, `machine` itself if not given."""
    if in_phase_ns is None:
        in_phase_ns = simulate(program, machine, counters=False).makespan_ns
    apart = split_classes(program, parts)
    chosen = tuple(seeds)
    makespans = [in_phase_ns]
    ranks = [cls.ranks[0] for cls in apart.classes]
    for seed in chosen:
        on = machine if member is None else member(seed)
        timeline = simulate(apart, on, skew_ns=skew_ns, seed=seed, counters=False)
        last = max(host_starts(ranks, skew_ns, seed).values(), default=0)
        makespans.append(timeline.makespan_ns - last)
    return Band(tuple(makespans), chosen)


def split_classes(program: Program, parts: int) -> Program:
    """The same program with every class of equal ranks in up to `parts` classes of neighbours."""
    classes: list[RankClass] = []
    for cls in program.classes:
        count = min(parts, len(cls.ranks))
        size = -(-len(cls.ranks) // count)
        for start in range(0, len(cls.ranks), size):
            classes.append(replace(cls, ranks=cls.ranks[start : start + size]))
    return replace(program, classes=tuple(classes))
