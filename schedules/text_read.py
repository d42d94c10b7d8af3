"""Reading the full text of a program (`schedules.text` describes it)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

from models.work import WORK_KINDS, Grid, Work
from schedules.caret import GrammarError
from schedules.program import (
    Buffer,
    Exchange,
    Family,
    Launch,
    Op,
    Program,
    RankClass,
    Signal,
    Step,
    Stream,
)
from schedules.text_step import GRID_ATTRIBUTES, OP_ATTRIBUTES, LaunchLine, read_line
from schedules.tokens import Cursor

MAX_RANKS = 65536
_WORK_SIZES = ("read_bytes", "write_bytes", "block_rows")
_ORDERS = ("index", "arrival")


def parse_program(text: str) -> Program:
    """The program of a full text. GrammarError shows the line with a mark under the fault."""
    reader = _Reader()
    for number, source in enumerate(text.split("\n"), start=1):
        cursor = Cursor(source, number)
        if cursor.at_end:
            continue
        if cursor.follows(":"):
            reader.step(cursor)
        else:
            keyword = cursor.one_of(_DECLARATIONS, "declaration")
            getattr(reader, keyword)(cursor)
        cursor.finish()
    return reader.program_read()


_DECLARATIONS = ("program", "stream", "work", "bytes", "exchange", "signal", "ranks", "buffer")


@dataclass
class _Class:
    ranks: tuple[int, ...]
    buffers: list[Buffer] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


@dataclass
class _Reader:
    """What has been read so far; one method for each declaration, called by its keyword."""

    name: str | None = None
    streams: list[Stream] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    matrices: list[Any] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    classes: list[_Class] = field(default_factory=list)

    def program_read(self) -> Program:
        classes = tuple(
            RankClass(cls.ranks, tuple(cls.steps), tuple(cls.buffers)) for cls in self.classes
        )
        streams, exchanges = tuple(self.streams), tuple(self.exchanges)
        if self.name is None:
            raise GrammarError("the line `program NAME` is missing", "", 1, 1)
        return Program(self.name, streams, classes, exchanges, tuple(self.signals))

    def program(self, cursor: Cursor) -> None:
        column = cursor.here.column
        if self.name is not None:
            cursor.fail("a text holds one program", column)
        self.name = cursor.word("the program's name")

    def stream(self, cursor: Cursor) -> None:
        self.streams.append(read_stream(cursor))

    def work(self, cursor: Cursor) -> None:
        self._number(cursor, self.works, "work")
        kind = cursor.one_of(WORK_KINDS, "work kind")
        groups: dict[str, Any] = {}
        while cursor.here.value in ("dims", "flops") and cursor.follows("("):
            name = cursor.word("a group")
            groups[name] = _group(cursor)
        sizes = _keyed(cursor, dict.fromkeys(_WORK_SIZES, _integer))
        self.works.append(Work(kind, groups.get("dims", ()), groups.get("flops", ()), **sizes))

    def bytes(self, cursor: Cursor) -> None:
        self._number(cursor, self.matrices, "matrix")
        rows = []
        while cursor.accept("["):
            row: tuple[int, ...] = ()
            if cursor.here.kind != "]":
                row = cursor.items(lambda: cursor.integer("bytes"))
            cursor.take("]", "']'")
            rows.append(row)
        self.matrices.append(tuple(rows))

    def exchange(self, cursor: Cursor) -> None:
        name = cursor.word("the exchange's name")
        family = cast(Family, cursor.one_of(get_args(Family), "family"))
        found = _keyed(
            cursor,
            {
                "ranks": _read_ranks,
                "bytes": lambda at: _entry(at, self.matrices, "matrix"),
                "buffer": lambda at: at.word("a buffer"),
                "flight": lambda at: _entry(at, self.works, "work"),
            },
        )
        if "bytes" not in found:
            cursor.fail("an exchange needs bytes=")
        self.exchanges.append(Exchange(name, family, found.pop("ranks", ()), **found))

    def signal(self, cursor: Cursor) -> None:
        self.signals.append(read_signal(cursor))

    def ranks(self, cursor: Cursor) -> None:
        self.classes.append(_Class(() if cursor.at_end else _read_ranks(cursor)))

    def buffer(self, cursor: Cursor) -> None:
        owner = self._owner(cursor)
        owner.buffers.append(Buffer(cursor.word("the buffer's name"), cursor.integer("bytes")))

    def step(self, cursor: Cursor) -> None:
        owner = self._owner(cursor)
        line = read_line(cursor)
        owner.steps.append(self._launch(cursor, line) if isinstance(line, LaunchLine) else line)

    def _launch(self, cursor: Cursor, line: LaunchLine) -> Launch:
        index = line.attributes.get("work", -1)
        if not 0 <= index < len(self.works):
            cursor.fail(f"{line.op!r} needs work= with the number of a work above", line.column)
        if line.notes or isinstance(line.sms, str):
            cursor.fail("a full text has numbers of SMs and no remarks", line.column)
        given = line.attributes
        grid = Grid(line.sms, **{key: given[key] for key in GRID_ATTRIBUTES if key in given})
        fields = {key: given[key] for key in OP_ATTRIBUTES if key in given}
        work = self.works[index]
        op = Op(line.op, line.stream, work, grid, raises=line.raises, polls=line.polls, **fields)
        return Launch(op, given["host"]) if "host" in given else Launch(op)

    def _owner(self, cursor: Cursor) -> _Class:
        if not self.classes:
            cursor.fail("steps and buffers stand below a line `ranks ...`")
        return self.classes[-1]

    def _number(self, cursor: Cursor, items: list[Any], what: str) -> None:
        column = cursor.here.column
        if cursor.integer(f"the {what}'s number") != len(items):
            cursor.fail(f"the next {what} has number {len(items)}", column)


def read_stream(cursor: Cursor) -> Stream:
    """The rest of `stream NAME [priority=N]`."""
    stream = Stream(cursor.word("the stream's name"))
    priority = _keyed(cursor, {"priority": _integer}).get("priority", stream.priority)
    return replace(stream, priority=priority)


def read_signal(cursor: Cursor) -> Signal:
    """The rest of `signal NAME blocks=N threshold=N [order=index|arrival]`."""
    name = cursor.word("the signal's name")
    found = _keyed(cursor, {"blocks": _integer, "threshold": _integer, "order": _order})
    for key in ("blocks", "threshold"):
        if key not in found:
            cursor.fail(f"a signal needs {key}=")
    return Signal(name, **found)


def _keyed(cursor: Cursor, readers: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while not cursor.at_end:
        column = cursor.here.column
        key = cursor.one_of(readers, "key")
        if key in found:
            cursor.fail(f"{key!r} stands twice", column)
        cursor.take("=", f"'=' after {key!r}")
        found[key] = readers[key](cursor)
    return found


def _group(cursor: Cursor) -> tuple[tuple[str, int], ...]:
    def pair() -> tuple[str, int]:
        key = cursor.word("a name")
        cursor.take("=", "'='")
        return key, cursor.integer("an integer")

    cursor.take("(", "'('")
    pairs = cursor.items(pair)
    cursor.take(")", "')'")
    return pairs


def _entry(cursor: Cursor, items: list[Any], what: str) -> Any:
    column = cursor.here.column
    index = cursor.integer(f"the number of a {what}")
    if not 0 <= index < len(items):
        cursor.fail(f"there is no {what} {index} above", column)
    return items[index]


def _read_ranks(cursor: Cursor) -> tuple[int, ...]:
    def run() -> range:
        if cursor.here.kind == "range":
            column = cursor.here.column
            low, high = cursor.take("range", "ranks").value
            if not low <= high < low + MAX_RANKS:
                cursor.fail(f"a range has 1 to {MAX_RANKS} ranks", column)
            return range(low, high + 1)
        rank = cursor.integer("a rank")
        return range(rank, rank + 1)

    return tuple(rank for ranks in cursor.items(run) for rank in ranks)


def _integer(cursor: Cursor) -> int:
    return cursor.integer("an integer")


def _order(cursor: Cursor) -> str:
    return cursor.one_of(_ORDERS, "order")
