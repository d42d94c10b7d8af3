"""One rank of a program as a grid: streams as columns, host order as rows, a mark at a fault.

step | host            | main            | comm
   0 | begin stage a.0 |                 |
   1 |                 | a.quant @112    |
>  2 |                 |                 | wait a.E
       ^ 'a.E' is never recorded
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schedules.lint import Finding
from schedules.program import Launch, Program, Record, Step, Wait
from schedules.text_step import HOST, short_line, step_line

CONTEXT = 4


def grid_view(
    program: Program,
    rank: int | None = None,
    *,
    mark: int | None = None,
    message: str = "",
    rows: range | None = None,
) -> str:
    """The grid of `rank` (None: the first one) as text lines.

    `mark` is the index of the step to point at, `message` what is written below it. `rows` limits the
    steps shown; what is left out is counted. KeyError when the program has no such rank, IndexError
    when the rank has no such step.
    """
    cls = program.rank_class(program.ranks[0] if rank is None else rank)
    if mark is not None and not 0 <= mark < len(cls.steps):
        raise IndexError(f"rank {cls.ranks[0]} has {len(cls.steps)} steps, no step {mark}")
    shown = [index for index in rows or range(len(cls.steps)) if 0 <= index < len(cls.steps)]
    columns = _columns(program, cls.steps)
    cells = {index: _cell(cls.steps[index]) for index in shown}
    widths = [_width(column, cells.values()) for column in columns]
    lines = [_line("step", columns, widths)]
    if shown and shown[0] > 0:
        lines.append(f"       ... {shown[0]} steps above")
    for index in shown:
        column, text = cells[index]
        texts = [text if column == name else "" for name in columns]
        lines.append(_line(f"{'>' if index == mark else ' '}{index:5d}", texts, widths))
        if index == mark and message:
            indent = 9 + sum(width + 3 for width in widths[: columns.index(column)])
            lines.append(" " * indent + f"^ {message}")
    if shown and shown[-1] < len(cls.steps) - 1:
        lines.append(f"       ... {len(cls.steps) - 1 - shown[-1]} steps below")
    return "\n".join(lines) + "\n"


def show_finding(program: Program, finding: Finding, context: int = CONTEXT) -> str:
    """A finding with the grid around its step; without a step just the finding."""
    if finding.rank is None or finding.step is None or finding.rank not in program.ranks:
        return f"{finding}\n"
    if finding.step >= len(program.rank_class(finding.rank).steps):  # the rank is in two classes
        return f"{finding}\n"
    head = f"{finding.severity} [{finding.rule}] rank {finding.rank}"
    rows = range(finding.step - context, finding.step + context + 1)
    grid = grid_view(program, finding.rank, mark=finding.step, message=finding.message, rows=rows)
    return f"{head}\n{grid}"


def _columns(program: Program, steps: Sequence[Step]) -> list[str]:
    """The host, then the program's streams that are used, then streams that it does not declare."""
    used = dict.fromkeys(_cell(step)[0] for step in steps)
    declared = [stream.name for stream in program.streams if stream.name in used]
    others = [name for name in used if name not in declared and name != HOST]
    return [HOST, *declared, *others]


def _cell(step: Step) -> tuple[str, str]:
    """The column of a step and what stands there."""
    if isinstance(step, Launch):
        stream, line = step.op.stream, short_line(step)
    elif isinstance(step, Record | Wait):
        stream, line = step.stream, step_line(step)
    else:
        stream, line = HOST, step_line(step)
    return stream, line.partition(": ")[2]


def _width(column: str, cells: Iterable[tuple[str, str]]) -> int:
    return max([len(column), *(len(text) for name, text in cells if name == column)])


def _line(head: str, texts: Sequence[str], widths: Sequence[int]) -> str:
    padded = [text.ljust(width) for text, width in zip(texts, widths, strict=True)]
    return " | ".join([head.rjust(6), *padded]).rstrip()
