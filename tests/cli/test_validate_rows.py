"""What `validate` says about gains, from timelines and repeats written by hand."""

from __future__ import annotations

from moe_overlap.commands.validate import lines, table_rows
from moe_overlap.gated import ungated
from schedules.timeline import Span, Timeline, Waited


def timeline(end_ns: int) -> Timeline:
    return Timeline("p", "m", "predicted", (Span("op", 0, "main", 0, 0, end_ns),))


def test_gains_are_over_the_first_schedule_and_overlapping_repeats_decide_nothing() -> None:
    predicted = {"sequential": timeline(1000), "baseline": timeline(990), "tbo": timeline(800)}
    measured: dict[str, tuple[int, ...]] = {
        "sequential": (1100, 1000, 1050),
        "baseline": (1040, 1020, 1060),
        "tbo": (900, 880, 950),
    }
    rows = {row.schedule: row for row in table_rows(predicted, measured)}
    assert rows["tbo"].predicted_gain == 800 / 1000 - 1
    assert rows["tbo"].measured_gain == 900 / 1050 - 1
    assert rows["tbo"].error == 800 / 900 - 1
    assert (rows["tbo"].call, rows["baseline"].call) == ("clear", "too close to call")
    assert rows["sequential"].call == ""


def test_the_worst_error_of_a_gain_is_named_in_points() -> None:
    predicted = {"sequential": timeline(1000), "tbo": timeline(800)}
    rows = table_rows(predicted, {"sequential": (1000,), "tbo": (900,)})
    assert lines(rows)[-1] == "worst error of a gain: tbo, -10.0 points"


def test_time_before_the_gates_end_is_cut_off_a_span_and_its_waits() -> None:
    waits = (Waited("host", 30), Waited("dependency", 70, "gate", 0))
    spans = (
        Span("gate", 0, "main", 0, 0, 90),
        Span("gate", 1, "main", 0, 0, 100),
        Span("op", 0, "main", 100, 120, 150, waits=waits),
        Span("op", 1, "main", 95, 130, 160, waits=(Waited("host", 130),)),
    )
    timeline = ungated(Timeline("p", "m", "predicted", spans))
    first, second = timeline.spans
    assert (first.ready_ns, first.start_ns, first.end_ns) == (0, 20, 50)
    assert first.waits == (Waited("dependency", 20, "gate", 0),)
    assert (second.ready_ns, second.start_ns, second.waits) == (0, 30, (Waited("host", 30),))
    assert timeline.makespan_ns == 60
