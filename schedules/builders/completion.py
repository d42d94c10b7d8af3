"""Completion signals of the down GEMM: how many, of how many rows each, complete at how many marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from schedules.builders.request import Request
from schedules.program import Launch, Op, Signal, Step

Grain = Literal["rows", "experts"]
DOWN_GEMM = "gemm2"


def with_grain(request: Request, steps: Iterable[Step], grain: Grain) -> tuple[Step, ...]:
    """The steps with the rows that one signal stands for in the work of the raising kernel."""
    rows = request.rules.sbo.block_rows if grain == "rows" else static_tokens(request)
    return tuple(
        replace(step, op=replace(step.op, work=replace(step.op.work, block_rows=rows)))
        if isinstance(step, Launch) and step.op.raises
        else step
        for step in steps
    )


def signals_of(
    request: Request,
    ops: Iterable[Op],
    rank: int,
    grain: Grain,
    declared: Sequence[Signal] = (),
    suffix: str = "",
) -> tuple[Signal, ...]:
    """A signal for every op of one rank that raises one: as declared, else that of the down GEMM.

    By *rows* every started run of `block_rows` rows of an expert is a block, complete when each
    column tile has added one; by *experts* every local expert is, complete when each compute SM has.
    ValueError for an undeclared signal of another kernel.
    """
    by_name = {signal.name: signal for signal in declared}
    found = []
    for op in ops:
        if op.raises is None:
            continue
        plain = op.raises.removeprefix(f"L{op.layer}.").removesuffix(suffix)
        if plain in by_name:
            found.append(replace(by_name[plain], name=op.raises))
        elif op.name.endswith(f".{DOWN_GEMM}"):
            found.append(_of_down_gemm(request, op, rank, grain))
        else:
            raise ValueError(
                f"signal {plain!r} of {op.name!r} needs a line 'signal {plain} blocks=N threshold=N'"
            )
    return tuple(found)


def _of_down_gemm(request: Request, op: Op, rank: int, grain: Grain) -> Signal:
    rows = request.dispatched.local_expert_tokens()[rank]
    if grain == "experts":
        sms = op.grid.enforced_budget or request.deployment.machine.num_sms
        return Signal(str(op.raises), len(rows), sms)
    block = request.rules.sbo.block_rows
    blocks = sum(-(-int(count) // block) for count in rows)
    columns = request.rules.sbo.down_gemm_block_n
    return Signal(
        str(op.raises), max(blocks, 1), -(-request.deployment.model.hidden_size // columns)
    )


def static_tokens(request: Request) -> int:
    """Rows that the masked layout holds for each local expert."""
    a2a = request.deployment.a2a
    return a2a.max_dispatch_tokens_per_rank * request.deployment.ep_size
