"""The verdict on rows made by hand: order, refusals, and what of an uncertainty two schedules share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from models.sglang_rules import Refusal
from moe_overlap.row import Figures, Row
from moe_overlap.verdict import judge

NO = Refusal(rule="sbo.sm90", reason="not here", evidence="run")


def _row(name: str, step_us: float, doubt_us: Mapping[str, float], *, refused: bool = False) -> Row:
    figures = Figures(
        step_ns=1e3 * step_us,
        layer_ns=1.0,
        exposed_ns=0.0,
        sm_resident=None,
        sm_spinning=None,
        bounds_ns={"chain": 0.98e3 * step_us},
        critical_path=(),
        bubbles_ns={},
        cost_shares={},
        doubt_ns={kind: 1e3 * us for kind, us in doubt_us.items()},
    )
    return Row(name, name, "eager", NO if refused else None, figures)


def test_a_refused_row_never_wins_however_fast() -> None:
    rows = [_row("sbo", 10, {}, refused=True), _row("tbo", 90, {}), _row("baseline", 100, {})]
    assert (judge(rows).best, judge(rows).runner_up) == ("tbo", "baseline")


def test_a_doubt_that_both_share_cancels() -> None:
    # attention is 30 us uncertain in both; the flight 6 us in one and 2 us in the other: 4 us of
    # difference remain, and 90 against 95 is clear
    rows = [
        _row("tbo", 90, {"attention": 30, "flight": 2}),
        _row("baseline", 95, {"attention": 30, "flight": 6}),
    ]
    verdict = judge(rows)
    assert (verdict.verdict, verdict.margin_ns, verdict.noise_ns) == ("clear", 5e3, 4e3)


def test_doubts_of_different_kinds_add_as_squares() -> None:
    # 3 us of the one and 4 us of the other kind make 5 us: a difference of 5 us is not beyond it
    rows = [_row("tbo", 90, {"gemm": 3}), _row("baseline", 95, {"flight": 4})]
    verdict = judge(rows)
    assert verdict.noise_ns == pytest.approx(5e3)
    assert verdict.verdict == "too close to call"


def test_the_best_is_clear_only_when_it_is_clear_of_all() -> None:
    # sequential is 2 us behind and errs alike; tbo is 5 us behind, and 8 us uncertain in another kind
    rows = [
        _row("tbo", 95, {"flight": 8}),
        _row("sequential", 92, {"gemm": 6}),
        _row("baseline", 90, {"gemm": 6}),
    ]
    verdict = judge(rows)
    assert (verdict.best, verdict.runner_up) == ("baseline", "tbo")
    assert (verdict.verdict, verdict.noise_ns) == ("too close to call", 10e3)


def test_a_band_goes_below_a_bound_made_of_the_same_costs() -> None:
    # 100 +- 5 us, though nothing beats the chain of 98 us at the costs as they are
    row = _row("baseline", 100, {"gemm": 3, "flight": 4})
    assert row.figures is not None
    assert row.figures.band_ns == pytest.approx((95e3, 105e3))


def test_nothing_can_run() -> None:
    verdict = judge([_row("sbo", 10, {}, refused=True), Row("tbo", "tbo", None, NO)])
    assert (verdict.best, verdict.verdict, verdict.margin_ns) == (None, None, None)
