"""Experts without an all-to-all: every schedule gives the plain model's output, and needs each edge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executor.edges import deletions
from executor.reference_run import Case, Run, run_threads, worst_error
from schedules.builders import build
from schedules.lint import lint
from schedules.program import HostWait, Program, Record, Wait
from tests.executor.layer_programs import case, deployment

pytestmark = pytest.mark.torch

# DeepSeek V4's list, on layers whose attention the plain model has.
OPS = "mP A mM Ga | Gb Moe Ra | Rb mZ"
SHAPES = ("prefill", "prefill two chunk", "prefill one rank idle", "prefill one expert", "decode")


def program(name: str, made: Case) -> Program:
    base = deployment(made)
    base = replace(base, a2a=replace(base.a2a, backend="none", mode="normal"))
    own: dict[str, Any] = {"ops": OPS, "delta": 0} if name == "mine" else {}
    return build(
        name,
        base,
        made.batch,
        made.routing,
        layers=made.layers,
        fold="exact",
        allow_refused=True,
        **own,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["sequential", "baseline", "tbo", "mine"])
def test_output_equals_the_plain_model(name: str, shape: str) -> None:
    for seed in (1, 2):
        made = case(shape, seed)
        results = run_threads(made, program(name, made), Run("random", seed))
        assert worst_error([result.output for result in results], made.expected()) < 1e-10


def test_every_edge_is_felt_or_lint_objects() -> None:
    made = case("prefill", 3, layers=1)
    whole = program("mine", made)
    known = {finding.message for finding in lint(whole)}
    tried = 0
    for found in deletions(whole):
        if found.ranks[0] != 0:
            continue
        assert isinstance(found.step, Record | Wait | HostWait)
        tried += 1
        objects = any(
            finding.severity == "error" and finding.message not in known
            for finding in lint(found.program)
        )
        assert objects or _changes(made, found.program, found.delayed), found.step
    assert tried == 2 * 2 * 4  # two children, gather and scatter, there and back


def _changes(made: Case, shorter: Program, delayed: frozenset[str]) -> bool:
    try:
        results = run_threads(made, shorter, Run("random", 7, delayed, timeout_s=2.0))
    except Exception:  # noqa: BLE001 - any failure is another result
        return True
    return worst_error([result.output for result in results], made.expected()) > 1e-10
