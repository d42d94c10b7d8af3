"""A profiler trace of real two-batch layers: exchanges are told from compute, and overlap is seen."""

from __future__ import annotations

from pathlib import Path

from schedules.timeline import Span, Timeline
from viz.trace_import import import_trace

TRACE = Path(__file__).parents[1] / "fixtures" / "traces" / "h200-deepep-two-batch.json.gz"
EXCHANGES = ("dispatch", "combine")


def spans(timeline: Timeline, *kinds: str) -> list[Span]:
    return [span for span in timeline.spans if span.kind in kinds]


def overlap_ns(one: Span, others: list[Span]) -> int:
    return sum(
        max(0, min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns))
        for other in others
    )


def test_every_exchange_of_both_children_and_layers_is_found() -> None:
    timeline = import_trace(TRACE)
    for kind in EXCHANGES:
        assert len(spans(timeline, kind)) == 4, kind
    assert len(spans(timeline, "grouped_gemm_contiguous")) == 8
    assert len(spans(timeline, "attention_prefill")) == 4


def test_exchanges_run_beside_compute_on_a_stream_of_their_own() -> None:
    timeline = import_trace(TRACE)
    exchanges = spans(timeline, *EXCHANGES)
    compute = spans(timeline, "gemm", "grouped_gemm_contiguous", "attention_prefill")
    assert {span.lane for span in exchanges}.isdisjoint({span.lane for span in compute})
    beside = sum(overlap_ns(span, compute) for span in exchanges)
    assert beside > 0.5 * sum(span.duration_ns for span in exchanges)
