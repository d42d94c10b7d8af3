"""The JSON document of a comparison (`docs/formats.md`), rounded once: what is shown is what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from moe_overlap import __version__
from moe_overlap.answers.collect import Answers
from moe_overlap.answers.notes import silent_failures
from moe_overlap.answers.words import answer_lines, answers_document
from moe_overlap.fidelity import Fidelity
from moe_overlap.row import Figures, Row
from moe_overlap.verdict import explain, judge
from scenarios.resolve import Resolved

SCHEMA = 1


def comparison_document(
    resolved: Resolved, rows: Sequence[Row], answers: Answers, fidelity: Fidelity
) -> dict[str, Any]:
    """The document of the rows, in their order."""
    verdict = judge(rows)
    machine = resolved.deployment.machine
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "sglang": resolved.rules.version,
        "scenario": resolved.scenario.name,
        "hardware": machine.name,
        "profile_sha256": machine.profile_sha256,
        "schedules": [_row(resolved, row, rows) for row in rows],
        "best": verdict.best,
        "runner_up": verdict.runner_up,
        "verdict": verdict.verdict,
        "margin_us": _us(verdict.margin_ns),
        "noise_us": _us(verdict.noise_ns),
    }
    document["why"] = explain(document)
    steps = {row["name"]: row["step_us"] for row in document["schedules"] if row["step_us"]}
    document["answers"] = answers_document(resolved, steps, answers)
    document["answers"]["lines"] = answer_lines(document)
    document["notes"] = [asdict(note) for note in silent_failures(resolved, rows)]
    errors = {row.name: row.shortcut_error for row in rows if row.figures is not None}
    document["shortcuts"] = {"fidelity": fidelity, "error": errors}
    return document


def _row(resolved: Resolved, row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    refused = row.refused
    known: dict[str, Any] = {
        "name": row.name,
        "variant": row.variant,
        "refused": {"rule": refused.rule, "reason": refused.reason} if refused else None,
        "launch": row.launch,
    }
    figures = _figures(resolved, row.figures, rows) if row.figures else dict.fromkeys(_FIGURES)
    memory = {
        "memory_gib": _rounded(row.memory_gib, 2),
        "max_batch_per_rank": row.max_batch_per_rank,
    }
    return {**known, **figures, **memory}


_FIGURES = (
    "step_us",
    "layer_us",
    "band_us",
    "tokens_per_s_per_gpu",
    "exposed_comm_us",
    "sm_resident_fraction",
    "sm_spinning_fraction",
    "speedup_vs_baseline",
    "bounds_us",
    "critical_path",
    "bubbles_us",
    "cost_shares",
)


def _figures(resolved: Resolved, figures: Figures, rows: Sequence[Row]) -> dict[str, Any]:
    low, high = figures.band_ns
    values = (
        _us(figures.step_ns),
        _us(figures.layer_ns),
        [_us(low), _us(high)],
        _rounded(resolved.tokens_per_step / figures.step_ns * 1e9, 1),
        _us(figures.exposed_ns),
        _rounded(figures.sm_resident, 3),
        _rounded(figures.sm_spinning, 3),
        _speedup(figures, rows),
        {name: _us(ns) for name, ns in figures.bounds_ns.items()},
        [{"op": item.op, "rank": item.rank, "us": _us(item.ns)} for item in figures.critical_path],
        {cause: _us(ns) for cause, ns in figures.bubbles_ns.items()},
        {label: _rounded(share, 3) for label, share in figures.cost_shares.items()},
    )
    return dict(zip(_FIGURES, values, strict=True))


def _speedup(figures: Figures, rows: Sequence[Row]) -> float | None:
    for row in rows:
        if row.name == "baseline" and row.figures is not None:
            return _rounded(row.figures.step_ns / figures.step_ns, 3)
    return None


def _us(ns: float | None) -> float | None:
    """Microseconds with one decimal."""
    return None if ns is None else round(ns / 1000, 1)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
