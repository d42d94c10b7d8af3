"""What `validate` says about gains, bands and ops, from predictions and repeats written by hand."""

from __future__ import annotations

from moe_overlap.gated import ungated
from moe_overlap.uncertain import Prediction
from moe_overlap.validation import document, lines, ops_of, table_rows, worst_lines
from schedules.timeline import Span, Timeline, Waited


def predicted(ns: float, doubt: float = 10.0) -> Prediction:
    """Within 50 ns of `ns`, of which the phase between ranks makes what `doubt` does not."""
    apart = (50 - doubt) / ns
    return Prediction(ns, {"gemm": doubt}, (1 - apart, 1 + apart))


def test_gains_are_over_the_first_schedule_and_overlapping_repeats_decide_nothing() -> None:
    made = {"sequential": predicted(1000), "baseline": predicted(990, 40.0), "tbo": predicted(800)}
    measured: dict[str, tuple[int, ...]] = {
        "sequential": (1100, 1000, 1050),
        "baseline": (1040, 1020, 1060),
        "tbo": (900, 880, 950),
    }
    rows = {row.schedule: row for row in table_rows(made, measured)}
    assert rows["tbo"].predicted_gain == 800 / 1000 - 1
    assert rows["tbo"].measured_gain == 900 / 1050 - 1
    assert rows["tbo"].error == 800 / 900 - 1
    assert (rows["tbo"].call, rows["baseline"].call) == ("clear", "too close to call")
    assert (rows["tbo"].sign, rows["baseline"].sign) == ("right", "")
    assert (rows["tbo"].tie, rows["baseline"].tie) == (False, True)
    assert [row.in_band for row in rows.values()] == [True, True, False]
    assert (rows["sequential"].call, rows["sequential"].sign) == ("", "")
    text = lines(list(rows.values()))
    assert text[2].endswith("too close to call (predicted: a tie)")
    assert text[3].endswith("clear, sign right")
    assert text[4] == "the band holds 2 of 3"


def test_a_wrong_sign_is_said() -> None:
    rows = table_rows(
        {"sequential": predicted(1000), "tbo": predicted(900)},
        {"sequential": (1000,), "tbo": (1100,)},
    )
    assert rows[1].sign == "wrong"
    assert "clear, sign wrong" in lines(rows)[2]


def test_the_worst_error_of_a_gain_is_named_in_points() -> None:
    made = {"sequential": predicted(1000), "tbo": predicted(800)}
    rows = table_rows(made, {"sequential": (1000,), "tbo": (900,)})
    assert lines(rows)[-1] == "worst error of a gain: tbo, -10.0 points"


def spans(*times: tuple[str, int, int, int, tuple[Waited, ...]]) -> Timeline:
    return Timeline(
        "p",
        "m",
        "predicted",
        tuple(
            Span(
                name,
                0,
                "main",
                start,
                start,
                end,
                layer=0,
                alone_ns=alone,
                stalls=stalls,
                label="fitted",
            )
            for name, start, end, alone, stalls in times
        ),
    )


def test_the_ops_furthest_off_come_first_with_what_it_can_come_from() -> None:
    stalled = (Waited("peer_wait", 60_000),)
    made = spans(
        ("L0.dispatch", 0, 100_000, 40_000, stalled),
        ("L0.gemm1", 100_000, 150_000, 20_000, ()),
        ("L0.norm1", 150_000, 160_000, 10_000, ()),
        ("L0.gate", 160_000, 180_000, 20_000, ()),
    )
    measured = spans(
        ("L0.dispatch", 0, 30_000, 0, ()),
        ("L0.gemm1", 30_000, 50_000, 0, ()),
        ("L0.norm1", 50_000, 75_000, 0, ()),
        ("L0.gate", 75_000, 85_000, 0, ()),
    )
    ops = ops_of({"tbo": (made, measured)})
    text = worst_lines(ops)
    assert [line.split()[1] for line in text[2:]] == ["dispatch", "gemm1", "norm1", "gate"]
    causes = [op["cause"] for op in document("s", [], ops)["worst"]]
    assert causes == [
        "predicted peer wait inside it",
        "predicted slowdown beside others",
        "time alone (fitted), or waits of the measured span",
        "time alone (fitted)",
    ]
    assert worst_lines({"tbo": ()}) == []


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
