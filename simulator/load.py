"""How busy a schedule keeps each GPU's tensor cores, which decides its clock at the power limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from models.machine import Machine
from models.power import under_loads
from models.power_law import PowerLaw
from models.work import SPIN_KINDS, Work
from schedules.program import Program
from schedules.timeline import Span, Timeline

# The first guess; loads have settled when they change by less than `CLOSE`, which times follow by a third.
GUESS, CLOSE, PASSES = 0.75, 0.005, 6
DIGITS = 3  # Ranks whose loads are alike to so many digits share their prices.
Loads = Mapping[int, float]
Ran = TypeVar("Ran")


def settle(
    run: Callable[[Loads], Ran],
    read: Callable[[Ran], Loads],
    loads: Loads,
    close: float,
    ahead: Callable[[Ran, Loads], Loads] | None = None,
) -> tuple[Ran, float]:
    """What `run` makes of its own loads, which `read` tells; `loads` are the first guess. And by how much the
    load of a rank is off after at most `PASSES` runs: less than `close` if they settled. The next loads are
    those that were found, or what `ahead` expects of a run and the loads that it was under."""
    for _ in range(PASSES):
        ran = run(loads)
        found = read(ran)
        off = max((abs(found[rank] - loads[rank]) for rank in found), default=0.0)
        if off < close:
            break
        loads = found if ahead is None else ahead(ran, loads)
    return ran, off


def settled(
    program: Program,
    machine: Machine,
    run: Callable[[Machine], Timeline],
    guess: Loads | None = None,
) -> tuple[Timeline, float]:
    """The timeline of `run` on the machine under the loads that the timeline itself has, and how far these
    are off; those that the machine brings along are kept. `guess` has loads that are likely."""
    law, works = machine.power, bound_works(program, machine)
    if law is None or machine.loads or not works:
        return run(machine), 0.0
    return settle(
        lambda loads: run(under_loads(machine, loads)),
        lambda timeline: loads_of(program, timeline, works, law),
        dict.fromkeys(program.ranks, GUESS) | dict(guess or {}),
        CLOSE,
        lambda timeline, loads: expected_loads(program, timeline, works, law, loads),
    )


def as_loaded(program: Program, machine: Machine, timeline: Timeline) -> Machine:
    """The machine under the loads of this timeline of the program, whatever else runs on it; one that
    has loads keeps them."""
    law = machine.power
    if law is None or machine.loads:
        return machine
    return under_loads(machine, loads_of(program, timeline, bound_works(program, machine), law))


def bound_works(program: Program, machine: Machine) -> dict[tuple[int, str], Work]:
    """The works of the ops that are bound by arithmetic, by rank and name."""
    law = machine.power
    if law is None:
        return {}
    return {
        (rank, op.name): op.work
        for cls in program.classes
        for op in cls.ops
        if law.sheet.bound(op.work)
        for rank in cls.ranks
    }


def loads_of(
    program: Program, timeline: Timeline, works: Mapping[tuple[int, str], Work], law: PowerLaw
) -> Loads:
    """The load of each rank."""
    found = by_rank(timeline)
    return of_all(program, {r: load_of(spans, works, law) for r, spans in found.items()})


def expected_loads(
    program: Program,
    timeline: Timeline,
    works: Mapping[tuple[int, str], Work],
    law: PowerLaw,
    loads: Loads,
) -> Loads:
    """The loads that a run under `loads` would have under themselves, if all that its kernels take longer or
    shorter then is waited for."""
    found = by_rank(timeline)
    return of_all(
        program, {r: expected_load(spans, works, law, loads[r]) for r, spans in found.items()}
    )


def expected_load(
    spans: Sequence[Span], works: Mapping[tuple[int, str], Work], law: PowerLaw, load: float
) -> float:
    """See `expected_loads`: of one rank, whose kernels of one work are taken to be equally long."""
    took: dict[Work, list[Span]] = {}
    for span in spans:
        if (span.rank, span.op) in works:
            took.setdefault(works[span.rank, span.op], []).append(span)
    kernels = []
    for work, same in took.items():
        mean_ns = sum(span.duration_ns for span in same) / len(same)
        weight = sum(law.sheet.weight(work, span.sms) for span in same)
        kernels.append((work, law.at_rest(work, mean_ns, load), mean_ns, len(same), weight))
    total_ns, expected = length_ns(spans), load
    for _ in range(PASSES):
        busy, more_ns = 0.0, 0.0
        for work, rest_ns, mean_ns, count, weight in kernels:
            ns = law.under(work, rest_ns, expected)
            busy, more_ns = busy + weight * ns, more_ns + count * (ns - mean_ns)
        expected = min(1.0, busy / max(1.0, total_ns + more_ns))
    return expected


def of_all(program: Program, simulated: Loads) -> Loads:
    """The loads, rounded, of all ranks: those that were simulated as one have that of the one."""
    loads = {rank: round(load, DIGITS) for rank, load in simulated.items()}
    for cls in program.classes:
        own = [rank for rank in cls.ranks if rank in loads]
        loads |= {rank: loads[own[0]] for rank in cls.ranks if own and rank not in loads}
    return loads


def by_rank(timeline: Timeline) -> dict[int, list[Span]]:
    """The spans of each simulated rank."""
    ranks: dict[int, list[Span]] = {}
    for span in timeline.spans:
        ranks.setdefault(span.rank, []).append(span)
    return ranks


def load_of(spans: Sequence[Span], works: Mapping[tuple[int, str], Work], law: PowerLaw) -> float:
    """What a rank's ops with these `works` weigh over the time after its gate."""
    return min(1.0, busy_ns(spans, works, law) / max(1, length_ns(spans)))


def length_ns(spans: Iterable[Span]) -> int:
    """The time after a rank's gate."""
    own = [span for span in spans if span.kind not in SPIN_KINDS]
    began = min((span.start_ns for span in own), default=0)
    return max((span.end_ns for span in own), default=0) - began


def busy_ns(spans: Iterable[Span], works: Mapping[tuple[int, str], Work], law: PowerLaw) -> float:
    """What a rank's ops with these `works` weigh, in ns of the whole GPU."""
    return sum(
        law.sheet.weight(works[span.rank, span.op], span.sms) * (span.end_ns - span.start_ns)
        for span in spans
        if (span.rank, span.op) in works
    )
