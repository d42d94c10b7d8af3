"""The facts that decide shared-expert fusion, flat, as rules name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Literal

from models.errors import InputError
from models.experts import is_deepep_class, slot_layout

Platform = Literal["cuda", "hip", "musa", "cpu"]
_DEVICE = re.compile(r"(?:(sm|mp)([0-9]{2,3})|(gfx)([0-9]{2,3})[0-9a-f])")
_PLATFORMS: Mapping[str, Platform] = {"sm": "cuda", "gfx": "hip", "mp": "musa"}


@dataclass(frozen=True, slots=True)
class FusionCase:
    """Flags, parallelism, backends, device, model and quantisation of one server.

    `capability` is ten times the major plus the minor compute capability (90 for sm90, 94 for
    gfx942). `n_shared` is 0 when the config has none. `shared_intermediate` and `moe_intermediate`
    are the inner sizes of the shared expert (all shared ones together) and of a routed expert.
    `quant` is SGLang's name of the method; `quant_can_fuse` False where its config says that the
    shared expert is of higher precision; `shared_excluded` where an exclude list names the shared
    expert; `int4_weights` for compressed-tensors int4 weights with fp8 or bf16 activations;
    `fp8_block` the block size of block FP8, 0 without; `fp8_dynamic` for a serialised checkpoint with
    dynamic activation scales; `ptpc` for scales per token and channel. `cuda_opt_in` is Qwen's CUDA
    path, which is off by default. `expert_pack` is the offloading feature of that name.
    """

    model_class: str
    architecture: str
    n_routed: int
    n_shared: int
    disable: bool = False
    enforce: bool = False
    waterfill: bool = False
    sbo: bool = False
    tbo: bool = False
    ep: int = 1
    tp: int = 1
    a2a: str = "none"
    runner: str = "auto"
    platform: Platform = "cuda"
    capability: int = 90
    aiter: bool = False
    model_type: str = ""
    top_k: int = 0
    hidden_size: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0
    hidden_act: str = "silu"
    swiglu_limit: float | None = None
    encoder_only: bool = False
    quant: str = "none"
    quant_can_fuse: bool = True
    shared_excluded: bool = False
    int4_weights: bool = False
    fp4_experts: bool = False
    fp8_block: int = 0
    fp8_dynamic: bool = False
    ptpc: bool = False
    cuda_opt_in: bool = False
    expert_pack: bool = False

    def facts(self) -> dict[str, Any]:
        """All facts by name, those derived from others included."""
        return derived(dict(zip(self.__slots__, _VALUES(self), strict=True)))

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> FusionCase:
        """The case that has these facts."""
        return cls(*itemgetter(*cls.__slots__)(facts))


_VALUES = attrgetter(*FusionCase.__slots__)


def derived(facts: dict[str, Any], accepts: str = "") -> dict[str, Any]:
    """`facts` with those that follow from others; `accepts` is the architecture that the model's class
    fuses for."""
    moe_tp = max(1, facts["tp"] // facts["ep"])
    return facts | {
        "accepts": accepts,
        "architecture_accepted": facts["architecture"] == accepts,
        "deepep_class": is_deepep_class(facts["a2a"]),
        "per_rank_slots": slot_layout(facts["a2a"]) == "per_rank",
        "moe_tp": moe_tp,
        "intermediate_per_rank": facts["moe_intermediate"] // moe_tp,
        "sizes_equal": 0 < facts["shared_intermediate"] == facts["moe_intermediate"],
    }


FACTS = frozenset(FusionCase("", "", 0, 0).facts())


def device_facts(device: str) -> tuple[Platform, int]:
    """Platform and capability of a device name: sm90, sm100, gfx942, gfx90a, mp31 or cpu.

    InputError for another form.
    """
    if device == "cpu":
        return "cpu", 0
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise InputError("device", "device", device, "cpu, sm90, gfx942, mp31, ...")
    family, digits = (part for part in match.groups() if part is not None)
    return _PLATFORMS[family], int(digits)
