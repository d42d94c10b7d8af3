"""Fusion decisions of the model classes, and what the argument handling changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.fusion import adjustment, hook_answer, resolve
from models.fusion_case import FusionCase, device_facts
from models.fusion_rules import first_match, load_fusion_rules

Case = Mapping[str, Any]
GROUP = "kind"
INPUTS = frozenset(
    {
        "id",
        "kind",
        "model",
        "config",
        "device",
        "a2a",
        "ep",
        "tp",
        "sbo",
        "tbo",
        "enforce",
        "disable",
    }
    | {"waterfill", "quant", "runner", "sizes_equal"}
)
RULES = load_fusion_rules()
QUANT: dict[str, dict[str, Any]] = {
    "fp8": {"quant": "fp8", "fp8_block": 128},
    "fp8_pertensor": {"quant": "fp8"},
    "fp8_fp4_experts": {"quant": "fp8", "fp4_experts": True},
    "modelopt_fp4_shared_excluded": {
        "quant": "modelopt_fp4",
        "quant_can_fuse": False,
        "shared_excluded": True,
    },
    "modelopt_fp4_gate_excluded": {"quant": "modelopt_fp4"},
    "quark_can_fuse": {"quant": "quark"},
    "quark_cannot_fuse": {"quant": "quark", "quant_can_fuse": False},
    "ct_int4_bf16": {"quant": "compressed_tensors", "int4_weights": True},
    "ct_int4_fp8": {"quant": "compressed_tensors", "int4_weights": True},
    "ct_fp8": {"quant": "compressed_tensors"},
}


def answer(case: Case, document: Case) -> dict[str, Any]:
    if case["kind"] == "model":
        return _model(case, document)
    if case["kind"] == "qwen_can_fuse":
        return {"out": _qwen(case)}
    server = FusionCase(
        "DeepseekV3ForCausalLM",
        "DeepseekV3ForCausalLM",
        256,
        1,
        a2a=case.get("a2a", "none"),
        runner=case.get("runner", "auto"),
        waterfill=case.get("waterfill", False),
        disable=case.get("disable", False),
    )
    lists = {
        "arg_runner": RULES.arguments.runner,
        "arg_a2a": RULES.arguments.a2a,
        "arg_a2a_override": RULES.arguments.backend,
    }
    names = {"disable": "disable_shared_experts_fusion", "a2a": "moe_a2a_backend"}
    changes = adjustment(lists[case["kind"]], server)
    return {"out": {names[key]: value for key, value in changes.items()}}


def same(key: str, expected: Any, got: Any) -> bool:
    """Equality; an exception is compared by its type and words."""
    return bool(expected == got)


def _model(case: Case, document: Case) -> dict[str, Any]:
    server = _server({**document["defaults"], **case}, document["configs"])
    assert RULES.family_of(server.model_class) is not None, server.model_class
    rule, text = hook_answer(server, RULES)
    out: dict[str, Any] = {"reason": None}
    if rule is not None and rule.then == "error":
        out["raises"] = f"ValueError: {text}"
    elif rule is not None and rule.then == "refuse":
        out["reason"] = document["reasons"].index(text)
    verdict = resolve(server, RULES)
    out["resolved"] = (
        "ValueError" if verdict.outcome == "error" else _resolved(server, rule, verdict)
    )
    return out


def _resolved(server: FusionCase, rule: Any, verdict: Any) -> list[Any]:
    off = server.disable or (rule is not None and rule.then == "refuse")
    return [off, verdict.slots, verdict.slots > 0 and server.waterfill]


def _server(case: Case, configs: Case) -> FusionCase:
    config = configs[case["config"]]
    text = config.get("text_config", config)
    text = configs[text] if isinstance(text, str) else text
    platform, capability = device_facts(case["device"])
    shared = text.get("n_shared_experts", text.get("num_shared_experts")) or 0
    moe = text.get("moe_intermediate_size", 0)
    inner = text.get("moe_shared_expert_intermediate_size", moe * shared)
    return replace(
        FusionCase(
            case["model"],
            (text.get("architectures") or config.get("architectures") or [""])[0],
            text.get("n_routed_experts", 0),
            shared,
        ),
        **{key: case[key] for key in ("ep", "tp", "sbo", "tbo", "enforce", "disable", "waterfill")},
        a2a=case["a2a"],
        runner=case["runner"],
        platform=platform,
        capability=capability,
        aiter=platform == "hip",
        model_type=text.get("model_type", ""),
        top_k=text.get("num_experts_per_tok", 0),
        hidden_size=text.get("hidden_size", 0),
        moe_intermediate=moe,
        shared_intermediate=text.get("shared_expert_intermediate_size", inner),
        hidden_act=text.get("hidden_act", "silu"),
        swiglu_limit=text.get("swiglu_limit"),
        **QUANT.get(case["quant"], {"quant": case["quant"]}),
    )


def _qwen(case: Case) -> bool:
    """The class function alone: the last check, of the platform, is its caller's."""
    family = RULES.families["qwen"]
    server = FusionCase(
        "Qwen2MoeForCausalLM",
        "",
        0,
        1,
        a2a=case["a2a"],
        disable=case["disable"],
        moe_intermediate=512,
        shared_intermediate=512 if case["sizes_equal"] else 1024,
        **QUANT.get(case["quant"], {"quant": case["quant"]}),
    )
    checks = tuple(r for r in family.slot_rules if r.id.startswith("qwen.can_fuse."))
    return first_match(checks, server.facts()) is None
