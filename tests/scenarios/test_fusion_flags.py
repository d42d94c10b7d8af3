"""The scenario's own fusion flags: what they turn a schedule into, and a note where they do nothing."""

from __future__ import annotations

import pytest

from scenarios import load
from scenarios.resolve import Resolved, resolve

EP8 = "deepseek-v3-h200-ep8-decode"


def resolved(*settings: str, scenario: str = EP8) -> Resolved:
    return resolve(load(scenario, list(settings)))


@pytest.mark.parametrize(
    ("settings", "suffix"),
    [
        ([], ""),
        (["shared_experts.fusion=disable"], ""),
        (["shared_experts.fusion=enforce"], "+fused"),
        (["shared_experts.waterfill=true"], "+fused+waterfill"),
    ],
)
def test_flags_become_suffixes(settings: list[str], suffix: str) -> None:
    one = resolved(*settings)
    for name in ("baseline", "tbo", "sbo"):
        assert one.built_name(one.choice(name)) == name + suffix
    assert one.built_name(one.choice("tbo+fused")) == "tbo+fused"
    assert one.fusion_note() == ""


def test_a_model_that_cannot_fuse_runs_as_it_is_and_says_so() -> None:
    one = resolved("shared_experts.fusion=enforce", scenario="qwen3-235b-h100-ep8-decode")
    assert one.built_name(one.choice("baseline")) == "baseline"
    assert "class.no_check" in one.fusion_note()


def test_waterfill_switches_fusion_on_again_and_says_so() -> None:
    one = resolved("shared_experts={fusion: disable, waterfill: true}")
    assert one.built_name(one.choice("baseline")) == "baseline+fused+waterfill"
    assert one.fusion_note().startswith("disable has no effect (arg.waterfill_enables): ")


def test_a_server_that_does_not_start_is_kept_to_be_refused() -> None:
    one = resolved("shared_experts.waterfill=true", scenario="deepseek-v3-h100-ep72-decode")
    assert one.built_name(one.choice("baseline")) == "baseline+fused+waterfill"
