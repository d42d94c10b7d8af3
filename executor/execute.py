"""Run one rank's part of a program on a kernel set."""

from __future__ import annotations

from executor.kernel_set import ExecutorError, KernelSet
from schedules.program import (
    Begin,
    End,
    HostWait,
    HostWork,
    Launch,
    Program,
    Record,
    Step,
    Wait,
)
from schedules.timeline import Timeline


def execute(program: Program, kernels: KernelSet, *, rank: int = 0) -> Timeline:
    """The measured timeline of `rank`, ns from the run's origin.

    Every rank of the program runs this at the same time, each with its own kernel set. Raises
    ExecutorError (and its kinds) with one line that names rank and op.
    """
    steps = _checked_steps(program, rank)
    kernels.prepare(program, rank)
    for step in steps:
        _take(step, kernels)
    spans = kernels.finish()
    return Timeline(
        program=program.name,
        machine=kernels.machine,
        origin="measured",
        spans=tuple(sorted(spans, key=lambda s: (s.start_ns, s.rank, s.lane, s.op))),
        clock_error_ns=kernels.clock_error_ns,
    )


def _take(step: Step, kernels: KernelSet) -> None:
    match step:
        case Launch(op=op):
            kernels.launch(op)
        case Record(event=event, stream=stream):
            kernels.record(event, stream)
        case Wait(event=event, stream=stream):
            kernels.wait(event, stream)
        case HostWait(event=event):
            kernels.host_wait(event)
        case HostWork(kind=kind):
            kernels.host_work(kind)
        case Begin(kind=region, name=name):
            kernels.begin(region, name)
        case End(kind=region, name=name):
            kernels.end(region, name)


def _checked_steps(program: Program, rank: int) -> tuple[Step, ...]:
    """The steps of `rank`, once their streams exist and their regions nest."""
    try:
        steps = program.rank_class(rank).steps
    except KeyError as error:
        raise ExecutorError(str(error.args[0])) from None
    streams = {stream.name for stream in program.streams}
    open_regions: list[tuple[str, str]] = []
    for step in steps:
        stream = _stream_of(step)
        if stream is not None and stream not in streams:
            known = ", ".join(sorted(streams))
            raise ExecutorError(
                f"program {program.name!r}: {step} uses stream {stream!r}; it has: {known}"
            )
        if isinstance(step, Begin):
            open_regions.append((step.kind, step.name))
        elif isinstance(step, End) and (
            not open_regions or open_regions.pop() != (step.kind, step.name)
        ):
            raise ExecutorError(
                f"program {program.name!r}: {step} closes a region that is not the innermost"
            )
    if open_regions:
        kind, name = open_regions[-1]
        raise ExecutorError(f"program {program.name!r}: {kind} region {name!r} is never closed")
    return steps


def _stream_of(step: Step) -> str | None:
    if isinstance(step, Launch):
        return step.op.stream
    if isinstance(step, Record | Wait):
        return step.stream
    return None
