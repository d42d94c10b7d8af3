"""Programs as text, and back without loss.

A header names the program, its streams, distinct works, distinct traffic matrices, exchanges and
signals; then, for each class of ranks, its buffers and one line a step in host order:

    program tbo
    stream main
    stream comm priority=-1
    work 0 gemm dims(k=16,m=4,n=8) flops(fp8=1024) read_bytes=192
    bytes 0 [0,7] [7,0]
    exchange L3.dispatch low_latency ranks=0..1 bytes=0 buffer=ll.0
    signal L3.down blocks=32 threshold=4 order=arrival
    ranks 0..1
    buffer L3.x 64
    main: L3.gemm1 @116 +L3.down work=0 reads=L3.x layer=3
    main: rec E0

The lines of steps are those of `schedules.text_step`; `short_text` prints them alone, without what
only a machine needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from models.work import Work
from schedules.program import Exchange, Launch, Program, Signal, Step
from schedules.table import Table
from schedules.text_read import parse_program
from schedules.text_step import full_line, short_line, step_line
from schedules.tokens import quoted

__all__ = ["format_program", "parse_program", "short_text"]

_WORK_SIZES = ("read_bytes", "write_bytes", "block_rows")


def format_program(program: Program) -> str:
    """The full text of a program; `parse_program` gives the same program back."""
    works, matrices = Table(), Table(by_identity=True)
    body = [_exchange_line(exchange, works, matrices) for exchange in program.exchanges]
    body += [_signal_line(signal) for signal in program.signals]
    for cls in program.classes:
        body.append("ranks " + _ranks(cls.ranks) if cls.ranks else "ranks")
        body += [f"buffer {quoted(buffer.name)} {buffer.nbytes}" for buffer in cls.buffers]
        for step in cls.steps:
            if isinstance(step, Launch):
                body.append(full_line(step, works.index(step.op.work)))
            else:
                body.append(step_line(step))
    head = [f"program {quoted(program.name)}"]
    for stream in program.streams:
        priority = f" priority={stream.priority}" if stream.priority else ""
        head.append(f"stream {quoted(stream.name)}{priority}")
    head += [_work_line(index, work) for index, work in enumerate(works.items)]
    for index, matrix in enumerate(matrices.items):
        rows = ["[" + ",".join(str(count) for count in row) + "]" for row in matrix]
        head.append(" ".join([f"bytes {index}", *rows]))
    return "\n".join([*head, *body]) + "\n"


def short_text(steps: tuple[Step, ...]) -> Iterator[str]:
    """The lines of steps as a user writes them: streams, ops, budgets, signals, events."""
    for step in steps:
        yield short_line(step) if isinstance(step, Launch) else step_line(step)


def _work_line(index: int, work: Work) -> str:
    words = [f"work {index} {work.kind}"]
    for name, pairs in (("dims", work.dims), ("flops", work.flops)):
        if pairs:
            words.append(f"{name}({','.join(f'{quoted(key)}={value}' for key, value in pairs)})")
    words += [f"{name}={getattr(work, name)}" for name in _WORK_SIZES if getattr(work, name)]
    return " ".join(words)


def _exchange_line(exchange: Exchange, works: Table, matrices: Table) -> str:
    words = [f"exchange {quoted(exchange.name)} {exchange.family}"]
    if exchange.ranks:
        words.append(f"ranks={_ranks(exchange.ranks)}")
    words.append(f"bytes={matrices.index(exchange.bytes)}")
    if exchange.buffer is not None:
        words.append(f"buffer={quoted(exchange.buffer)}")
    if exchange.flight is not None:
        words.append(f"flight={works.index(exchange.flight)}")
    return " ".join(words)


def _signal_line(signal: Signal) -> str:
    tail = "" if signal.order == "index" else f" order={signal.order}"
    return f"signal {quoted(signal.name)} blocks={signal.blocks} threshold={signal.threshold}{tail}"


def _ranks(ranks: tuple[int, ...]) -> str:
    """Ranks with ascending runs shortened: 0..3,8."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1 and rank > 0:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}..{high}" for low, high in runs)
