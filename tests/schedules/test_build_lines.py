"""A user's own stream lines of one layer, laid out layer by layer."""

from __future__ import annotations

import pytest

from schedules.builders import build
from schedules.caret import GrammarError
from schedules.lint import lint
from schedules.program import Program, Signal, Stream
from tests.schedules.build_cases import DECODE, case, device_order, kernel, program

LINES = """
main: P
main: Q
main: C
main: M
main: G
alt: wait main
alt: shared
main: T
main: dispatch.send
main: dispatch.recv
main: experts.up
main: rec start
main: experts.down @comp +down
alt: wait start
alt: combine.send @comm ?down
alt: wait main
alt: combine.recv
main: wait alt
main: O
"""


def own(lines: str) -> Program:
    return build("mine", *case(DECODE), layers=2, lines=lines)


def test_order_and_budgets() -> None:
    built = own(LINES)
    ops = built.classes[0].ops
    assert ("alt", "shared") in list(device_order(built.classes[0].steps))
    assert [op.layer for op in ops] == sorted(op.layer for op in ops)
    found = {kernel(op): op.grid.sm_budget for op in ops}
    # 20 SMs for the exchange unless the scenario says otherwise, of 132.
    assert (found["gemm2"], found["combine.send"], found["gemm1"]) == (112, 20, None)
    assert [item for item in lint(built) if item.severity == "error"] == []


def test_an_undeclared_signal_of_the_down_gemm_is_that_of_64_rows() -> None:
    by_name = {signal.name: signal for signal in own(LINES).signals}
    reference = {signal.name: signal for signal in program("sbo.v1", DECODE).signals}
    assert by_name == reference


def test_a_declared_signal_and_stream_are_kept() -> None:
    head = "stream alt priority=-1\nsignal down blocks=7 threshold=2 order=arrival\n"
    built = own(head + LINES)
    assert Stream("alt", -1) in built.streams
    assert {(s.blocks, s.threshold, s.order) for s in built.signals} == {(7, 2, "arrival")}
    assert Signal("L1.down.c0", 7, 2, "arrival") in built.signals


def test_a_signal_of_another_kernel_needs_a_declaration() -> None:
    lines = LINES.replace("@comp +down", "@comp").replace("experts.up", "experts.up +down")
    with pytest.raises(ValueError, match="needs a line 'signal down blocks=N threshold=N'"):
        own(lines)


def test_a_fault_is_marked() -> None:
    with pytest.raises(GrammarError, match=r"unknown op 'shard'; did you mean 'shared'"):
        own(LINES.replace("alt: shared", "alt: shard"))


def test_nothing_may_be_left_out() -> None:
    with pytest.raises(ValueError, match=r"lines of 'mine' leave out combine\.recv$"):
        own(LINES.replace("alt: combine.recv\n", ""))


def test_a_missing_wait_is_found_by_lint() -> None:
    found = lint(
        own(LINES.replace("alt: wait start\n", "").replace(" +down", "").replace(" ?down", ""))
    )
    assert "missing-wait" in {item.rule for item in found}
