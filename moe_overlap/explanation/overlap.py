"""Figure 5: the same layer under SBO and under TBO, with stages, SM budgets and exposed communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import InputError
from models.sglang_rules import Refused
from moe_overlap.prediction import program_of, variant_of
from scenarios.resolve import Resolved, ScheduleChoice
from schedules.merit import exposed_intervals, exposed_ns, steady
from schedules.program import Program
from schedules.timeline import Timeline
from simulator import simulate

LAYERS = 6
_FALLBACK = {"sbo": "sbo.v1"}


@dataclass(frozen=True)
class Overlapped:
    """One schedule of the figure: its part of the document and its timeline."""

    document: Mapping[str, Any]
    timeline: Timeline


def overlap(resolved: Resolved) -> tuple[tuple[Overlapped, ...], dict[str, str]]:
    """Baseline, SBO and TBO, whatever the rules refuse, and the reasons of those that cannot be built at
    all. Where device and runner select no SBO variant, variant 1 stands for it."""
    found, missing = [], {}
    for name in ("baseline", "sbo", "tbo"):
        try:
            found.append(_overlapped(resolved, name))
        except Refused as error:
            missing[name] = error.refusal.reason
    return tuple(found), missing


def _overlapped(resolved: Resolved, name: str) -> Overlapped:
    """One schedule; Refused when no override builds it."""
    choice, refused = ScheduleChoice(name), None
    layers = min(LAYERS, resolved.deployment.model.num_moe_layers)
    try:
        program = program_of(resolved, choice, layers=layers)
    except Refused as error:
        refused = {"rule": error.refusal.rule, "reason": error.refusal.reason}
        if variant_of(resolved, choice) == name and name in _FALLBACK:
            choice = ScheduleChoice(_FALLBACK[name])
        program = program_of(resolved, choice, layers=layers, allow_refused=True)
    timeline = simulate(program, resolved.deployment.machine)
    stretch = steady(timeline)
    rank = max(timeline.spans, key=lambda span: span.end_ns).rank
    if stretch is None:
        raise InputError(resolved.deployment.model.name, "num_layers", 0, "at least one MoE layer")
    exposed = exposed_ns(timeline, stretch.window)[rank] / stretch.layers
    document = {
        "name": name,
        "variant": variant_of(resolved, choice),
        "refused": refused,
        "layer_us": round(stretch.layer_ns / 1000, 1),
        "exposed_comm_us": round(exposed / 1000, 1),
        "yields": list(_yields(program, timeline)),
        "budgets": _budgets(program),
        "exposed": [
            [rank, a, b] for rank in timeline.ranks for a, b in exposed_intervals(timeline, rank)
        ],
    }
    return Overlapped(document, timeline)


def _yields(program: Program, timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Where a child's next stage begins on the device: after a yield the other child had its turn."""
    starts = {(span.rank, span.op): span.start_ns for span in timeline.spans}
    for rank in timeline.ranks:
        last: dict[str, int] = {}
        for op in program.launches(rank):
            if op.stage >= 0 and last.setdefault(op.child, op.stage) != op.stage:
                last[op.child] = op.stage
                yield {"rank": rank, "op": op.name, "child": op.child, "ns": starts[rank, op.name]}


def _budgets(program: Program) -> list[dict[str, Any]]:
    """SM budgets of kernels by what their names have in common, one layer and child standing for all."""
    found: dict[str, int] = {}
    for op in program.classes[0].ops:
        if op.grid.enforced_budget is not None and op.layer >= 0:
            name = op.name.removeprefix(f"L{op.layer}.").removeprefix(
                f"{op.child}." if op.child else ""
            )
            found[name] = op.grid.enforced_budget
    return [{"op": name, "sms": sms} for name, sms in found.items()]
