"""Every combination of family, all-to-all backend, format, device and flag, as fusion cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from models.fusion_case import FusionCase, device_facts
from models.fusion_rules import FusionRules

BACKENDS = (
    *("none", "deepep", "deepep_v2", "mooncake", "mori", "pplx", "nixl", "megamoe", "flashinfer"),
    *("flashinfer_megamoe", "ascend_fuseep", "ascend_tp", "customized"),
)
_FP8 = {"quant": "fp8"}
_NVFP4 = {"quant": "modelopt_fp4"}
_VETO = {"quant_can_fuse": False, "shared_excluded": True}
_INT4 = {"quant": "compressed_tensors", "int4_weights": True}
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "BF16": {"quant": "none"},
    "FP8 block": {**_FP8, "fp8_block": 128, "fp8_dynamic": True},
    "FP8 per tensor": _FP8,
    "MXFP8": {"quant": "mxfp8"},
    "FP4 experts in FP8": {**_FP8, "fp8_block": 128, "fp4_experts": True},
    "MXFP4 Quark": {"quant": "quark"},
    "MXFP4 Quark, BF16 shared": {"quant": "quark", **_VETO},
    "NVFP4": _NVFP4,
    "NVFP4, BF16 shared": {**_NVFP4, **_VETO},
    "W4AFP8": {"quant": "w4afp8"},
    "AWQ": {"quant": "awq"},
    "GPTQ": {"quant": "gptq"},
    "compressed-tensors int4": _INT4,
    "compressed-tensors int4, BF16 shared": {**_INT4, "shared_excluded": True},
}
FLAGS = ("enforce", "disable", "waterfill", "sbo", "tbo")
SERVERS = (("sm90", 1), ("sm90", 8), ("sm100", 72), ("gfx950", 8))


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination: the case, and the names it was made of."""

    family: str
    backend: str
    format: str
    device: str
    case: FusionCase


def combinations(
    rules: FusionRules, servers: tuple[tuple[str, int], ...] = SERVERS
) -> Iterator[Combination]:
    """All combinations on the given servers, each a device and an expert-parallel size: one class of
    every family, every backend, every format, every subset of the flags."""
    for family, backend, name, (device, ep) in product(rules.families, BACKENDS, FORMATS, servers):
        base = _arguments(rules, family, backend, name, device, ep)
        for bits in product((False, True), repeat=len(FLAGS)):
            flags: dict[str, Any] = dict(zip(FLAGS, bits, strict=True))
            yield Combination(family, backend, name, device, FusionCase(**base, **flags))


def _arguments(
    rules: FusionRules, family: str, backend: str, name: str, device: str, ep: int
) -> dict[str, Any]:
    """The family's first class with 256 routed experts and one shared expert of the same size."""
    model_class, entry = next(iter(rules.families[family].classes.items()))
    platform, capability = device_facts(device)
    return {
        "model_class": model_class,
        "architecture": entry.accepts or model_class,
        "n_routed": 256,
        "n_shared": 1,
        "a2a": backend,
        "ep": ep,
        "tp": ep,
        "platform": platform,
        "capability": capability,
        "moe_intermediate": 2048,
        "shared_intermediate": 2048,
        **FORMATS[name],
    }
