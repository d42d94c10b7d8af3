"""Quantisation formats of checkpoints: what one expert's projection is stored as, and how a server
recognises the format.

A projection multiplies K inputs to O outputs: gate and up from hidden to inner, down back. The grouped
GEMM stacks the same tensors, one slot each (SGLang 0.5.23, `create_weights` of the methods in
`layers/quantization`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint_files import Checkpoint
from models.errors import InputError

Shape = tuple[int, ...]
ShapeOf = Callable[[int, int], Shape]


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a projection: types it may have, its shape from (outputs, inputs), whether it may be
    left out, the dimension that holds the outputs (None: not sharded), and another name that checkpoints
    may store it under."""

    dtypes: tuple[str, ...]
    shape: ShapeOf
    optional: bool = False
    outputs_at: int | None = 0
    other_name: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: SGLang's name of the method, the tensors, and the granularity that a tensor-parallel
    share of the inner size has to keep."""

    name: str
    quant: str
    tensors: Mapping[str, Stored]
    inner_unit: int = 1
    facts: Mapping[str, Any] | None = None


def ceil_div(number: int, unit: int) -> int:
    """Blocks of `unit` that hold `number`."""
    return -(-number // unit)


_FLOATS = ("F32", "BF16", "F16")
_SCALAR: ShapeOf = lambda o, k: ()  # noqa: E731


def scalar(optional: bool = False) -> Stored:
    """One number per projection; stored as [] or [1]."""
    return Stored(_FLOATS, _SCALAR, optional, outputs_at=None)


def _weight(*dtypes: str) -> Stored:
    return Stored(dtypes, lambda o, k: (o, k))


BF16 = Format("BF16", "none", {"weight": _weight("BF16", "F16", "F32")})
FP8_TENSOR = Format(
    "FP8 per tensor",
    "fp8",
    {
        "weight": _weight("F8_E4M3"),
        "weight_scale": scalar(),
        "input_scale": scalar(optional=True),
    },
)


def ct_fp8(scale: Stored, unit: int = 1) -> Format:
    """compressed-tensors FP8 with the scales of its strategy."""
    tensors = {"weight": _weight("F8_E4M3"), "weight_scale": scale, "input_scale": scalar(True)}
    return Format("compressed-tensors FP8", "compressed_tensors", tensors, inner_unit=unit)


def _e8m0_32(other_name: str) -> Stored:
    return Stored(("U8", "F8_E8M0"), lambda o, k: (o, ceil_div(k, 32)), other_name=other_name)


MXFP8 = Format(
    "MXFP8",
    "mxfp8",
    {
        "weight": _weight("F8_E4M3"),
        "weight_scale": _e8m0_32("weight_scale_inv"),
        "weight_scale_inv": _e8m0_32("weight_scale"),
    },
    inner_unit=32,
)
FP4_EXPERTS = Format(
    "FP4 experts in FP8",
    "fp8",
    {
        "weight": Stored(("I8", "U8", "F4"), lambda o, k: (o, k // 2)),
        "weight_scale_inv": Stored(("F32", "F8_E8M0", "U8"), lambda o, k: (o, ceil_div(k, 32))),
    },
    inner_unit=32,
    facts={"fp4_experts": True, "fp8_block": 128},
)
MXFP4 = Format(
    "MXFP4 (Quark)",
    "quark",
    {
        "weight": Stored(("U8",), lambda o, k: (o, k // 2)),
        "weight_scale": Stored(("U8", "F8_E8M0"), lambda o, k: (o, ceil_div(k, 32))),
    },
    inner_unit=32,
)
NVFP4 = Format(
    "NVFP4 (ModelOpt)",
    "modelopt_fp4",
    {
        "weight": Stored(("U8",), lambda o, k: (o, k // 2)),
        "weight_scale": Stored(("F8_E4M3",), lambda o, k: (o, k // 16)),
        "weight_scale_2": scalar(),
        "input_scale": scalar(),
    },
    inner_unit=16,
)
W4AFP8 = Format(
    "W4AFP8",
    "w4afp8",
    {
        "weight": Stored(("I8", "U8"), lambda o, k: (o, k // 2)),
        "weight_scale_inv": Stored(_FLOATS, lambda o, k: (o, ceil_div(k, 128))),
        "input_scale": scalar(optional=True),
    },
    inner_unit=128,
)
CT_NVFP4 = Format(
    "compressed-tensors NVFP4",
    "compressed_tensors",
    {
        "weight_packed": Stored(("U8",), lambda o, k: (o, k // 2)),
        "weight_scale": Stored(("F8_E4M3",), lambda o, k: (o, k // 16)),
        "weight_global_scale": scalar(),
        "input_global_scale": scalar(optional=True),
    },
    inner_unit=16,
)


def fp8_block(block: int) -> Format:
    """Block FP8 with square blocks."""
    scales: ShapeOf = lambda o, k: (ceil_div(o, block), ceil_div(k, block))  # noqa: E731
    return Format(
        "FP8 block",
        "fp8",
        {"weight": _weight("F8_E4M3"), "weight_scale_inv": Stored(("F32", "BF16"), scales)},
        inner_unit=block,
        facts={"fp8_block": block, "fp8_dynamic": True},
    )


def awq(bits: int, group: int) -> Format:
    """AWQ: inputs first, outputs packed along the rows' length."""
    pack = 32 // bits
    return Format(
        "AWQ",
        "awq",
        {
            "qweight": Stored(("I32",), lambda o, k: (k, o // pack), outputs_at=1),
            "scales": Stored(_FLOATS, lambda o, k: (ceil_div(k, group), o), outputs_at=1),
            "qzeros": Stored(("I32",), lambda o, k: (ceil_div(k, group), o // pack), outputs_at=1),
        },
        inner_unit=group,
    )


def gptq(bits: int, group: int) -> Format:
    """GPTQ: inputs first and packed."""
    pack = 32 // bits
    return Format(
        "GPTQ",
        "gptq",
        {
            "qweight": Stored(("I32",), lambda o, k: (k // pack, o), outputs_at=1),
            "scales": Stored(_FLOATS, lambda o, k: (ceil_div(k, group), o), outputs_at=1),
            "qzeros": Stored(("I32",), lambda o, k: (ceil_div(k, group), o // pack), outputs_at=1),
            "g_idx": Stored(("I32",), lambda o, k: (k,), optional=True, outputs_at=None),
        },
        inner_unit=group,
    )


def wna16(bits: int, group: int, symmetric: bool) -> Format:
    """compressed-tensors integer weights; the server transposes them while it loads."""
    pack = 32 // bits
    tensors = {
        "weight_packed": Stored(("I32",), lambda o, k: (o, ceil_div(k, pack))),
        "weight_scale": Stored(_FLOATS, lambda o, k: (o, ceil_div(k, group))),
        "weight_shape": Stored(("I64", "I32"), lambda o, k: (2,), True, outputs_at=None),
    }
    if not symmetric:
        zeros = Stored(("I32",), lambda o, k: (o // pack, ceil_div(k, group)))
        tensors["weight_zero_point"] = zeros
    return Format(
        f"compressed-tensors int{bits}",
        "compressed_tensors",
        tensors,
        inner_unit=group,
        facts={"int4_weights": bits == 4},
    )


_METHODS = (
    *("fp8", "mxfp8", "modelopt", "modelopt_fp4", "quark", "w4afp8", "awq", "gptq"),
    "compressed-tensors",
)


def format_of(checkpoint: Checkpoint) -> Format:
    """The format of the routed experts by the quantisation config. InputError names file and key of a
    method or a variant that is not known."""
    config = checkpoint.quantization
    if not config:
        return BF16
    method = config.get("quant_method")
    source = str(checkpoint.folder / checkpoint.quantization_file)
    if method == "fp8":
        return _fp8(checkpoint, source)
    if method in ("mxfp8", "w4afp8"):
        return MXFP8 if method == "mxfp8" else W4AFP8
    if method in ("modelopt", "modelopt_fp4"):
        return _modelopt(config, source)
    if method == "quark":
        return _quark(config, source)
    if method in ("awq", "gptq"):
        make = awq if method == "awq" else gptq
        return make(_bits(config, "bits", source), _whole(config, "group_size", source))
    if method == "compressed-tensors":
        return _compressed(config, source)
    raise InputError(source, "quantization_config.quant_method", method, ", ".join(_METHODS))


def _whole(config: Mapping[str, Any], key: str, source: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise InputError(source, key, value, "a whole number from 1")
    return value


def _bits(config: Mapping[str, Any], key: str, source: str) -> int:
    value = _whole(config, key, source)
    if value not in (2, 4, 8):
        raise InputError(source, key, value, "2, 4, 8: integers that fill 32 bits")
    return value


def _fp8(checkpoint: Checkpoint, source: str) -> Format:
    if checkpoint.config.get("expert_dtype") == "fp4":
        return FP4_EXPERTS
    block = checkpoint.quantization.get("weight_block_size")
    if block is None:
        return FP8_TENSOR
    if not (isinstance(block, list) and len(block) == 2 and block[0] == block[1]):
        raise InputError(source, "weight_block_size", block, "two equal whole numbers, or null")
    return fp8_block(_whole({"weight_block_size": block[0]}, "weight_block_size", source))


def _modelopt(config: Mapping[str, Any], source: str) -> Format:
    algorithm = config.get("quant_algo")
    known = {"NVFP4": NVFP4, "FP8": FP8_TENSOR}
    if not isinstance(algorithm, str) or algorithm not in known:
        raise InputError(source, "quant_algo", algorithm, ", ".join(known))
    return known[algorithm]


def _quark(config: Mapping[str, Any], source: str) -> Format:
    spec = config.get("global_quant_config")
    weight = spec.get("weight") if isinstance(spec, Mapping) else None
    dtype = weight.get("dtype") if isinstance(weight, Mapping) else None
    if dtype != "fp4":
        raise InputError(source, "global_quant_config.weight.dtype", dtype, "fp4")
    return MXFP4


def _compressed(config: Mapping[str, Any], source: str) -> Format:
    kind = config.get("format")
    if kind == "nvfp4-pack-quantized":
        return CT_NVFP4
    if kind not in ("pack-quantized", "float-quantized"):
        allowed = "pack-quantized, nvfp4-pack-quantized, float-quantized"
        raise InputError(source, "format", kind, allowed)
    groups = config.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        raise InputError(source, "config_groups", groups, "a group with weights")
    if kind == "float-quantized":
        return _compressed_fp8(weights, source)
    bits = _bits(weights, "num_bits", source)
    group = _whole(weights, "group_size", source)
    return wna16(bits, group, bool(weights.get("symmetric", True)))


def _compressed_fp8(weights: Mapping[str, Any], source: str) -> Format:
    strategy = weights.get("strategy")
    if strategy == "channel":
        return ct_fp8(Stored(_FLOATS, lambda o, k: (o, 1)))
    if strategy == "tensor":
        return ct_fp8(scalar())
    block = weights.get("block_structure")
    if strategy != "block" or block != [128, 128]:
        allowed = "channel, tensor, or block with block_structure [128, 128]"
        raise InputError(source, "config_groups.weights.strategy", strategy, allowed)
    return ct_fp8(Stored(_FLOATS, lambda o, k: (ceil_div(o, 128), ceil_div(k, 128))), unit=128)
