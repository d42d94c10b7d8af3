"""Every schedule of a scenario, predicted and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from models.sglang_rules import Refusal
from models.sglang_rules import Refused as RuleRefused
from moe_overlap.document import comparison_document
from moe_overlap.figures import Predicted, figures_of
from moe_overlap.memory_fit import fit_of
from moe_overlap.prediction import launch_of, program_of, variant_of
from moe_overlap.row import Row
from scenarios.resolve import Resolved, ScheduleChoice, resolve
from scenarios.schema import Scenario
from schedules.lint import lint
from schedules.program import Program
from schedules.timeline import Timeline
from simulator import Deadlock, simulate

Progress = Callable[[str], None]
# Enough for the pipeline of two children to fill and drain with a steady stretch between.
SIMULATED_LAYERS = 6


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, in the scenario's order."""

    resolved: Resolved
    rows: tuple[Row, ...]

    @cached_property
    def _document(self) -> dict[str, Any]:
        return comparison_document(self.resolved, self.rows)

    def document(self) -> dict[str, Any]:
        """The JSON document of `docs/formats.md`."""
        return self._document

    def timelines(self) -> Mapping[str, Timeline]:
        """Timelines of the simulated layers by schedule name."""
        return {row.name: row.timeline for row in self.rows if row.timeline is not None}


def compare(
    scenario: Scenario,
    *,
    allow_refused: bool = False,
    progress: Progress = lambda message: None,
) -> Comparison:
    """Predicts every schedule of the scenario. A schedule that is refused is a row with its reason;
    with `allow_refused` it is predicted all the same, and still never wins."""
    progress(f"resolving {scenario.name}")
    resolved = resolve(scenario)
    rows = []
    for choice in resolved.schedules:
        progress(f"predicting {choice.name}")
        rows.append(predict(resolved, choice, allow_refused=allow_refused))
    return Comparison(resolved, tuple(rows))


def predict(resolved: Resolved, choice: ScheduleChoice, *, allow_refused: bool) -> Row:
    """One row: refused by a rule, by memory, by lint or by the engine, else with its figures."""
    variant = variant_of(resolved, choice)
    try:
        program, refusal = _program(resolved, choice, _layers(resolved), allow_refused)
    except RuleRefused as refused:
        return Row(choice.name, variant, None, refused.refusal)
    fit = fit_of(resolved, program)
    row = Row(
        choice.name,
        variant,
        launch_of(program),
        refusal or fit.refusal,
        memory_gib=fit.needed.gib,
        max_batch_per_rank=fit.max_batch,
        program=program,
    )
    if fit.refusal and not allow_refused:
        return row
    faults = [finding for finding in lint(program) if finding.severity == "error"]
    if faults:
        return replace(row, refused=_refusal(f"lint.{faults[0].rule}", faults[0].message))
    try:
        timeline = simulate(program, resolved.deployment.machine)
    except Deadlock as deadlock:
        return replace(row, refused=_refusal("deadlock", str(deadlock)))
    one_layer, _ = _program(resolved, choice, 1, allow_refused)
    predicted = Predicted(program, timeline, one_layer, _layers(resolved))
    return replace(row, timeline=timeline, figures=figures_of(resolved, predicted))


def _layers(resolved: Resolved) -> int:
    return min(SIMULATED_LAYERS, resolved.deployment.model.num_moe_layers)


def _program(
    resolved: Resolved, choice: ScheduleChoice, layers: int, allow_refused: bool
) -> tuple[Program, Refusal | None]:
    """The program, and the refusal that was overridden for it."""
    try:
        return program_of(resolved, choice, layers=layers, whole_step=True), None
    except RuleRefused as refused:
        if not allow_refused:
            raise
        forced = program_of(resolved, choice, layers=layers, whole_step=True, allow_refused=True)
        return forced, refused.refusal


def _refusal(rule: str, reason: str) -> Refusal:
    return Refusal(rule=rule, reason=reason, evidence="run")
