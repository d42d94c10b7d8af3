"""Timelines and a comparison made by hand arithmetic, for tests of pictures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from schedules.timeline import Counter, Span, Timeline, Waited

# name, kind, lane, us of the whole batch on one rank; low-latency decode of one MoE layer.
LAYER = (
    ("norm", "norm", "main", 6),
    ("qkv", "gemm", "main", 22),
    ("attn", "attention_decode", "main", 74),
    ("o_proj", "gemm", "main", 18),
    ("gate", "gate", "main", 7),
    ("topk", "topk", "main", 5),
    ("dispatch.send", "dispatch_send", "main", 21),
    ("dispatch", "flight", "flight", 80),
    ("shared.gemm1", "gemm", "main", 14),
    ("shared.gemm2", "gemm", "main", 9),
    ("dispatch.recv", "dispatch_recv", "main", 12),
    ("gemm1", "grouped_gemm_masked", "main", 66),
    ("act", "silu_mul", "main", 8),
    ("gemm2", "grouped_gemm_masked", "main", 41),
    ("combine.send", "combine_send", "main", 24),
    ("combine", "flight", "flight", 110),
    ("combine.recv", "combine_recv", "main", 19),
    ("add", "add", "main", 4),
)
GAP_NS = 800


def layer_order(split: bool) -> list[tuple[str, str, str, int, str]]:
    """Ops of one layer in host order with their child; a split batch costs 0.6 of each op."""
    if not split:
        return [(*op, "") for op in LAYER]
    half = [(name, kind, lane, max(1, us * 3 // 5)) for name, kind, lane, us in LAYER]
    cuts = (0, 6, 10, 16, 18)
    order = []
    for begin, end in pairwise(cuts):
        for child in "ab":
            order += [(*op, child) for op in half[begin:end]]
    return order


def made_timeline(name: str, *, layers: int = 6, ranks: int = 2, stream: str = "main") -> Timeline:
    """A schedule `sequential`, `baseline` (shared expert on a second stream) or `tbo`."""
    spans: list[Span] = []
    for rank in range(ranks):
        spans += _rank_spans(name, layers, rank, stream)
    spans.sort(key=lambda s: (s.start_ns, s.rank, s.lane, s.op))
    counters = [c for rank in range(ranks) for c in _counters(spans, rank)]
    return Timeline(f"made-{name}", "made 132 SMs", "predicted", tuple(spans), tuple(counters))


def _rank_spans(name: str, layers: int, rank: int, stream: str) -> list[Span]:
    now = {stream: 1000 * rank, "alt": 0}
    last: dict[str, Span] = {}
    flights: dict[str, Span] = {}
    spans = []
    waits: tuple[Waited, ...]
    for layer in range(layers):
        for tail, kind, lane, us, child in layer_order(name == "tbo"):
            prefix = f"L{layer}.{child}." if child else f"L{layer}."
            row = "alt" if name == "baseline" and tail.startswith("shared") else lane
            row = stream if row == "main" else row
            after = flights.get(child) if tail.endswith("recv") else None
            if row == "flight":
                start, waits = (
                    last[stream].start_ns + 2000,
                    (Waited("dependency", 2000, last[stream].op, rank),),
                )
            else:
                start, waits = _start(now, last, row, stream, after, rank)
            end = start + us * 1000
            span = Span(
                prefix + tail,
                rank,
                row,
                start - 400,
                start,
                end,
                kind,
                layer,
                child,
                waits,
                (),
                132 if "gemm" in kind else 24,
                us * 900,
                "measured",
            )
            spans.append(span)
            if row == "flight":
                flights[child] = span
            else:
                now[row], last[row] = end, span
    return spans


def _start(
    now: dict[str, int], last: dict[str, Span], row: str, stream: str, after: Span | None, rank: int
) -> tuple[int, tuple[Waited, ...]]:
    free = now[row]
    if row == "alt":
        free = max(free, now[stream])
    start = free + GAP_NS
    before = last.get(row) or last.get(stream)
    waits = [Waited("queued", GAP_NS, before.op if before else None, rank if before else None)]
    if after and after.end_ns > start:
        waits.append(Waited("dependency", after.end_ns - start, after.op, after.rank))
        start = after.end_ns
    return start, tuple(waits)


def _counters(spans: list[Span], rank: int) -> list[Counter]:
    held: dict[int, int] = {0: 0}
    spinning: dict[int, int] = {0: 0}
    hbm: dict[int, int] = {0: 0}
    for span in (s for s in spans if s.rank == rank and s.lane != "flight"):
        for ns, sign in ((span.start_ns, 1), (span.end_ns, -1)):
            held[ns] = held.get(ns, 0) + sign * span.sms
            spinning[ns] = spinning.get(ns, 0) + (sign * span.sms if "recv" in span.kind else 0)
            hbm[ns] = hbm.get(ns, 0) + sign * (3200 if "gemm" in span.kind else 900)
    named = (("sms_resident", held), ("sms_spinning", spinning), ("hbm_gbps", hbm))
    return [Counter(name, rank, _summed(changes)) for name, changes in named]


def _summed(changes: dict[int, int]) -> tuple[tuple[int, float], ...]:
    total, points = 0, []
    for ns in sorted(changes):
        total += changes[ns]
        points.append((ns, float(total)))
    return tuple(points)


def made_row(timeline: Timeline, baseline_us: float, layers: int) -> dict[str, Any]:
    """The row of a comparison for a made timeline; rank 0's main stream is the critical path."""
    step = timeline.makespan_ns / 1000
    path = [s for s in timeline.of_rank(0) if s.lane != "alt" and s.kind != "flight"]
    return {
        "name": timeline.program.removeprefix("made-"),
        "variant": None,
        "refused": None,
        "launch": "cuda_graph",
        "step_us": step,
        "layer_us": step / layers,
        "band_us": [step * 0.95, step * 1.06],
        "tokens_per_s_per_gpu": 256e6 / step,
        "exposed_comm_us": 61.25,
        "sm_resident_fraction": 0.71,
        "sm_spinning_fraction": 0.06,
        "speedup_vs_baseline": baseline_us / step,
        "bounds_us": {"compute": step * 0.6, "communication": step * 0.4, "chain": step * 0.5},
        "critical_path": [{"op": s.op, "us": s.duration_ns / 1000} for s in path],
        "bubbles_us": {"queued": 12.5, "dependency": 80.0},
        "cost_shares": {"measured": 0.8, "fitted": 0.15, "roofline": 0.05},
        "memory_gib": 61.5,
        "max_batch_per_rank": 384,
    }


def made_comparison(layers: int = 6, ranks: int = 2) -> tuple[dict[str, Any], dict[str, Timeline]]:
    """A `compare` document with one refused schedule, and its timelines."""
    timelines = {
        name: made_timeline(name, layers=layers, ranks=ranks)
        for name in ("sequential", "baseline", "tbo")
    }
    baseline_us = timelines["baseline"].makespan_ns / 1000
    rows = [made_row(timeline, baseline_us, layers) for timeline in timelines.values()]
    refused = dict.fromkeys(rows[0]) | {"name": "sbo", "variant": "sbo.v1"}
    refused["refused"] = {
        "rule": "sbo_sm90",
        "reason": "SGLang does not start with SBO on <compute capability 9>",
    }
    best = min(rows, key=lambda row: row["step_us"])
    document = {
        "schema": 1,
        "version": "0.1.0",
        "sglang": "0.5.23",
        "scenario": "made decode, 2 ranks",
        "hardware": "made-2x",
        "profile_sha256": "0" * 64,
        "schedules": [*rows[:2], refused, rows[2]],
        "best": best["name"],
        "runner_up": "baseline",
        "verdict": "clear",
        "why": f"{best['name']} wins because its flights of 80 and 110 µs run under the other child's compute.",
    }
    return document, timelines
