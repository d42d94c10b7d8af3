"""What a kernel has to do, in a line: the hover's `work`."""

from __future__ import annotations

from typing import Any

from models.work import Work
from schedules.program import Program
from schedules.timeline import Timeline
from viz.figures import gflop

_MIB = 2**20


def work_text(work: Work) -> str:
    """Sizes, floating-point operations by dtype and HBM bytes, without those that are nought."""
    parts = [" ".join(f"{name} {size:,}" for name, size in work.dims)]
    parts += [f"{gflop(count)} GFLOP {dtype}" for dtype, count in work.flops if count]
    if work.hbm_bytes:
        parts.append(f"HBM {work.hbm_bytes / _MIB:,.4g} MiB")
    return " · ".join(part for part in parts if part)


def work_columns(timeline: Timeline, program: Program | None) -> dict[str, Any]:
    """Columns `work`, a number of each span's text in `works` or -1; empty without the program.

    A flight's work is its exchange's. Ranks whose class another rank stands for have that one's.
    """
    if program is None:
        return {}
    texts: dict[Work, int] = {}
    flights = {exchange.name: exchange.flight for exchange in program.exchanges}
    of_rank = {
        rank: {op.name: op.work for op in cls.ops} for cls in program.classes for rank in cls.ranks
    }
    column = []
    for span in timeline.spans:
        if span.lane == "flight":
            work = flights.get(span.op.removesuffix(".flight"))
        else:
            work = of_rank.get(span.rank, {}).get(span.op)
        column.append(-1 if work is None else texts.setdefault(work, len(texts)))
    return {"work": column, "works": [work_text(work) for work in texts]}
