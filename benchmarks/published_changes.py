"""What the experiments of `benchmarks.published_causes` change on a machine or in a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.pairs_causes import blocks
from benchmarks.published_classes import REST, class_of
from models.machine import Cost, Costs, Footprint, Machine
from models.work import Grid, Work
from schedules.program import Launch, Program, Step

# One layer of the off rows in lines of one's own: the order of that version, streams as there.
_ASKED = ("main: {0}", "main: rec {1}.ready", "host: begin call deepep.{1}", "comm: wait {1}.ready")
_COUNTED = ("comm: rec dispatch.counts", "host: wait dispatch.counts")
_DONE = ("comm: {1}.transfer", "comm: rec {1}.done", "host: end call deepep.{1}", "main: wait {1}.done")  # fmt: skip
_DISPATCH = (*_ASKED, "comm: layout", "comm: {1}.notify", *_COUNTED, *_DONE)
_COMBINE = (*_ASKED, "comm: {1}.notify", *_DONE)


@dataclass(frozen=True)
class Changed:
    """Costs whose times alone are multiplied, and footprints that are of other costs (`like`, but for the
    number of CTAs) or, with `tiles`, say how many blocks a static kernel computes."""

    below: Costs
    times: Callable[[Work], float] = lambda work: 1.0
    tiles: bool = False
    like: Costs | None = None

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """See `models.machine.Costs`."""
        cost = self.below.alone(work, grid, sms)
        return replace(cost, ns=max(1, round(cost.ns * self.times(work))))

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """See `models.machine.Costs`."""
        found = self.below.footprint(work, grid)
        if self.like is not None:
            return replace(self.like.footprint(work, grid), ctas=found.ctas)
        count = blocks(work) if self.tiles and grid.kind == "static" else 0
        return replace(found, tiles=count) if count > found.ctas else found


def longer(machine: Machine, program: Program, factors: Mapping[str, float], *, tiles: bool = False) -> Machine:  # fmt: skip
    """The machine on which the program's kernels and flights take so many times their time, by
    published class."""
    ops = (op for steps in program.classes for op in steps.ops)
    classes = {op.work: class_of(op.work.kind, op.name) for op in ops}
    for exchange in program.exchanges:
        if exchange.flight is not None:
            classes[exchange.flight] = class_of("flight", exchange.name)

    def times(work: Work) -> float:
        return factors.get(classes.get(work, REST), 1.0)

    return replace(machine, costs=Changed(machine.costs, times, tiles))


def without_budget(program: Program, kinds: Sequence[str]) -> Program:
    """The program with no SM budget for kernels of these kinds."""

    def freed(item: Step) -> Step:
        if not isinstance(item, Launch) or item.op.work.kind not in kinds:
            return item
        return replace(item, op=replace(item.op, grid=replace(item.op.grid, sm_budget=None)))

    classes = (replace(each, steps=tuple(map(freed, each.steps))) for each in program.classes)
    return replace(program, classes=tuple(classes))


def low_latency_lines() -> str:
    """A decode layer without two-batch overlap: one stream, the shared expert before the dispatch."""
    names = ("P", "Q", "C", "M", "G", "S", "T", "Da", "Db", "X", "Ca", "Cb", "O", "Z")
    return "\n".join(f"main: {name}" for name in names)


def normal_lines() -> str:
    """A prefill layer without two-batch overlap: the exchanges on their own stream, all in turn."""
    lines = [f"main: {name}" for name in ("P", "Q", "C", "M", "G", "S", "T")]
    lines += [line.format("Da", "dispatch") for line in _DISPATCH]
    lines += ["main: X", *(line.format("Ca", "combine") for line in _COMBINE)]
    return "\n".join((*lines, "main: O", "main: Z"))
