"""Predicted against measured: ops pair by rank, name and lane, and the page shows their numbers."""

from __future__ import annotations

from dataclasses import replace

from schedules.timeline import Span, Timeline
from tests.viz.made import made_timeline
from viz.page import render
from viz.validate_page import validation_page
from viz.validation import OpError, compare_ops

ALONE = "time alone (not known), or waits of the measured span"


def timeline(origin: str, *rows: tuple[str, str, int]) -> Timeline:
    spans = tuple(Span(op, 0, lane, 0, 0, us * 1000, "gemm", int(op[1])) for op, lane, us in rows)
    return Timeline("p", "m", "measured" if origin == "measured" else "predicted", spans)


def test_ops_are_means_over_layers() -> None:
    predicted = timeline(
        "predicted", ("L0.gemm1", "main", 10), ("L1.gemm1", "main", 14), ("L0.add", "main", 1)
    )
    measured = timeline(
        "measured", ("L0.gemm1", "main", 20), ("L1.gemm1", "main", 28), ("L0.new", "main", 5)
    )
    found = compare_ops(predicted, measured)
    assert found.ops == (OpError("gemm1", "gemm", 12.0, 24.0, 2, ALONE),)
    assert found.ops[0].ratio == 0.5
    assert (found.only_predicted, found.only_measured) == (("add",), ("new",))


def test_a_flight_is_not_its_send() -> None:
    one = timeline("predicted", ("L0.combine", "main", 3), ("L0.combine", "flight", 90))
    two = timeline("measured", ("L0.combine", "main", 4), ("L0.combine", "flight", 100))
    assert [(op.name, op.predicted_us, op.measured_us) for op in compare_ops(one, two).ops] == [
        ("combine (flight)", 90.0, 100.0),
        ("combine", 3.0, 4.0),
    ]


def test_a_measured_span_without_duration_gives_no_ratio() -> None:
    one, two = timeline("predicted", ("L0.x", "main", 3)), timeline("measured", ("L0.x", "main", 0))
    assert compare_ops(one, two).ops == ()


def test_page_has_both_timelines_and_the_clock_error() -> None:
    predicted = made_timeline("tbo", layers=2)
    measured = replace(predicted, origin="measured", clock_error_ns=1500)
    html = render(validation_page("made", {"tbo": (predicted, measured)}))
    assert html.index('data-timeline="tbo, predicted"') < html.index(
        'data-timeline="tbo, measured"'
    )
    assert "agree within: tbo, measured: 1.5 µs" in html
    assert f'data-value="{predicted.makespan_ns / 1000!r}"' in html
