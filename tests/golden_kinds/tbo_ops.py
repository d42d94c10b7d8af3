"""Operation lists by decoder-layer class, their stages, and the order of issue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.sglang_rules import Refused, load_rules
from models.sglang_tbo import deep_gemm_sms, tbo_strategy
from schedules.builders.turns import issue_order
from schedules.op_list import join_layers, parse_op_list

GROUP = "layer_class"
INPUTS = frozenset(
    {"id", "layer_class", "mode", "L", "a2a", "total_sms", "deepep_num_sms", "hip"}
    | {"first_layer_dense"}
)


def answer(case: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    if case["layer_class"] == "synthetic":
        order = _order(case["n_stages"], case["delta"])
        return {"n_stages": case["n_stages"], "delta": case["delta"], "issue_order": order}
    rules = load_rules()
    try:
        strategy = tbo_strategy(
            rules,
            case["layer_class"],
            case["mode"],
            case.get("a2a", "deepep"),
            first_layer_dense=case.get("first_layer_dense", False),
        )
    except Refused as refused:
        dense = refused.refusal.rule == "tbo.dense_layer"
        return {"error": "AssertionError" if dense else "NotImplementedError"}
    stages = [
        [f"{layer}:{rules.tbo.operations[letter]}" for layer, letter in stage]
        for stage in join_layers(parse_op_list(strategy.ops, rules.tbo.operations), case["L"])
    ]
    return {
        "delta": strategy.delta,
        "deep_gemm_num_sms": deep_gemm_sms(
            strategy,
            num_sms=case["total_sms"],
            comm_sms=case["deepep_num_sms"],
            hip=case["hip"],
        ),
        "n_stages": len(stages),
        "stages": stages,
        "debug_names": [[name.split(".")[1] for name in stage] for stage in stages],
        "issue_order": _order(len(stages), strategy.delta),
    }


def _order(num_stages: int, delta: int) -> list[str]:
    return [f"{child.upper()}{stage}" for child, stage in issue_order(num_stages, delta)]
