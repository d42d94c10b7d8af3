"""Delete-one-edge: without any record, wait or host wait either lint objects or the result changes.

Lint objects when the shorter program has a finding that the whole one has not, or when it calls the
step needless in the whole program.
"""

from __future__ import annotations

import pytest

from executor.edges import Deletion, deletions
from executor.reference_run import Case, Run, run_threads, worst_error
from schedules.lint import lint
from schedules.program import HostWait, Program, Record, Wait
from tests.executor.layer_programs import case, program

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAMS = [
    ("sequential", "prefill"),
    ("baseline", "decode"),
    ("baseline", "prefill"),
    ("sbo.v1", "decode"),
    ("tbo", "decode"),
    ("tbo", "prefill two chunk"),
]


def result_changes(made: Case, found: Deletion) -> bool:
    """Whether a run that puts off what the step stood for gives anything but the right result."""
    run = Run("random", 7, found.delayed, timeout_s=2.0)
    try:
        results = run_threads(made, found.program, run)
    except Exception:  # noqa: BLE001 - any failure is another result
        return True
    return worst_error([result.output for result in results], made.expected()) > 1e-10


def new_findings(whole: Program, shorter: Program) -> set[tuple[str, str]]:
    known = {(finding.rule, finding.message) for finding in lint(whole)}
    return {
        (finding.rule, finding.message) for finding in lint(shorter) if finding.severity == "error"
    } - known


def is_excess(whole: Program, found: Deletion) -> bool:
    """Whether lint says that the wait for this event orders nothing that is not ordered anyway."""
    assert isinstance(found.step, Record | Wait | HostWait)
    event = found.step.event
    return any("excess" in finding.rule and event in finding.message for finding in lint(whole))


@pytest.mark.parametrize(("schedule", "shape"), PROGRAMS)
def test_every_edge_is_felt_or_named_needless(schedule: str, shape: str) -> None:
    made = case(shape, 3, layers=1)
    whole = program(schedule, made)
    felt = 0
    for found in deletions(whole):
        if found.ranks[0] != 0:
            continue
        changes = result_changes(made, found)
        felt += changes
        assert changes or new_findings(whole, found.program) or is_excess(whole, found), found.step
    assert felt or not any(deletions(whole))
