"""Every schedule's output equals the plain model's, on fresh inputs, in any legal order."""

from __future__ import annotations

import pytest

from executor.reference_run import Run, run_threads, worst_error
from tests.executor.layer_programs import SHAPES, case, program

pytestmark = pytest.mark.torch

SCHEDULES = {
    "decode": ("sequential", "baseline", "sbo.v1", "tbo"),
    "prefill": ("sequential", "baseline", "tbo"),
}
RUNS = [(schedule, shape) for shape, found in SHAPES.items() for schedule in SCHEDULES[found.phase]]


@pytest.mark.parametrize(("schedule", "shape"), RUNS)
def test_output_equals_the_plain_model(schedule: str, shape: str) -> None:
    for seed in (1, 2):
        made = case(shape, seed)
        results = run_threads(made, program(schedule, made), Run("random", seed))
        error = worst_error([result.output for result in results], made.expected())
        assert error < 1e-10, (seed, error)
