"""The rules file is complete, strict, and says what it says with evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from models.config import library_models, load_model
from models.sglang_rules import Refused, Rules, available_versions, load_rules
from models.sglang_sbo import select_variant
from models.sglang_tbo import RankVote, tbo_strategy, vote_refusal

ROOT = Path(__file__).parents[2]


def test_versions() -> None:
    assert "0.5.23" in available_versions()
    with pytest.raises(ValueError, match=r"no rules for SGLang '0\.5\.99'; known: .*0\.5\.23"):
        load_rules("0.5.99")


def test_every_rule_that_code_names_is_in_the_file() -> None:
    used: set[str] = set()
    for path in [*ROOT.glob("models/*.py"), *ROOT.glob("schedules/**/*.py")]:
        used.update(re.findall(r"refusal\(\s*\"([a-z0-9_.]+)\"", path.read_text()))
    assert len(used) > 10
    assert used <= load_rules().refusals.keys()


def test_every_refusal_has_a_reason_a_source_and_evidence() -> None:
    for name, rule in load_rules().refusals.items():
        assert len(rule.reason) > 20, name
        assert rule.source, name
        assert rule.evidence in ("code", "run", "inferred")


def test_details_follow_the_reason_in_brackets() -> None:
    found = load_rules().refusal("a2a.mode", "nixl normal")
    assert found.reason.endswith(" (nixl normal)")
    assert str(Refused(found)).endswith("[a2a.mode, code]")


@pytest.mark.parametrize("change", [{"colour": 1}, {"streams": {"main": "high"}}, {"tbo": {}}])
def test_an_unknown_or_malformed_key_is_an_error(change: dict[str, object]) -> None:
    data = load_rules().model_dump(by_alias=True)
    with pytest.raises(ValidationError):
        Rules.model_validate({**data, **change})


def test_rules_are_frozen() -> None:
    rules = load_rules()
    with pytest.raises(ValidationError, match="frozen"):
        rules.version = "0.6"


def test_library_models_have_a_layer_class_of_their_own() -> None:
    rules = load_rules()
    architectures = {load_model(name).architecture for name in library_models()}
    assert architectures <= rules.layer_classes.keys()


def test_families_without_a_list_are_refused_by_class() -> None:
    rules = load_rules()
    for name in rules.refusals["tbo.no_strategy"].known:
        with pytest.raises(Refused) as caught:
            tbo_strategy(rules, name, "DECODE", "deepep")
        assert caught.value.refusal.rule == "tbo.no_strategy"


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("runner", ["deep_gemm", "flashinfer_cutedsl", "triton"])
@pytest.mark.parametrize("blackwell", [False, True])
def test_a_selected_variant_is_of_the_device(blackwell: bool, runner: str, outside: bool) -> None:
    rules = load_rules()
    name = select_variant(
        rules, blackwell=blackwell, runner=runner, outside=outside, backend="deepep"
    )
    assert name is not None
    assert rules.sbo.variants[name].blackwell is blackwell
    # Off Blackwell the environment variable does nothing.
    assert rules.sbo.variants[name].outside is (outside and blackwell)


def test_one_rank_stops_all_and_says_which() -> None:
    votes = [RankVote(True, "DECODE", 4), RankVote(False, "DECODE", 4)]
    found = vote_refusal(load_rules(), votes)
    assert found is not None
    assert "ranks [1] cannot split" in found.reason
    assert "without a CUDA graph" in found.instead


def test_different_modes_stop_all() -> None:
    votes = [RankVote(True, "DECODE", 4), RankVote(True, "EXTEND", 1), RankVote(True, "IDLE", 0)]
    found = vote_refusal(load_rules(), votes)
    assert found is not None
    assert "modes DECODE, EXTEND" in found.reason
