"""The fusion case of a deployment: what its flags and hardware are to the fusion rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.deployment import Deployment, Fusion
from models.experts import slot_layout
from models.fusion import Decision, decide
from models.fusion_case import FusionCase
from models.fusion_rules import load_fusion_rules

_QUANT: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"quant": "none"},
    "fp8_block": {"quant": "fp8", "fp8_block": 128, "fp8_dynamic": True},
    "nvfp4": {"quant": "modelopt_fp4"},
}


def fusion_case(deployment: Deployment, **flags: Any) -> FusionCase:
    """The case of a CUDA deployment; `flags` are further fields of `FusionCase` (`enforce`, ...).

    Experts are spread as the all-to-all backends force it: tensor-parallel size equals `ep_size`.
    """
    model = deployment.model
    major, minor = deployment.machine.compute_capability
    facts: dict[str, Any] = {
        "model_class": model.architecture,
        "architecture": model.architecture,
        "n_routed": model.n_routed_experts,
        "n_shared": model.n_shared_experts,
        "ep": deployment.ep_size,
        "tp": deployment.ep_size,
        "a2a": deployment.a2a.backend,
        "runner": deployment.moe_runner,
        "capability": 10 * major + minor,
        "model_type": model.model_type,
        "top_k": model.top_k,
        "hidden_size": model.hidden_size,
        "moe_intermediate": model.moe_intermediate_size,
        "shared_intermediate": model.shared_intermediate_size,
        **_QUANT[deployment.quantization.weights],
    }
    return FusionCase(**(facts | flags))


def decide_for(deployment: Deployment, version: str, **flags: Any) -> Decision:
    """The decision of an SGLang version for a deployment and flags."""
    return decide(fusion_case(deployment, **flags), load_fusion_rules(version))


def forced_fusion(deployment: Deployment, waterfill: bool) -> Fusion:
    """The fusion that would be if nothing refused it: one slot in the backend's layout."""
    return Fusion(1, slot_layout(deployment.a2a.backend), waterfill)
