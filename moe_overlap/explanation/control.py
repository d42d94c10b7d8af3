"""Figure 3: switch, layout and scheduling of the shared expert: their state here, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.fusion import Decision, decide
from models.fusion_case import FusionCase
from models.fusion_deployment import fusion_case
from models.fusion_rules import fusion_versions, load_fusion_rules
from scenarios.resolve import Resolved

FLAGS: Mapping[str, Mapping[str, Any]] = {
    "no flag": {},
    "--enforce-shared-experts-fusion": {"enforce": True},
    "--disable-shared-experts-fusion": {"disable": True},
    "--enable-waterfill": {"waterfill": True},
}
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "--enforce-shared-experts-fusion": {"enforce": True, "disable": False},
    "--enable-waterfill": {"waterfill": True},
    "no all-to-all backend, no expert parallelism": {"a2a": "none", "ep": 1},
    "single-batch overlap off": {"sbo": False},
    "two-batch overlap off": {"tbo": False},
    "single-batch overlap on": {"sbo": True},
    "two-batch overlap on": {"tbo": True},
}


def control(resolved: Resolved) -> dict[str, Any]:
    """Decisions by flag and rule version, and the single changes that turn the one that holds here."""
    case = scenario_case(resolved)
    current = resolved.scenario.runtime.sglang
    versions = fusion_versions()
    return {
        "version": current,
        "here": _entry(decide(case, load_fusion_rules(current))),
        "flags": [
            {
                "flag": flag,
                "version": version,
                **_entry(decide(replace(_bare(case), **facts), load_fusion_rules(version))),
            }
            for flag, facts in FLAGS.items()
            for version in versions
        ],
        "changes": _turning(case, current),
        "scheduling": [
            {
                "schedule": hook.schedule,
                "unfused": hook.unfused,
                "fused": hook.fused,
                "evidence": hook.evidence,
            }
            for hook in load_fusion_rules(current).scheduling
        ],
    }


def scenario_case(resolved: Resolved) -> FusionCase:
    """The fusion case of the scenario's own flags."""
    flags = resolved.scenario.shared_experts
    return fusion_case(
        resolved.deployment,
        enforce=flags.fusion == "enforce",
        disable=flags.fusion == "disable",
        waterfill=flags.waterfill,
    )


def _bare(case: FusionCase) -> FusionCase:
    return replace(case, enforce=False, disable=False, waterfill=False)


def _entry(decision: Decision) -> dict[str, Any]:
    return {
        "outcome": decision.outcome,
        "layout": decision.fusion.layout,
        "waterfill": decision.fusion.waterfill,
        "rule": decision.rule,
        "reason": decision.reason,
        "evidence": decision.evidence,
        "steps": [
            {"rule": step.rule, "reason": step.reason, "set": dict(step.changed)}
            for step in decision.steps
        ],
    }


def _turning(case: FusionCase, version: str) -> list[dict[str, Any]]:
    """The single changes whose outcome or layout differs from the scenario's own."""
    rules = load_fusion_rules(version)
    here = decide(case, rules)
    found = []
    for name, facts in _CHANGES.items():
        changed = replace(case, **facts)
        if changed == case:
            continue
        there = decide(changed, rules)
        if (there.outcome, there.fusion) != (here.outcome, here.fusion):
            found.append({"change": name, **_entry(there)})
    return found
