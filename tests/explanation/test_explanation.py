"""The figures of explain: their numbers follow from model, routing and rules, and flip with the input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_overlap.explanation import Explanation, explain
from moe_overlap.explanation.checkpoint import checkpoint_fit
from moe_overlap.explanation.control import control
from moe_overlap.explanation.gains import gains
from moe_overlap.explanation.paths import two_paths
from moe_overlap.explanation.slots import slots
from scenarios import load
from scenarios.resolve import resolve
from tests.models.checkpoint_cases import ROUTED, config_of, expert_tensors, write
from viz.explain import explanation_page
from viz.explain_words import control_words, gains_words, overlap_words, paths_words, slots_words
from viz.page import render

PREFILL = "deepseek-v3-h200-ep8-prefill"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _checkpoint(tmp_path_factory.mktemp("whole"), "fp8_block")


@pytest.fixture(scope="module")
def tiny(checkpoint: Path) -> Explanation:
    return explain(load("tiny", []), checkpoint=checkpoint)


@pytest.fixture(scope="module")
def prefill() -> Explanation:
    return explain(load(PREFILL, ["phase.prefill.tokens_per_rank=1024", "model.num_layers=8"]))


def _checkpoint(folder: Path, shared: str) -> Path:
    tensors = expert_tensors("fp8_block", shared=ROUTED[shared])
    return write(folder / "made", config_of("fp8_block"), tensors)


def test_fusion_moves_the_shared_kernels_into_one_more_row(prefill: Explanation) -> None:
    paths = prefill.document["paths"]
    one, two = paths["unfused"], paths["fused"]
    assert [k["name"] for k in one["shared"]] and not two["shared"]
    assert one["launches"] - two["launches"] == len(one["shared"])
    assert (one["rows"] + 1, one["top_k"] + 1) == (two["rows"], two["top_k"]) == (33, 9)
    assert one["flops"] == two["flops"]


def test_slots_of_the_per_rank_layout_stand_at_the_end_of_each_rank(prefill: Explanation) -> None:
    found = prefill.document["slots"]
    assert found["layout"] == "per_rank"
    assert found["total_ids"] == {"global": 257, "per_rank": 264}
    assert [rank["ids"]["per_rank"][-1] for rank in found["ranks"]] == [
        33 * r + 32 for r in range(8)
    ]
    assert {rank["ids"]["global"][-1] for rank in found["ranks"]} == {256}
    assert found["shared_weight"] == {"per_rank": 0.4, "global": 0.05}
    for token in found["tokens"]:
        assert token["per_rank_ids"][:-1] == [e + e // 32 for e in token["routed"]]
        assert token["per_rank_ids"][-1] == 32
        assert 0 <= token["waterfill_rank"] < 8


def test_waterfill_keeps_the_copies_and_lowers_the_peak(prefill: Explanation) -> None:
    load_ = prefill.document["gains"]["load"]
    assert sum(load_["home"]) == sum(load_["waterfill"]) == sum(load_["routed"]) + 8 * 1024
    assert max(load_["waterfill"]) < max(load_["home"])


@pytest.mark.parametrize(
    ("setting", "outcome", "rule"),
    [
        ("shared_experts.fusion=auto", "not fused", "deepseek.deepep"),
        ("shared_experts.fusion=enforce", "fused", "deepseek.enforce"),
        ("shared_experts.fusion=disable", "not fused", "flag.disable"),
    ],
)
def test_control_and_its_words_follow_the_flag(setting: str, outcome: str, rule: str) -> None:
    found = control(resolve(load("tiny", [setting])))
    assert (found["here"]["outcome"], found["here"]["rule"]) == (outcome, rule)
    assert f"the shared expert is {outcome}, by rule {rule}" in control_words(found)


def test_exposed_time_and_yields_lie_on_the_timeline(tiny: Explanation) -> None:
    timelines = tiny.timelines
    schedules: list[dict[str, Any]] = tiny.document["overlap"]
    assert [one["name"] for one in schedules] == ["baseline", "sbo", "tbo"]
    for one in schedules:
        spans = {(s.rank, s.op): s for s in timelines[one["name"]].spans}
        for turn in one["yields"]:
            assert spans[turn["rank"], turn["op"]].start_ns == turn["ns"]
        for rank, start, end in one["exposed"]:
            busy = [
                s
                for s in spans.values()
                if s.rank == rank and s.start_ns < end and s.end_ns > start
            ]
            assert busy and all(
                s.kind.startswith(("dispatch", "combine", "flight", "layout", "notify"))
                for s in busy
            )
    assert {turn["child"] for turn in schedules[2]["yields"]} == {"a", "b"}
    assert schedules[0]["yields"] == []


def test_what_cannot_run_is_said(prefill: Explanation) -> None:
    assert set(prefill.document["overlap_refused"]) == {"sbo"}
    words = overlap_words(prefill.document["overlap"], prefill.document["overlap_refused"])
    assert "sbo cannot run here" in words
    few = ["phase.decode.batch_per_rank=8", "model.num_layers=5"]
    odd = resolve(load("deepseek-v3-h100-ep72-decode", few))
    assert "Waterfill cannot run here" in gains_words(gains(odd))


def test_words_state_the_documents_numbers(prefill: Explanation) -> None:
    document = prefill.document
    paths = paths_words(document["paths"])
    assert f"{document['paths']['unfused']['launches']} kernels" in paths
    assert "row 33 of the grouped GEMM" in paths
    assert "264 ids" in slots_words(document["slots"])
    load_ = document["gains"]["load"]
    assert f"from {max(load_['home']):,} to {max(load_['waterfill']):,} copies" in gains_words(
        document["gains"]
    )


def test_page_holds_the_document_and_every_figure(tiny: Explanation) -> None:
    html = render(explanation_page(tiny.document, tiny.timelines))
    for number in range(1, 6):
        assert f"<h2>{number}. " in html
    for row in tiny.document["gains"]["rows"]:
        if row["layer_us"] is not None:
            assert (
                f'data-schedule="{row["name"]}" data-key="layer_us" data-value="{row["layer_us"]!r}"'
                in html
            )


@pytest.mark.parametrize(
    ("shared", "verdict"), [("fp8_block", "fuses"), ("bf16", "would load and serve garbage")]
)
def test_checkpoint_figure_says_whether_the_shared_expert_fits(
    tiny: Explanation, tmp_path: Path, shared: str, verdict: str
) -> None:
    fit = checkpoint_fit(resolve(load("tiny", [])), _checkpoint(tmp_path, shared))
    assert [entry["verdict"] for entry in fit["layers"]] == [verdict]
    assert fit["layers"][0]["layers"] == [1, 2]
    assert {move["part"] for move in fit["moves"]} == {"w1", "w2", "w3"}
    html = render(explanation_page({**tiny.document, "checkpoint": fit}, tiny.timelines))
    stored = len(expert_tensors("fp8_block", shared=ROUTED[shared]))
    assert f"<h2>6. Checkpoint</h2><p>made stores {stored} tensors" in html
    assert verdict in html


def test_explain_looks_at_the_checkpoint_that_it_is_given(
    tiny: Explanation, prefill: Explanation, checkpoint: Path
) -> None:
    fit = checkpoint_fit(resolve(load("tiny", [])), checkpoint)
    assert (tiny.document["checkpoint"], prefill.document["checkpoint"]) == (fit, None)


@pytest.mark.parametrize(("weights", "told"), [("fp8_block", False), ("bf16", True)])
def test_a_checkpoint_in_another_format_than_the_scenarios_is_told(
    tiny: Explanation, checkpoint: Path, weights: str, told: bool
) -> None:
    resolved = resolve(load("tiny", [f"quantization.weights={weights}"]))
    fit = checkpoint_fit(resolved, checkpoint)
    html = render(explanation_page({**tiny.document, "checkpoint": fit}, tiny.timelines))
    assert (f"quantization.weights is {weights}, made says fp8: that is fp8_block." in html) == told


def test_a_model_without_a_shared_expert_has_no_shared_row() -> None:
    resolved = resolve(load("qwen3-30b-h100-ep8-prefill", ["phase.prefill.tokens_per_rank=512"]))
    found = slots(resolved)
    assert found["shared"] == 0
    for rank in found["ranks"]:
        assert rank["ids"]["global"] == rank["ids"]["per_rank"] == rank["experts"]
    assert "no shared expert" in slots_words(found)
    assert two_paths(resolved)["fused"] is None
