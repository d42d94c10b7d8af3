"""The whole-program cases of the validation, and what its page says of predictions and measurements."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from benchmarks.gated import GATE, gated, makespan_ns, predicted
from benchmarks.validation import Case, document, predictors, summary
from benchmarks.validation_cases import groups
from benchmarks.validation_predictors import Prediction, by_plain
from executor.calibrate.plan import DECODE_TOKENS, PREFILL_TOKENS
from models.machine import HostCosts
from models.profile import load_machine

GROUPS = tuple(groups())


def test_the_cases_are_as_many_and_as_different_as_promised() -> None:
    cases = [(group, name) for group in GROUPS for name in group.schedules]
    assert len(cases) >= 24
    assert {group.batch.phase for group in GROUPS} == {"prefill", "decode"}
    for phase in ("prefill", "decode"):
        sizes = {group.batch.tokens[0] for group in GROUPS if group.batch.phase == phase}
        assert len(sizes) >= 3
    names = {name for _, name in cases}
    assert {"sequential", "baseline", "tbo", "tbo@0", "sbo.v3"} <= names
    prefill = [group for group in GROUPS if group.batch.phase == "prefill"]
    assert {8, 32} <= {group.deployment.a2a.num_sms for group in prefill}
    assert any("skewed" in group.name for group in GROUPS)
    assert any(group.launch == "eager" for group in GROUPS)


def test_no_batch_nor_half_of_it_is_on_the_calibrations_grid() -> None:
    grid = {*PREFILL_TOKENS, *DECODE_TOKENS}
    for group in GROUPS:
        tokens = group.batch.tokens[0]
        assert not {tokens, tokens // 2} & grid


def test_the_gate_holds_every_stream_and_is_no_part_of_the_makespan() -> None:
    group = next(group for group in GROUPS if group.name == "decode 32 tokens")
    machine = load_machine("h200-2x-nvlink")
    timeline = predicted(group.program("tbo", eager=True), machine)
    gate_end = max(span.end_ns for span in timeline.spans if span.op == GATE)
    others = [span for span in timeline.spans if span.op != GATE]
    assert min(span.start_ns for span in others) > gate_end
    assert makespan_ns(timeline) == max(span.end_ns for span in others) - gate_end


def test_a_host_that_is_ahead_does_not_show_behind_the_gate() -> None:
    group = next(group for group in GROUPS if group.name == "decode 32 tokens")
    machine = load_machine("h200-2x-nvlink")
    free = replace(machine, host=HostCosts(tuple((name, 0) for name, _ in machine.host.by_class)))
    program = replace(group, layers=1).program("sequential", eager=True)
    assert makespan_ns(predicted(program, machine)) == makespan_ns(predicted(program, free))
    assert len(gated(program).classes[0].steps) == len(program.classes[0].steps) + 2


def case(
    schedule: str, predicted_us: float, measured_us: float, first: tuple[float, float], noise: float
) -> Case:
    """A case of one layer with repeats within 1 % and `first` = (predicted, measured) sequential."""
    around = (0.995, 1.0, 1.005)
    return Case(
        "g",
        schedule,
        1,
        schedule != "sequential",
        tuple(round(1e3 * measured_us * f) for f in around),
        tuple(round(1e3 * first[1] * f) for f in around),
        Prediction(1e3 * predicted_us, 950 * predicted_us, 1050 * predicted_us, {}),
        1e3 * first[0],
        1e3 * noise,
        {
            "public profile": 1e3 * predicted_us,
            **dict.fromkeys(("sum", "max", "SM share", "roofline"), 1e3),
        },
        {
            "public profile": 1e3 * first[0],
            **dict.fromkeys(("sum", "max", "SM share", "roofline"), 1e3),
        },
    )


def test_errors_gains_signs_and_bands_are_those_of_the_definitions() -> None:
    good = case("tbo", 100, 104, (120, 120), noise=5)
    assert good.error == pytest.approx(100 / 104 - 1)
    assert good.gain == pytest.approx(120 / 104 - 1)
    assert good.predicted_gain == pytest.approx(0.2)
    assert (good.apart, good.tie, good.in_band) == (True, False, True)
    close = case("tbo", 118, 130, (120, 120), noise=5)
    assert (close.tie, close.in_band) == (True, False)
    first = case("sequential", 120, 120, (120, 120), noise=0)
    assert not first.apart
    text = "\n".join(summary([good, close, first]))
    assert "2 overlapped cases" in text
    assert "the band holds 1 of 2" in text
    assert "the sign is right in 1 of the 2" in text
    assert "1 of 2 are called ties" in text
    errors = sorted(abs(c.error) for c in (good, close))
    assert f"{median(errors):.1%}" in text
    page = document([good, close, first], {"gpu": "G", "torch": "t"}, "p", "0" * 64)
    assert page.count("| g |") == 3
    assert any(line.startswith("| engine, this profile") for line in predictors([good, close]))


def test_plain_predictors_add_up_what_does_not_overlap() -> None:
    group = next(group for group in GROUPS if group.name == "decode 64 tokens")
    machine = load_machine("h200-2x-nvlink")
    alike = by_plain(group, "sequential", machine)
    assert alike["sum"] == alike["max"] == alike["SM share"] > alike["roofline"]
    overlapped = by_plain(group, "tbo", machine)
    assert overlapped["max"] < overlapped["sum"]
