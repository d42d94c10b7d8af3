"""The number format that a config says its weights are stored in, beside the one that is predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FP4_EXPERTS = "fp8 with fp4 experts"
# By method as `quant_method` names it, the format of a scenario that is the same.
_WEIGHTS: Mapping[str | None, str] = {
    None: "bf16",
    "fp8": "fp8_block",
    "modelopt_fp4": "nvfp4",
    "compressed-tensors nvfp4-pack-quantized": "nvfp4",
}


def quant_method(outer: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    """The method of a config (of its text model where the whole states none), with what tells its number
    formats apart; None where weights are not quantised."""
    configs = (outer.get("quantization_config"), text.get("quantization_config"))
    found = next((one for one in configs if isinstance(one, Mapping) and one), {})
    method = found.get("quant_method")
    if not method:
        return None
    if method == "modelopt":
        return f"modelopt_{str(found.get('quant_algo')).lower().removeprefix('nv')}"
    if method == "compressed-tensors" and found.get("format"):
        return f"{method} {found['format']}"
    if method == "fp8" and text.get("expert_dtype") == "fp4":
        return FP4_EXPERTS
    return str(method)


def stored_weights(method: str | None) -> str | None:
    """A scenario's `quantization.weights` for a method, None where it has no such format."""
    return _WEIGHTS.get(method)


def weights_note(weights: str, method: str | None, source: str) -> str:
    """What to tell where weights are predicted in another format than `source` stores them in; else
    empty."""
    stored = stored_weights(method)
    if stored == weights:
        return ""
    says = method or "no quantization_config, which is bf16"
    formats = ", ".join(dict.fromkeys(_WEIGHTS.values()))
    advice = f"that is {stored}" if stored else f"none of {formats} is that"
    return f"quantization.weights is {weights}, {source} says {says}: {advice}"
