"""Programs with one ordering step taken out, and the delays that make its absence felt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from schedules.program import HostWait, Launch, Program, RankClass, Record, Step, Wait


@dataclass(frozen=True)
class Deletion:
    """A program without one record, wait or host wait of one class. `delayed` are the ops that the
    deleted step stood for: those on the stream of its record."""

    step: Step
    ranks: tuple[int, ...]
    program: Program
    delayed: frozenset[str]


def deletions(program: Program) -> Iterator[Deletion]:
    """Every program that lacks exactly one ordering step of one class."""
    for position, cls in enumerate(program.classes):
        for index, step in enumerate(cls.steps):
            if isinstance(step, Record | Wait | HostWait):
                shorter = replace(cls, steps=cls.steps[:index] + cls.steps[index + 1 :])
                classes = list(program.classes)
                classes[position] = shorter
                yield Deletion(
                    step,
                    cls.ranks,
                    replace(program, classes=tuple(classes)),
                    _behind(cls, step, index),
                )


def _behind(cls: RankClass, step: Record | Wait | HostWait, index: int) -> frozenset[str]:
    """Ops that precede the event's record on its stream."""
    records = [
        (at, other.stream)
        for at, other in enumerate(cls.steps)
        if isinstance(other, Record) and other.event == step.event and at <= index
    ]
    if not records:
        return frozenset()
    at, stream = records[-1]
    return frozenset(
        other.op.name
        for other in cls.steps[:at]
        if isinstance(other, Launch) and other.op.stream == stream
    )
