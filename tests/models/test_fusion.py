"""Fusion decisions: every combination has a rule, versions differ where they did, files are sound."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.conditions import faults, holds
from models.deployment import Fusion
from models.errors import InputError
from models.fusion import decide
from models.fusion_case import FACTS, FusionCase, device_facts
from models.fusion_document import fusion_document
from models.fusion_product import BACKENDS, FLAGS, FORMATS, SERVERS, combinations
from models.fusion_rules import fusion_versions, load_fusion_rules

NEW, OLD = load_fusion_rules("0.5.23"), load_fusion_rules("0.5.14")
V3 = FusionCase(
    "DeepseekV3ForCausalLM",
    "DeepseekV3ForCausalLM",
    256,
    1,
    quant="fp8",
    fp8_block=128,
    moe_intermediate=2048,
    shared_intermediate=2048,
)


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_the_full_product_is_decided_and_every_refusal_cites_a_rule(
    server: tuple[str, int],
) -> None:
    known = {rule.id for rule in NEW.all_rules()}
    known |= {"flag.disable", "class.no_check", "config.no_shared"}
    outcomes: Counter[str] = Counter()
    for one in combinations(NEW, (server,)):
        decision = decide(one.case, NEW)
        outcomes[decision.outcome] += 1
        if decision.outcome == "fused":
            assert decision.fusion.slots == 1
        else:
            assert decision.rule in known and decision.reason, one
            assert decision.fusion == Fusion()
    assert outcomes.total() == len(NEW.families) * len(BACKENDS) * len(FORMATS) * 2 ** len(FLAGS)
    assert min(outcomes.values()) > 0 and len(outcomes) == 3


def test_two_shared_experts_stop_the_loader_when_enforced() -> None:
    lite = replace(V3, model_class="DeepseekV2ForCausalLM", n_routed=64, n_shared=2)
    assert decide(lite).rule == "deepseek.config"
    enforced = decide(replace(lite, enforce=True))
    assert (enforced.outcome, enforced.rule) == ("error", "deepseek.one_shared")


def test_an_argument_that_disables_is_named_rather_than_the_flag_it_sets() -> None:
    served = replace(V3, runner="flashinfer_trtllm", enforce=True)
    assert decide(served).rule == "arg.runner"
    assert decide(replace(served, disable=True)).rule == "flag.disable"


def test_deepep_fuses_only_when_told_and_then_in_private_slots() -> None:
    served = replace(V3, a2a="deepep", ep=16, tp=16)
    assert decide(served).rule == "deepseek.deepep"
    enforced = decide(replace(served, enforce=True))
    assert (enforced.fusion.slots, enforced.fusion.layout) == (1, "per_rank")
    assert decide(V3).fusion.layout == "global"


def test_waterfill_moves_the_backend_and_enforces() -> None:
    decision = decide(replace(V3, a2a="mooncake", ep=16, tp=16, waterfill=True, disable=False))
    assert decision.case.a2a == "deepep" and decision.fusion.waterfill
    assert [step.rule for step in decision.steps] == [
        "arg.waterfill_backend",
        "arg.waterfill_enforces",
    ]


@pytest.mark.parametrize(("ep", "rule"), [(72, "waterfill.power_of_two"), (64, "waterfill.ranks")])
def test_waterfill_needs_a_power_of_two_up_to_32(ep: int, rule: str) -> None:
    decision = decide(replace(V3, a2a="deepep", ep=ep, tp=ep, waterfill=True))
    assert (decision.outcome, decision.rule) == ("error", rule)


def test_the_quantisation_veto_beats_enforcing_only_in_the_newer_version() -> None:
    """NVFP4 with a BF16 shared expert: 0.5.14 loaded it under enforce, and served garbage."""
    mixed = replace(V3, quant="modelopt_fp4", quant_can_fuse=False, enforce=True)
    assert decide(mixed, NEW).rule == "deepseek.quant"
    assert decide(mixed, OLD).outcome == "fused"


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({}, "fused", "fused"),
        ({"n_routed": 384}, "not fused", "not fused"),
        ({"n_routed": 384, "quant": "quark"}, "fused", "fused"),
        ({"ep": 8, "tp": 8}, "not fused", "not fused"),
        ({"quant": "w4afp8"}, "not fused", "not fused"),
        ({"quant": "compressed_tensors", "int4_weights": True}, "fused", "not fused"),
        ({"platform": "hip", "capability": 94, "ep": 8, "tp": 8}, "fused", "fused"),
        ({"platform": "musa", "capability": 31}, "fused", "fused"),
        ({"platform": "musa", "capability": 22}, "not fused", "not fused"),
        ({"model_class": "DeepseekV3ForCausalLMNextN"}, "not fused", "not fused"),
    ],
)
def test_both_versions_side_by_side(changes: dict[str, Any], old: str, new: str) -> None:
    case = replace(V3, **changes)
    assert (decide(case, OLD).outcome, decide(case, NEW).outcome) == (old, new)


def test_a_wrapper_is_judged_as_what_it_wraps() -> None:
    name = "KimiK25ForConditionalGeneration"
    kimi = replace(V3, model_class=name, architecture=name, n_routed=384, quant="quark")
    assert decide(kimi).outcome == "fused"
    assert decide(replace(kimi, quant="compressed_tensors")).rule == "deepseek.config"


def test_conditions() -> None:
    facts = {"a": 3, "b": "x", "c": True}
    assert holds({}, facts)
    assert holds({"a": {"ge": 3, "lt": 4}, "b": ["x", "y"], "not": {"c": False}}, facts)
    assert not holds({"any": [{"a": 4}, {"b": {"not_in": ["x"]}}]}, facts)
    assert holds({"a": {"not_multiple_of": 2}}, facts)
    assert list(faults({"d": 1, "a": {"near": 3}}, frozenset(facts))) == [
        "unknown fact 'd'",
        "unknown test 'near' of a",
    ]


@pytest.mark.parametrize("version", fusion_versions())
def test_every_reason_can_be_filled_in(version: str) -> None:
    facts = V3.facts()
    assert facts.keys() == FACTS
    for family in load_fusion_rules(version).families.values():
        for rule in (*family.rules, *family.slot_rules, *family.loader_rules):
            assert rule.text(facts) or rule.then == "fuse"


def test_an_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"0\.5\.14, 0\.5\.23"):
        load_fusion_rules("0.5.1")


@pytest.mark.parametrize("device", ["", "h200", "sm", "gfx9", "90"])
def test_unknown_devices_are_refused(device: str) -> None:
    with pytest.raises(InputError, match="sm90"):
        device_facts(device)


def test_the_document_is_up_to_date() -> None:
    stored = Path(__file__).parents[2] / "docs" / "fusion-rules.md"
    assert stored.read_text() == fusion_document(), "run: moe-overlap fusion --document"
