"""Time per published kernel class of one layer: ours, and that of the kernels alone."""

from __future__ import annotations

from collections.abc import Mapping

import moe_overlap as mo
from benchmarks.plain import kernels_alone
from benchmarks.published_rows import ON, load
from moe_overlap.prediction import build
from schedules.program import Program
from schedules.timeline import Timeline
from simulator import simulate

CLASSES = {
    "Dispatch": (
        "dispatch",
        "dispatch_send",
        "dispatch_recv",
        "notify:dispatch",
        "flight:dispatch",
    ),
    "Combine": ("combine", "combine_send", "combine_recv", "notify:combine", "flight:combine"),
    "MoE": ("grouped_gemm_masked", "grouped_gemm_contiguous", "silu_mul:act"),
    "Attention Core": ("attention_decode", "attention_prefill"),
    "GEMM": ("gemm", "bmm", "gate"),
}
REST = "Other Kernels"
STEADY = 3  # a layer of `LAYERS` whose neighbours are layers too
LAYERS = 6


def class_of(kind: str, op: str) -> str:
    """The published class of a kernel, by its kind and, where kinds are shared, the end of its name."""
    tail = op.rsplit(".", 2)
    keys = (
        kind,
        f"{kind}:{tail[-2]}",
        f"{kind}:{tail[-1]}" if len(tail) < 3 or tail[-2] != "shared" else "",
    )
    return next((name for name, kinds in CLASSES.items() if any(k in kinds for k in keys)), REST)


def layers_of(scenario: str, schedule: str, size: int, alpha: float) -> tuple[Program, mo.Resolved]:
    """Six MoE layers of a published row under a schedule, and what they were resolved from."""
    resolved = mo.resolve(load(scenario, size, alpha))
    return build(resolved, schedule, layers=LAYERS), resolved


def class_us(scenario: str, schedule: str, size: int, alpha: float) -> dict[str, float]:
    """Microseconds of each published kernel class in one steady layer of the busiest rank (children
    together): the time that its kernels are resident, as a profiler counts it."""
    program, resolved = layers_of(scenario, schedule, size, alpha)
    return classes_in(simulate(program, resolved.deployment.machine))


def classes_in(timeline: Timeline) -> dict[str, float]:
    """The same of a timeline of `LAYERS` layers."""
    rank = timeline.ranks[-1]
    totals = dict.fromkeys((*CLASSES, REST), 0.0)
    for span in timeline.spans:
        if span.rank == rank and span.layer == STEADY and span.lane != "flight":
            totals[class_of(span.kind, span.op)] += span.duration_ns / 1000
    return totals


def layer_us(timeline: Timeline) -> float:
    """Microseconds from the start of one steady layer to that of the next, on the busiest rank."""
    rank = timeline.ranks[-1]
    starts = {
        layer: min(s.start_ns for s in timeline.spans if s.rank == rank and s.layer == layer)
        for layer in (STEADY, STEADY + 1)
    }
    return (starts[STEADY + 1] - starts[STEADY]) / 1000


def plain_class_us(scenario: str, schedule: str, size: int, alpha: float) -> dict[str, float]:
    """What the plain predictors say of the same classes: each kernel alone, an exchange with its flight;
    under two-batch overlap without it, since they hide it (what is left holds SMs, as in a profile)."""
    resolved = mo.resolve(load(scenario, size, alpha))
    program = build(resolved, schedule, layers=1)
    totals = dict.fromkeys((*CLASSES, REST), 0.0)
    for kernel in kernels_alone(program, resolved.deployment.machine):
        if kernel.kind != "flight" or schedule not in ON.values():
            totals[class_of(kernel.kind, kernel.op)] += kernel.ns / 1000
    return totals


def mean_error(found: Mapping[str, float], truth: Mapping[str, float]) -> float:
    """Mean over the classes of |found / truth - 1|."""
    return sum(abs(us / truth[name] - 1) for name, us in found.items()) / len(found)
