"""Held-out pairs: what they are, what is read off two loops, and what their page says."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.pairs import measured_file, predict, predicted_file, predictions, read
from benchmarks.pairs_causes import blocks
from benchmarks.pairs_document import again_part, document, outcomes
from benchmarks.pairs_draw import FIRST, OFFSETS, pairs
from benchmarks.pairs_plan import call_counts, late_ns, loops, parts_of, period
from benchmarks.pairs_run import finished
from executor.calibrate.plan import LADDER_SMS, PREFILL_TOKENS, SPLITS
from models.counts import gemm, grouped_gemm
from models.profile import load_machine
from schedules.lint import lint

SEED, PUBLISHED = 8, 30
PAIRS = tuple(pairs(SEED))
SEEN = tuple(pairs(FIRST))
MACHINE = load_machine("h200-2x-nvlink-measured")


def test_pairs_are_off_the_calibrations_grid() -> None:
    calibrated = {sms for sms, _ in SPLITS} | set(LADDER_SMS)
    for pair in PAIRS:
        assert pair.tokens not in PREFILL_TOKENS
        assert pair.num_sms not in calibrated


def test_no_drawn_pair_was_seen_and_a_seed_always_draws_the_same() -> None:
    assert not {pair.name for pair in PAIRS} & {pair.name for pair in SEEN}
    assert tuple(pairs(SEED)) == PAIRS
    assert tuple(pairs(SEED + 1)) != PAIRS


@pytest.mark.parametrize("plan", [PAIRS, SEEN], ids=["drawn", "first"])
def test_every_class_meets_both_exchanges_and_all_offsets(plan: Any) -> None:
    capped = [pair for pair in plan if pair.capped]
    met = {(pair.compute.family, pair.exchange) for pair in capped}
    assert len(capped) >= 16
    assert len(met) == 10
    uncapped = {(p.compute.family, p.offset) for p in plan if not p.capped}
    assert {offset for _, offset in uncapped} == set(OFFSETS)
    assert len(uncapped) == 9
    assert len({pair.name for pair in plan}) == len(plan)


@pytest.mark.parametrize("pair", [PAIRS[0], PAIRS[12], PAIRS[-1]], ids=lambda pair: pair.name)
def test_loops_are_sound_and_both_ranks_exchange_equally_often(pair: Any) -> None:
    parts = parts_of(pair, MACHINE)
    counts, late = call_counts(pair, parts, MACHINE), late_ns(pair, parts, MACHINE)
    program = loops(pair, parts, counts, late)
    assert not [finding for finding in lint(program) if finding.severity == "error"]
    for rank in program.ranks:
        names = [op.name for op in program.launches(rank)]
        assert sum(name.startswith("c") for name in names) == counts[0]
        assert sum(name.endswith(".notify") for name in names) == counts[1]


def test_period_counts_only_calls_beside_the_other_loop() -> None:
    ends = [10.0, 20.0, 30.0, 50.0, 70.0, 90.0, 100.0]
    alone = period(ends)
    beside = period(ends, [25.0, 95.0])
    assert alone is not None
    assert alone.seen == 6
    assert beside is not None
    assert (beside.median_ns, beside.seen) == (20.0, 3)
    assert period(ends, [60.0, 95.0]) is None


def test_the_committed_predictions_are_of_these_pairs() -> None:
    for seed, plan in ((SEED, PAIRS), (PUBLISHED, tuple(pairs(PUBLISHED))), (FIRST, SEEN)):
        records = [record["pair"] for record in read(predicted_file(seed))]
        assert records == [pair.name for pair in plan]


def test_pairs_are_predicted_again_for_the_calls_that_were_made() -> None:
    pair = PAIRS[0]
    parts = parts_of(pair, MACHINE)
    own = call_counts(pair, parts, MACHINE)
    other = {"pair": pair.name, "counts": [own[0] + 3, own[1] + 3], "late_ns": 7, "ranks": []}
    (record,) = predictions(MACHINE, [pair], [other])
    assert (list(record["counts"]), record["late_ns"]) == ([own[0] + 3, own[1] + 3], 7)
    (record,) = predictions(MACHINE, [pair])
    assert (tuple(record["counts"]), record["late_ns"]) == (own, late_ns(pair, parts, MACHINE))


def test_an_exchange_beside_streaming_weights_is_predicted_slower_than_alone() -> None:
    weights = next(pair for pair in PAIRS if pair.compute.family == "weights")
    record = predict(weights, MACHINE)
    exchange = record["beside"]["exchange"]["median_ns"] / record["alone"]["exchange"]["median_ns"]
    compute = record["beside"]["compute"]["median_ns"] / record["alone"]["compute"]["median_ns"]
    assert exchange > 1.5 > compute >= 1.0


def test_a_band_knows_nothing_of_the_offset_and_holds_every_offsets_prediction() -> None:
    apart = [pair for pair in PAIRS if not pair.capped][:2]
    first, second = predictions(MACHINE, apart)
    assert first["late_ns"] < second["late_ns"]
    assert first["band_ns"] == second["band_ns"]
    for record in (first, second):
        low, high = record["band_ns"]
        assert 0 < low <= record["makespan_ns"] <= high < 2 * low
        for loop, (least, most) in record["bands_ns"].items():
            assert record["alone"][loop]["mean_ns"] * 0.9 < least < most


def _period(ns: float) -> dict[str, float]:
    return {"median_ns": ns, "mean_ns": ns, "seen": 5}


def _run(alone: float, beside: float, last: float) -> dict[str, Any]:
    both = {"compute": _period(alone), "exchange": _period(alone)}
    ran = {"compute": _period(beside), "exchange": None, "last_ns": last}
    seen = {"compute": _period(beside), "exchange": _period(beside), "last_ns": last}
    return {"before": both, "beside": [seen, ran, seen], "after": both}


def _record(name: str, *, capped: bool) -> dict[str, Any]:
    loops_of = {"compute": _period(110.0), "exchange": _period(110.0)}
    record: dict[str, Any] = {
        "pair": name,
        "family": "dense",
        "capped": capped,
        "alone": {"compute": _period(100.0), "exchange": _period(100.0)},
        "beside": loops_of,
        "error": {"compute": 0.05, "exchange": 0.2},
        "makespan_ns": 1000.0,
    }
    if not capped:
        bands = {"compute": [90.0, 99.0], "exchange": [90.0, 101.0]}
        record |= {"band_ns": [900.0, 1100.0], "bands_ns": bands}
    return record


def test_errors_and_bands_against_worked_out_figures() -> None:
    predicted = [_record("a | x", capped=True), _record("b | x", capped=False)]
    ranks = [_run(50.0, 100.0, 980.0), _run(50.0, 100.0, 1020.0)]
    late = [_run(50.0, 100.0, 1250.0), _run(50.0, 100.0, 1050.0)]
    measured: list[dict[str, Any]] = [
        {"pair": "a | x", "began": True},
        {"pair": "a | x", "ranks": ranks, "late_ns": 0},
        {"pair": "b | x", "ranks": late, "late_ns": 200},
        {"pair": "c | x", "failed": ["no room"]},
    ]
    capped, uncapped = outcomes(predicted, measured)
    assert capped.off("compute") == pytest.approx(0.10)
    assert capped.off_alone("compute") == pytest.approx(1.0)
    assert capped.off_slowdown("compute") == pytest.approx(-0.45)
    assert capped.stated("exchange")
    assert not capped.stated("compute")
    assert uncapped.makespans_ns == (1050.0, 1050.0, 1050.0)
    assert uncapped.in_band
    assert not uncapped.call_in_band("compute")
    assert uncapped.call_in_band("exchange")
    page = document([capped, uncapped], measured, SEED)
    assert "The band holds 1 of 1" in page
    assert "Not measured: c, x: ['no room']" in page
    assert "time of a call beside: median 6 %, worst 15 % | 10.0%, 10.0% | worst only |" in page
    assert "inside the band: 80 % | 100% | yes |" in page
    again = again_part([capped], [capped, uncapped])
    assert "the band holds 0 of 0" in again
    assert "the band holds 1 of 1" in again


def test_a_pair_that_a_lost_run_began_is_not_begun_again(tmp_path: Any) -> None:
    path = tmp_path / "measured.jsonl"
    assert finished(path) == set()
    path.write_text('{"pair": "a", "began": true}\n{"pair": "b", "ranks": []}\n')
    assert finished(path) == {"a", "b"}


def test_blocks_of_a_gemm_and_of_padded_experts() -> None:
    assert blocks(gemm(300, 256, 512, "fp8_block")) == 3 * 2
    experts = grouped_gemm("grouped_gemm_contiguous", (1, 129), 384, 512, "fp8_block", 1)
    assert blocks(experts) == (1 + 2) * 3


def test_the_first_measurements_are_of_the_first_predictions() -> None:
    predicted, measured = read(predicted_file(FIRST)), read(measured_file(FIRST))
    assert len(outcomes(predicted, measured)) == len(SEEN)
    counts = {entry["pair"]: entry["counts"] for entry in measured if "ranks" in entry}
    assert counts == {record["pair"]: record["counts"] for record in predicted}
