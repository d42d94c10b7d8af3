"""Events: recorded once, before they are waited for, and before the other child's work."""

from __future__ import annotations

from collections.abc import Iterator

from schedules.lint.finding import Finding, finding
from schedules.program import Begin, End, HostWait, Launch, RankClass, Record, Wait


def event_findings(cls: RankClass) -> Iterator[Finding]:
    """Waits for events that are recorded never, later, or twice; events that nobody waits for;
    records made after the yield."""
    rank = cls.ranks[0] if cls.ranks else None
    records: dict[str, list[int]] = {}
    for index, step in enumerate(cls.steps):
        if isinstance(step, Record):
            records.setdefault(step.event, []).append(index)
    for index, step in enumerate(cls.steps):
        if not isinstance(step, Wait | HostWait):
            continue
        waiter = "the host" if isinstance(step, HostWait) else f"stream {step.stream}"
        found = records.get(step.event)
        if found is None:
            message = f"{waiter} waits for {step.event!r}, which is never recorded"
            yield finding("never-recorded", message, rank, index)
        elif found[0] > index:
            message = f"{waiter} waits for {step.event!r}, recorded only in step {found[0]}"
            yield finding("recorded-later", message, rank, index)
    awaited = {step.event for step in cls.steps if isinstance(step, Wait | HostWait)}
    for event, found in records.items():
        if event not in awaited:
            message = f"{event!r} is recorded, but nobody waits for it"
            yield finding("never-awaited", message, rank, found[0])
        for index in found[1:]:
            message = f"{event!r} is recorded in step {found[0]} already"
            yield finding("recorded-twice", message, rank, index)
    yield from _late_records(cls, rank)


def _late_records(cls: RankClass, rank: int | None) -> Iterator[Finding]:
    """A record belongs to the child of its stage; without stage marks, to the child of the op that
    its wait holds back. It captures all that the stream holds: when the last of that is the other
    child's, launched between the yield and the record, this child waits for it too."""
    owners = _owners(cls)
    stage_child = ""
    last: dict[str, Launch] = {}
    seen: dict[str, set[str]] = {}
    for index, step in enumerate(cls.steps):
        if isinstance(step, Begin) and step.kind == "stage":
            stage_child = _child_of(step.name)
        elif isinstance(step, End) and step.kind == "stage":
            stage_child = ""
        elif isinstance(step, Launch):
            last[step.op.stream] = step
            seen.setdefault(step.op.stream, set()).add(step.op.child)
        elif isinstance(step, Record) and step.stream in last:
            child = stage_child or owners.get(step.event, "")
            tail = last[step.stream].op
            if child and tail.child not in ("", child) and child in seen[step.stream]:
                message = (
                    f"{step.event!r} of child {child} also captures {tail.name}, which child "
                    f"{tail.child} launched on {step.stream} since the yield"
                )
                yield finding("record-after-yield", message, rank, index)


def _owners(cls: RankClass) -> dict[str, str]:
    """The child of the first op that each event's wait holds back."""
    waiting: dict[str, list[str]] = {}
    owners: dict[str, str] = {}
    for step in cls.steps:
        if isinstance(step, Wait):
            waiting.setdefault(step.stream, []).append(step.event)
        elif isinstance(step, Launch):
            for event in waiting.pop(step.op.stream, ()):
                owners.setdefault(event, step.op.child)
    return owners


def _child_of(stage: str) -> str:
    """The child of a stage's name, `a` of `a.3`; "" when the stage has none."""
    head, dot, _ = stage.partition(".")
    return head if dot else ""
