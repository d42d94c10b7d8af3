"""One schedule of a resolved scenario: its program, and its predicted timeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from models.errors import InputError
from models.sglang_rules import Note, Refusal
from models.sglang_rules import Refused as RuleRefused
from moe_overlap.errors import Refused
from scenarios.errors import KeyPath
from scenarios.resolve import Resolved, ScheduleChoice
from schedules.builders import Fold, notes, refusal, variant
from schedules.builders import build as build_schedule
from schedules.lint import lint
from schedules.program import Begin, Program
from schedules.timeline import Timeline
from simulator import simulate as simulate_program


def build(
    resolved: Resolved,
    name: str,
    *,
    layers: int = 2,
    fold: bool = True,
    allow_refused: bool = False,
) -> Program:
    """The program of `layers` MoE layers under the schedule called `name`.

    Refused (an InputError) when the serving engine refuses the schedule, or lint finds an error in it,
    unless `allow_refused`.
    """
    try:
        program = program_of(
            resolved, resolved.choice(name), layers=layers, fold=fold, allow_refused=allow_refused
        )
    except RuleRefused as refused:
        raise _refused(name, refused.refusal, allow_refused) from refused
    flaw = None if allow_refused else flaw_of(program)
    if flaw is not None:
        raise _refused(name, flaw, allow_refused)
    return program


def _refused(name: str, refusal: Refusal, allow_refused: bool) -> Refused:
    way = "there is nothing to build" if allow_refused else "--allow-refused builds it anyway"
    return Refused(f"{name} is refused ({refusal.rule}): {refusal.reason}; {way}")


def flaw_of(program: Program) -> Refusal | None:
    """The first error that lint finds (a race, a wait without a record, a cycle), as a refusal."""
    for found in lint(program):
        if found.severity == "error":
            return Refusal(rule=f"lint.{found.rule}", reason=found.message, evidence="run")
    return None


def simulate(
    resolved: Resolved,
    name: str,
    *,
    layers: int = 2,
    fold: bool = True,
    allow_refused: bool = False,
) -> Timeline:
    """The predicted timeline of `layers` MoE layers under the schedule called `name`."""
    program = build(resolved, name, layers=layers, fold=fold, allow_refused=allow_refused)
    return simulate_program(program, resolved.deployment.machine, fold=fold)


def program_of(
    resolved: Resolved,
    choice: ScheduleChoice,
    *,
    layers: int,
    whole_step: bool = False,
    fold: Fold = True,
    allow_refused: bool = False,
) -> Program:
    """The program of a choice; the builders' own `Refused` when a rule forbids it."""
    with _faults(resolved, choice):
        return build_schedule(
            resolved.built_name(choice),
            resolved.deployment,
            resolved.batch,
            resolved.routing,
            layers=layers,
            fold=fold,
            whole_step=whole_step,
            allow_refused=allow_refused,
            **_options(resolved, choice),
        )


def refusal_of(resolved: Resolved, choice: ScheduleChoice) -> Refusal | None:
    """Why the serving engine does not run a choice, or None."""
    with _faults(resolved, choice):
        return refusal(
            resolved.built_name(choice),
            resolved.deployment,
            resolved.batch,
            resolved.routing,
            **_options(resolved, choice),
        )


def notes_of(resolved: Resolved, choice: ScheduleChoice) -> tuple[Note, ...]:
    """What the serving engine accepts of a choice and silently does not do."""
    with _faults(resolved, choice):
        return notes(
            resolved.built_name(choice),
            resolved.deployment,
            resolved.batch,
            resolved.routing,
            **_options(resolved, choice),
        )


@contextmanager
def _faults(resolved: Resolved, choice: ScheduleChoice) -> Iterator[None]:
    """What the builders cannot use becomes an error at the scenario's line."""
    try:
        yield
    except (RuleRefused, InputError):
        raise
    except ValueError as error:
        names = [known.name for known in resolved.schedules]
        own = choice.ops is not None or choice.lines is not None
        at: KeyPath = ("schedules", names.index(choice.name)) if own else ("runtime", "env")
        raise resolved.scenario.fault(at, str(error)) from error


def _options(resolved: Resolved, choice: ScheduleChoice) -> dict[str, Any]:
    runtime = resolved.scenario.runtime
    return {
        "rules": resolved.rules,
        "launch": None if runtime.launch == "auto" else runtime.launch,
        "env": runtime.env,
        "threshold": runtime.tbo_token_distribution_threshold,
        "ops": choice.ops,
        "delta": choice.delta,
        "lines": choice.lines,
        "other_mode_ranks": runtime.other_mode_ranks,
    }


def variant_of(resolved: Resolved, choice: ScheduleChoice) -> str:
    """What a name stands for here: `sbo` is the variant that is selected, itself when none is."""
    return variant(
        resolved.built_name(choice),
        resolved.deployment,
        resolved.batch,
        resolved.routing,
        **_options(resolved, choice),
    )


def launch_of(program: Program) -> str:
    """`cuda_graph` when the program captures anything, else `eager`."""
    steps = (step for cls in program.classes for step in cls.steps)
    captured = any(isinstance(step, Begin) and step.kind == "graph" for step in steps)
    return "cuda_graph" if captured else "eager"
