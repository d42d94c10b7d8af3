"""Small checkpoints of every format, written with the safetensors library, and their reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import TensorSpec, serialize_file

from models.checkpoint import LayerVerdict, Report, inspect
from models.checkpoint_config import Server
from models.checkpoint_files import open_checkpoint

HIDDEN, INNER, EXPERTS, LAYERS, DENSE = 512, 256, 4, 3, 1
MOE_LAYERS = list(range(DENSE, LAYERS))
SIZES = {
    "gate_proj": (INNER, HIDDEN),
    "up_proj": (INNER, HIDDEN),
    "down_proj": (HIDDEN, INNER),
}
Tensors = dict[str, tuple[str, tuple[int, ...]]]
Projection = Callable[[int, int], Tensors]
_BYTES = {
    **{"uint8": 1, "int8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float16": 2},
    **{"float32": 4, "int32": 4, "int64": 8},
}
V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": HIDDEN,
    "moe_intermediate_size": INNER,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_hidden_layers": LAYERS,
    "first_k_dense_replace": DENSE,
    "num_experts_per_tok": 2,
}


def bf16(o: int, k: int) -> Tensors:
    return {"weight": ("bfloat16", (o, k))}


def fp8_block(o: int, k: int) -> Tensors:
    scale = (-(-o // 128), -(-k // 128))
    return {"weight": ("float8_e4m3fn", (o, k)), "weight_scale_inv": ("float32", scale)}


def fp8_tensor(o: int, k: int) -> Tensors:
    return {
        "weight": ("float8_e4m3fn", (o, k)),
        "weight_scale": ("float32", ()),
        "input_scale": ("float32", ()),
    }


def mxfp8(o: int, k: int) -> Tensors:
    return {"weight": ("float8_e4m3fn", (o, k)), "weight_scale": ("uint8", (o, k // 32))}


def fp4_experts(o: int, k: int) -> Tensors:
    return {"weight": ("int8", (o, k // 2)), "scale": ("uint8", (o, k // 32))}


def mxfp4(o: int, k: int) -> Tensors:
    return {"weight": ("uint8", (o, k // 2)), "weight_scale": ("uint8", (o, k // 32))}


def nvfp4(o: int, k: int) -> Tensors:
    return {
        "weight": ("uint8", (o, k // 2)),
        "weight_scale": ("float8_e4m3fn", (o, k // 16)),
        "weight_scale_2": ("float32", ()),
        "input_scale": ("float32", ()),
    }


def w4afp8(o: int, k: int) -> Tensors:
    return {"weight": ("int8", (o, k // 2)), "weight_scale_inv": ("bfloat16", (o, k // 128))}


def awq(o: int, k: int) -> Tensors:
    return {
        "qweight": ("int32", (k, o // 8)),
        "scales": ("float16", (k // 128, o)),
        "qzeros": ("int32", (k // 128, o // 8)),
    }


def gptq(o: int, k: int) -> Tensors:
    return {
        "qweight": ("int32", (k // 8, o)),
        "scales": ("float16", (k // 128, o)),
        "qzeros": ("int32", (k // 128, o // 8)),
        "g_idx": ("int32", (k,)),
    }


def wna16(o: int, k: int) -> Tensors:
    return {
        "weight_packed": ("int32", (o, k // 8)),
        "weight_scale": ("bfloat16", (o, k // 32)),
        "weight_shape": ("int64", (2,)),
    }


def ct_nvfp4(o: int, k: int) -> Tensors:
    return {
        "weight_packed": ("uint8", (o, k // 2)),
        "weight_scale": ("float8_e4m3fn", (o, k // 16)),
        "weight_global_scale": ("float32", (1,)),
        "input_global_scale": ("float32", (1,)),
    }


_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_INT4 = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}
QUANTIZATION: Mapping[str, Mapping[str, Any] | None] = {
    "bf16": None,
    "fp8_block": {**_FP8, "weight_block_size": [128, 128]},
    "fp8_tensor": _FP8,
    "mxfp8": {"quant_method": "mxfp8"},
    "fp4_experts": {**_FP8, "weight_block_size": [128, 128]},
    "mxfp4": {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "w4afp8": {"quant_method": "w4afp8"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "wna16": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": _INT4}},
        "ignore": ["lm_head"],
    },
    "ct_nvfp4": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
}
ROUTED: Mapping[str, Projection] = {
    "bf16": bf16,
    "fp8_block": fp8_block,
    "fp8_tensor": fp8_tensor,
    "mxfp8": mxfp8,
    "fp4_experts": fp4_experts,
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    "w4afp8": w4afp8,
    "awq": awq,
    "gptq": gptq,
    "wna16": wna16,
    "ct_nvfp4": ct_nvfp4,
}


def config_of(fmt: str, **changes: Any) -> dict[str, Any]:
    """A V3-shaped config of this format."""
    quantization = QUANTIZATION[fmt]
    config = V3 | ({"quantization_config": dict(quantization)} if quantization else {})
    if fmt == "fp4_experts":
        config |= {"expert_dtype": "fp4"}
    return config | changes


def expert_tensors(
    fmt: str, shared: Projection | None = None, *, shared_sizes: Mapping[str, Any] = SIZES
) -> Tensors:
    """Routed experts in the format, the shared one likewise or as given, for every MoE layer."""
    tensors: Tensors = {}
    for layer in range(DENSE, LAYERS):
        block = f"model.layers.{layer}.mlp"
        for expert in range(EXPERTS):
            for name, size in SIZES.items():
                for suffix, spec in ROUTED[fmt](*size).items():
                    tensors[f"{block}.experts.{expert}.{name}.{suffix}"] = spec
        for name, size in shared_sizes.items():
            for suffix, spec in (shared or ROUTED[fmt])(*size).items():
                tensors[f"{block}.shared_experts.{name}.{suffix}"] = spec
    return tensors


def write(folder: Path, config: Mapping[str, Any], tensors: Tensors, *, shards: int = 2) -> Path:
    """A checkpoint folder with an index; tensors are dealt to the shards in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    where: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        where |= dict.fromkeys(part, name)
        save(folder / name, part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def write_headers_only(
    folder: Path, config: Mapping[str, Any], tensors: Tensors, *, shards: int
) -> None:
    """A checkpoint of true headers in sparse files; types are those of the format (`F8_E4M3`)."""
    sizes = {"F8_E4M3": 1, "U8": 1, "BF16": 2, "F32": 4}
    (folder / "config.json").write_text(json.dumps(config))
    where: dict[str, str] = {}
    stored = tuple(tensors.items())
    for shard in range(shards):
        name, header, end = f"model-{shard:05d}.safetensors", {}, 0
        for key, (dtype, shape) in stored[shard::shards]:
            begin, end = end, end + prod(shape) * sizes[dtype]
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
            where[key] = name
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def save(path: Path, tensors: Tensors) -> None:
    """One shard, all zeros, written by the library."""
    buffers = {name: _zeros(*spec) for name, spec in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=dtype,
            shape=list(shape),
            data_ptr=buffers[name].ctypes.data,
            data_len=buffers[name].nbytes,
        )
        for name, (dtype, shape) in tensors.items()
    }
    serialize_file(specs, str(path))


def _zeros(dtype: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    return np.zeros(prod(shape) * _BYTES[dtype], dtype=np.uint8)


def report(
    folder: Path,
    fmt: str,
    shared: Projection | None = None,
    *,
    server: Server | None = None,
    **config: Any,
) -> Report:
    """The report on a checkpoint of the format, with the shared expert stored as told."""
    tensors = expert_tensors(fmt, shared)
    return inspect(open_checkpoint(write(folder, config_of(fmt, **config), tensors)), server)


def only(found: Report) -> LayerVerdict:
    """The verdict that all MoE layers share."""
    assert [layer.layer for layer in found.layers] == MOE_LAYERS
    assert len({(layer.verdict, layer.rule) for layer in found.layers}) == 1
    return found.layers[0]


def quantised(fmt: str, **changes: Any) -> dict[str, Any]:
    """`quantization_config` of the format with some keys replaced."""
    return {"quantization_config": config_of(fmt)["quantization_config"] | changes}
