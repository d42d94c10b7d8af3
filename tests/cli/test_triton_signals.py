"""The down GEMM and the combine, in turn and with signals: worked out by hand, and on the real profile."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.triton_signals import (
    BUDGETS,
    CALLS,
    EARLIER,
    GEMM,
    PROFILE,
    SEND,
    SIGNALS,
    SMS,
    TOKENS,
    WAYS,
    WHOLE,
    Shape,
    Times,
    agreement,
    call_us,
    main,
    measured,
    predict,
    program,
    with_gemm_of,
    without,
)
from models.machine import Cost, Fabric, Footprint, Gaps, Interference, Machine
from models.profile import load_machine
from models.work import Grid, Work
from schedules.timeline import Span
from simulator import simulate

NUM_SMS = 12
RECEIVE_US = 10.0
# 64 tokens of two ranks choose 8 of 64 experts: some 16 rows an expert, so one block of 64 each.
TOKENS_A_RANK, BLOCKS = 64, 32
HBM_GBPS = 1e6  # never full


@dataclass(frozen=True)
class ByHand:
    """A GEMM and a send that are the faster the more SMs they hold, in SM us; a receive of 10 us."""

    gemm: float
    send: float

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """us of SMs over SMs."""
        us = {GEMM: self.gemm / sms, SEND: self.send / sms}.get(work.kind, RECEIVE_US)
        return Cost(round(us * 1e3), "exact")

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """A CTA that fills an SM for each SM of the budget; one CTA receives."""
        sms = min(grid.enforced_budget or NUM_SMS, NUM_SMS)
        return Footprint(1 if work.kind == "combine_recv" else sms, smem_bytes=200_000)


def small(gemm: float, send: float) -> Machine:
    """12 SMs, no gaps, links that never wait, nothing that disturbs."""
    return replace(
        load_machine(PROFILE),
        num_sms=NUM_SMS,
        costs=ByHand(gemm, send),
        gaps=Gaps(*[0] * 8),
        interference=Interference(HBM_GBPS),
        fabric=Fabric(8, 1e9, 1e9, flight_latency_ns=0),
        signalled=(),
        power=None,
    )


def times(machine: Machine, comm_sms: int) -> Times:
    return predict(Shape(TOKENS_A_RANK, comm_sms), machine)


@pytest.mark.parametrize(
    ("send", "comm", "whole", "budgets", "signals"),
    [
        # The GEMM is longer: only the send's last block comes behind it.
        (96, 2, 100 + 8 + 10, 120 + 48 + 10, 120 + 48 / BLOCKS + 10),
        (96, 4, 100 + 8 + 10, 150 + 24 + 10, 150 + 24 / BLOCKS + 10),
        # The send is longer: it begins when the GEMM's first block is complete.
        (480, 2, 100 + 40 + 10, 120 + 240 + 10, 120 / BLOCKS + 240 + 10),
    ],
)
def test_in_turn_is_the_sum_and_signals_leave_one_block(
    send: float, comm: int, whole: float, budgets: float, signals: float
) -> None:
    assert times(small(1200, send), comm) == pytest.approx((whole, budgets, signals), abs=0.01)


def test_each_cost_is_left_out_alone() -> None:
    """Signals make the GEMM 1.5 and the send 2 times as long; each slows the other by 0.5 and by 1 of its SMs."""
    rules = Interference(
        HBM_GBPS, by_family=(("low_latency", 1.0, 0.0),), by_kind=((GEMM, 0.5, 0.0),)
    )
    ratios = ((SEND, 1, 1, 2.0), (GEMM, 1, 1, 1.5))
    machine = replace(small(1200, 480), interference=rules, signalled=ratios)
    shape = Shape(TOKENS_A_RANK, 2)
    found = {name: call_us(SIGNALS, shape, other) for name, other in without(machine).items()}
    assert found["any"] == pytest.approx(120 / BLOCKS + 240 + 10, abs=0.01)
    # Without neighbours' costs the send of 2 * 240 us begins when 1 of 32 blocks of 180 us is complete.
    assert found["either slowed"] == pytest.approx(180 / BLOCKS + 480 + 10, abs=0.01)
    # Beside the GEMM, which holds 10 of 12 SMs, the send takes 1 + 10/12 of its time.
    beside = (180 - 180 / BLOCKS) / (1 + 10 / 12)
    assert found["GEMM slowed"] == pytest.approx(180 + 480 - beside + 10, abs=0.01)
    # The GEMM takes 1 + 0.5 * 2/12 beside the send, which begins with its first block.
    first = 180 / BLOCKS
    assert first <= found["send slowed"] - 490 <= first * (1 + 1 / 12) + 0.01
    # A send of 240 us beside the GEMM of 180, slowed by at most 1/12; and one of 480 beside one of 120.
    for cause, gemm, send in (("polling", 180, 240), ("raising", 120, 480)):
        ends = (
            end + send - (end - end / BLOCKS) / (1 + 10 / 12) + 10 for end in (gemm, gemm * 13 / 12)
        )
        assert next(ends) - 0.01 <= found[cause] <= next(ends) + 0.01


def test_the_gemm_of_a_measured_call_fills_what_the_rest_leaves() -> None:
    """64 tokens: 32 experts of one tile of rows, 56 of columns: 1792 tiles, 150 rounds on 12 SMs and 180
    on 10."""
    shape = Shape(TOKENS_A_RANK, 2)
    machine = with_gemm_of(168.0, shape, small(1200, 96))
    assert call_us(WHOLE, shape, machine) == pytest.approx(168, abs=0.01)
    assert call_us(BUDGETS, shape, machine) == pytest.approx(150 * 180 / 150 + 48 + 10, abs=0.01)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("comm", SMS)
def test_no_shape_deadlocks_and_each_order_holds(tokens: int, comm: int) -> None:
    machine = load_machine(PROFILE)
    for way in WAYS:
        made = program(way, Shape(tokens, comm), machine)
        assert len(made.signals) == (2 * CALLS if way == SIGNALS else 0)
        assert all(1 <= signal.blocks <= 32 for signal in made.signals)
        spans = simulate(made, machine).spans
        assert len(spans) == 2 * 3 * CALLS
        for rank in (0, 1):
            for layer in {span.layer for span in spans}:
                check_call((s for s in spans if (s.rank, s.layer) == (rank, layer)), way, comm)


def check_call(spans: Iterable[Span], way: str, comm: int) -> None:
    """The order of one call on a rank, and the SMs of its kernels."""
    by_kind = {span.kind: span for span in spans}
    gemm, send, receive = (by_kind[kind] for kind in (GEMM, SEND, "combine_recv"))
    assert gemm.start_ns < gemm.end_ns <= send.end_ns <= receive.start_ns
    assert (send.start_ns < gemm.end_ns) == (way == SIGNALS)
    if way != WHOLE:
        assert (gemm.sms, send.sms) == (132 - comm, comm)


def records(found: dict[Shape, Times]) -> list[str]:
    """As `benchmarks.triton_ratios` writes them, with some of another part."""
    lines = [json.dumps({"what": "low latency", "tokens": 8, "us": 20.7})]
    for shape, ways in found.items():
        for way, us in zip(WAYS, ways, strict=True):
            record = {"what": "signals", **shape._asdict(), "schedule": way, "us": us}
            lines.append(json.dumps(record))
    return lines


def test_signs_are_counted_also_of_gains_beyond_what_repetitions_move() -> None:
    found = {Shape(32, s): Times(1, 100, us) for s, us in ((4, 90), (8, 99), (16, 110))}
    assert measured(records(found)) == found
    told = agreement({shape: Times(1, 100, 105) for shape in found}, found)
    assert told == "Signs right: 1 of 3; 1 of 2 of the gains beyond 2%."


def test_the_page_has_all_shapes_with_the_measured_ones_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "records.jsonl"
    own = {Shape(32, 4): EARLIER[Shape(32, 4)], Shape(48, 4): Times(200, 220, 210)}
    file.write_text("\n".join(records(own)), encoding="utf-8")
    main(["--measured", str(file)])
    rows = capsys.readouterr().out.splitlines()
    assert sum(row.startswith("| ") for row in rows) == 2 + len(TOKENS) * len(SMS) + 1
    (row,) = (row for row in rows if row.startswith("| 32 | 4 |"))
    assert row.endswith(" | 237 | 261 | 249 | -4.6 % | right |")
    assert rows[-1].startswith("Signs right: ") and rows[-1].count(" of 2") == 2


def test_records_that_lack_a_way_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("\n".join(records({Shape(32, 4): Times(1, 2, 3)})[:-1]), encoding="utf-8")
    for given in (["--measured", str(file)], ["--gemm", "measured"]):
        with pytest.raises(SystemExit) as stopped:
            main(given)
        assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert "schedule" in told and SIGNALS in told and "--earlier" in told
