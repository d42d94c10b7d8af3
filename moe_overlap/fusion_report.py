"""What `moe-overlap fusion` says: switch, layout and scheduling of a scenario's shared expert.

A model without one has no rule that decides, unless a flag keeps its server from starting.
"""

from __future__ import annotations

from typing import Any

from models.experts import Layout, Slots, layer_folds_factor, shared_weight
from models.fusion import Decision, decide
from models.fusion_case import FusionCase
from models.fusion_deployment import fusion_case
from models.fusion_rules import fusion_versions, load_fusion_rules
from moe_overlap.prediction import refusal_of
from scenarios.resolve import Resolved

SCHEMA = 1
_FLAGS = ("enforce", "disable", "waterfill")
_NO_SHARED = {
    "outcome": "not fused",
    "rule": None,
    "reason": "The model has no shared expert, so no rule decides.",
    "evidence": None,
}


def fusion_document(resolved: Resolved) -> dict[str, Any]:
    """The document of one scenario, with the decision of every version that has rules."""
    version = resolved.rules.version
    case = _case(resolved)
    decision = decide(case, load_fusion_rules(version))
    hooks = decision.hooks if case.n_shared else ()
    return {
        "schema": SCHEMA,
        "sglang": version,
        "scenario": resolved.scenario.name,
        "switch": _switch(case, decision),
        "layout": _layout(resolved, decision),
        "scheduling": [_schedule(resolved, case, hook.schedule) for hook in hooks],
        "versions": {
            name: _verdict(decide(case, load_fusion_rules(name))) for name in fusion_versions()
        },
    }


def _case(resolved: Resolved) -> FusionCase:
    flags = resolved.scenario.shared_experts
    return fusion_case(
        resolved.deployment,
        enforce=flags.fusion == "enforce",
        disable=flags.fusion == "disable",
        waterfill=flags.waterfill,
    )


def _switch(case: FusionCase, decision: Decision) -> dict[str, Any]:
    return {
        "flags": {name: getattr(case, name) for name in _FLAGS},
        "adjusted": [
            {"rule": step.rule, "reason": step.reason, "set": dict(step.changed)}
            for step in decision.steps
        ],
        **_verdict(decision),
    }


def _verdict(decision: Decision) -> dict[str, Any]:
    if not decision.case.n_shared and decision.outcome != "error":
        return dict(_NO_SHARED)
    return {
        "outcome": decision.outcome,
        "rule": decision.rule,
        "reason": decision.reason,
        "evidence": decision.evidence,
    }


def _layout(resolved: Resolved, decision: Decision) -> dict[str, Any]:
    """The rows of the grouped GEMM, and the weight and place of the shared one."""
    deployment, fusion = resolved.deployment, decision.fusion
    where: Layout = "per_rank" if fusion.layout == "per_rank" else "global"
    slots = Slots(where, deployment.ep_size, deployment.experts_per_rank, fusion.slots)
    document: dict[str, Any] = {
        "kind": fusion.layout,
        "top_k": deployment.model.top_k + fusion.slots,
        "expert_ids": slots.total_ids,
        "rows_per_rank": slots.rows_per_rank,
    }
    if fusion.slots:
        folded = layer_folds_factor(decision.case.quant, decision.case.runner)
        weight = shared_weight(deployment.model.routed_scaling_factor, folded)
        share = deployment.ep_size if fusion.layout == "global" else 1
        document |= {
            "shared_id_on_rank_0": slots.shared_ids(0)[0],
            "shared_id_on_last_rank": slots.shared_ids(deployment.ep_size - 1)[0],
            "shared_weight": weight / share,
            "computed_by": _computed_by(decision),
        }
    return document


def _computed_by(decision: Decision) -> str:
    if decision.fusion.layout == "global":
        return "every rank, each with its share of the weight"
    return (
        "the rank that Waterfill chooses" if decision.fusion.waterfill else "the token's own rank"
    )


def _schedule(resolved: Resolved, case: FusionCase, schedule: str) -> dict[str, Any]:
    """Under this schedule's own flag: automatic fusion is off where a batch is overlapped. A schedule that
    the serving engine refuses has nothing `left`."""
    flags = fusion_case(
        resolved.deployment,
        **{name: getattr(case, name) for name in _FLAGS},
        sbo=schedule == "sbo",
        tbo=schedule == "tbo",
    )
    decision = decide(flags, load_fusion_rules(resolved.rules.version))
    refused = refusal_of(resolved, resolved.choice(schedule))
    hook = next(hook for hook in decision.hooks if hook.schedule == schedule)
    left = hook.fused if decision.outcome == "fused" else hook.unfused
    return {
        "schedule": schedule,
        **_verdict(decision),
        "refused": {"rule": refused.rule, "reason": refused.reason} if refused else None,
        "left": None if refused else left,
    }
