"""One schedule at one variation of a scenario: its step time, and nothing else."""

from __future__ import annotations

from models.errors import InputError
from models.sglang_rules import Refusal, Refused
from moe_overlap.memory_fit import fit_of
from moe_overlap.prediction import program_of, refusal_of
from scenarios.resolve import Resolved, ScheduleChoice
from schedules.program import Program
from simulator import Deadlock
from simulator.steady import quick_step_ns


def step_us(resolved: Resolved, choice: ScheduleChoice) -> float | None:
    """Microseconds of a step; None when a rule or memory forbids it, or it cannot end."""
    built: dict[int, Program] = {}

    def build(layers: int) -> Program:
        if layers not in built:
            built[layers] = program_of(resolved, choice, layers=layers, whole_step=True)
        return built[layers]

    layers = resolved.deployment.model.num_moe_layers
    try:
        if fit_of(resolved, build(min(4, layers))).refusal is not None:
            return None
        ns = quick_step_ns(build, resolved.deployment.machine, layers)
    except (Refused, Deadlock):
        return None
    return ns / 1000 + resolved.scenario.runtime.step_overhead_us


def refused_at(resolved: Resolved, choice: ScheduleChoice) -> Refusal | None:
    """The rule that forbids a schedule here, memory left out; an input that does not fit counts too."""
    try:
        return refusal_of(resolved, choice)
    except InputError as error:
        return Refusal(rule="input", reason=str(error), evidence="run")
