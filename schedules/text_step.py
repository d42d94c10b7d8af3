"""One step as one line of text, and back: `main: L3.down @116 +L3.sig`, `alt: wait E0`.

    line    = stream ":" action
    action  = "rec" event | "wait" event | launch
            | (stream "host")  "wait" event | "work" kind | ("begin" | "end") region name
    launch  = op ["@" sms] ["+" signal] ["?" signal] {attribute}
    region  = "graph" | "call" | "stage"

Attributes carry the other fields of an op (`layer=3 child=a reads=x,w exchange=L3.dispatch
role=send kind=static gang limited_by=green_context host=cpp`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from models.work import GridKind, LimitedBy
from schedules.caret import allowed
from schedules.program import (
    Begin,
    End,
    HostWait,
    HostWork,
    Launch,
    Record,
    RegionKind,
    Role,
    Step,
    Wait,
)
from schedules.tokens import Cursor, quoted

HOST = "host"
VERBS = ("rec", "wait", "work", "begin", "end")
REGIONS = get_args(RegionKind)


@dataclass(slots=True)
class LaunchLine:
    """A launch as written: nothing but what stands on the line. `sms` may be a name there."""

    stream: str
    op: str
    column: int
    sms: int | str | None = None
    raises: str | None = None
    polls: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_line(cursor: Cursor) -> Step | LaunchLine:
    """The step of one line; a launch is returned as written, its work being elsewhere."""
    stream = cursor.take("word", "a stream")
    cursor.take(":", "':' after the stream")
    verb = cursor.here
    on_host = stream.value == HOST and not stream.quoted
    if verb.kind == "word" and verb.value in VERBS and not verb.quoted:
        step = _host(cursor) if on_host else _event(cursor, stream.value)
        cursor.finish()
        return step
    if on_host:
        cursor.fail(f"the host knows {', '.join(VERBS[1:])}, not {verb.value!r}")
    return _launch(cursor, stream.value)


def _event(cursor: Cursor, stream: str) -> Step:
    verb = cursor.one_of(("rec", "wait"), "action of a stream")
    event = cursor.word("an event")
    return Record(event, stream) if verb == "rec" else Wait(event, stream)


def _host(cursor: Cursor) -> Step:
    verb = cursor.one_of(VERBS[1:], "action of the host")
    if verb == "wait":
        return HostWait(cursor.word("an event"))
    if verb == "work":
        return HostWork(cursor.word("a kind of work"))
    region = cast(RegionKind, cursor.one_of(REGIONS, "region"))
    name = cursor.word("the region's name")
    return Begin(region, name) if verb == "begin" else End(region, name)


def _launch(cursor: Cursor, stream: str) -> LaunchLine:
    column = cursor.here.column
    line = LaunchLine(stream, cursor.word("an op"), column)
    while not cursor.at_end:
        if cursor.accept("@"):
            named = cursor.here.kind == "word"
            line.sms = cursor.word("SMs") if named else cursor.integer("a number of SMs")
        elif cursor.accept("+"):
            line.raises = cursor.word("a signal")
        elif cursor.accept("?"):
            line.polls = cursor.word("a signal")
        elif cursor.accept("("):
            line.notes.append(_note(cursor))
        else:
            _attribute(cursor, line.attributes)
    return line


def _note(cursor: Cursor) -> str:
    words = []
    while not cursor.accept(")"):
        if cursor.at_end:
            cursor.fail("expected ')'")
        words.append(str(cursor.take(cursor.here.kind, "a note").value))
    return " ".join(words)


def _attribute(cursor: Cursor, found: dict[str, Any]) -> None:
    column = cursor.here.column
    name = cursor.word("an attribute")
    if name not in ATTRIBUTES:
        cursor.fail(f"unknown attribute {name!r}{allowed(name, ATTRIBUTES)}", column)
    if name in found:
        cursor.fail(f"attribute {name!r} stands twice", column)
    if name == "gang":
        found[name] = True
        return
    cursor.take("=", f"'=' after {name!r}")
    found[name] = ATTRIBUTES[name](cursor)


def _choice(choices: tuple[str, ...]) -> Callable[[Cursor], Any]:
    return lambda cursor: cursor.one_of(choices, "value")


def _word(cursor: Cursor) -> Any:
    return cursor.word("a name")


def _int(cursor: Cursor) -> Any:
    return cursor.integer("an integer")


def _words(cursor: Cursor) -> Any:
    return cursor.items(lambda: cursor.word("a name"))


ATTRIBUTES: dict[str, Callable[[Cursor], Any]] = {
    "kind": _choice(get_args(GridKind)),
    "limited_by": _choice(get_args(LimitedBy)),
    "gang": lambda cursor: True,
    "reads": _words,
    "writes": _words,
    "exchange": _word,
    "role": _choice(get_args(Role)),
    "layer": _int,
    "child": _word,
    "stage": _int,
    "host": _word,
    "work": _int,
}
GRID_ATTRIBUTES = ("kind", "limited_by", "gang")
OP_ATTRIBUTES = ("reads", "writes", "exchange", "role", "layer", "child", "stage")


def step_line(step: Step) -> str:
    """The line of a step that launches nothing."""
    match step:
        case Record(event, stream):
            return f"{quoted(stream, (HOST,))}: rec {quoted(event)}"
        case Wait(event, stream):
            return f"{quoted(stream, (HOST,))}: wait {quoted(event)}"
        case HostWait(event):
            return f"{HOST}: wait {quoted(event)}"
        case HostWork(kind):
            return f"{HOST}: work {quoted(kind)}"
        case Begin(kind, name) | End(kind, name):
            verb = "begin" if isinstance(step, Begin) else "end"
            return f"{HOST}: {verb} {kind} {quoted(name)}"
        case Launch():
            return short_line(step)


def short_line(launch: Launch) -> str:
    """The line of a launch with what a reader needs: stream, op, SM budget, signals."""
    op = launch.op
    words = [f"{quoted(op.stream, (HOST,))}: {quoted(op.name, VERBS)}"]
    if op.grid.sm_budget is not None:
        words.append(f"@{op.grid.sm_budget}")
    if op.raises is not None:
        words.append(f"+{quoted(op.raises)}")
    if op.polls is not None:
        words.append(f"?{quoted(op.polls)}")
    return " ".join(words)


def full_line(launch: Launch, work: int) -> str:
    """The line of a launch with every field; `work` is the index of its work in the table."""
    words = [short_line(launch), f"work={work}"]
    for owner, names in ((launch.op.grid, GRID_ATTRIBUTES), (launch.op, OP_ATTRIBUTES)):
        defaults = type(owner).__dataclass_fields__
        for name in names:
            value = getattr(owner, name)
            if value != defaults[name].default:
                words.append("gang" if name == "gang" else f"{name}={_written(value)}")
    if launch.host_class != Launch.__dataclass_fields__["host_class"].default:
        words.append(f"host={quoted(launch.host_class)}")
    return " ".join(words)


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(quoted(item) for item in value)
    return str(value) if isinstance(value, int) else quoted(value)
