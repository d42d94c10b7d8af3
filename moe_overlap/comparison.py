"""Every schedule of a scenario, predicted and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from models.sglang_rules import Refused
from moe_overlap.answers.collect import Answers, answers_of
from moe_overlap.document import comparison_document
from moe_overlap.fidelity import Fidelity
from moe_overlap.outcome import predict
from moe_overlap.prediction import program_of
from moe_overlap.row import Row
from scenarios.resolve import Resolved, resolve
from scenarios.schema import Scenario
from schedules.timeline import Timeline

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, in the scenario's order."""

    resolved: Resolved
    rows: tuple[Row, ...]
    answers: Answers = field(default_factory=Answers)
    fidelity: Fidelity = "auto"

    @cached_property
    def _document(self) -> dict[str, Any]:
        return comparison_document(self.resolved, self.rows, self.answers, self.fidelity)

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
    fidelity: Fidelity = "auto",
    limit_ms: float | None = None,
    progress: Progress = lambda message: None,
) -> Comparison:
    """Predicts every schedule of the scenario. A schedule that is refused is a row with its reason;
    with `allow_refused` it is predicted all the same, and still never wins. `limit_ms` asks for the
    largest batches under that latency (between tokens in decode, to the first token in prefill)."""
    progress(f"resolving {scenario.name}")
    resolved = resolve(scenario)
    _check_own(resolved)
    rows = []
    for choice in resolved.schedules:
        progress(f"predicting {choice.name}")
        rows.append(predict(resolved, choice, allow_refused=allow_refused, fidelity=fidelity))
    progress("looking for largest batches and for what would flip the verdict")
    answers = answers_of(resolved, rows, fidelity=fidelity, limit_ms=limit_ms)
    return Comparison(resolved, tuple(rows), answers, fidelity)


def _check_own(resolved: Resolved) -> None:
    """A user's schedule that cannot be built is an error before anything is predicted."""
    for choice in resolved.schedules:
        if choice.ops is not None or choice.lines is not None:
            with suppress(Refused):
                program_of(resolved, choice, layers=1)
