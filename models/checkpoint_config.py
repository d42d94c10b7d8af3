"""What a checkpoint's configuration says about its experts, and the fusion case that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.checkpoint_files import Checkpoint
from models.checkpoint_formats import Format
from models.errors import InputError
from models.fusion_case import FusionCase, device_facts
from models.fusion_product import BACKENDS

_SHARED_KEYS = ("n_shared_experts", "num_shared_experts")
_ROUTED_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")
_SHARED_SIZE_KEYS = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
_EXCLUDE_KEYS = ("exclude_modules", "ignore", "exclude", "modules_to_not_convert")


@dataclass(frozen=True, slots=True)
class Server:
    """What the checkpoint is to be served on: device, ranks that share an expert, and ranks that spread
    the experts with their all-to-all."""

    device: str = "sm90"
    tp: int = 1
    ep: int = 1
    a2a: str = "none"


def _source(checkpoint: Checkpoint) -> str:
    return str(checkpoint.folder / "config.json")


def _whole(checkpoint: Checkpoint, key: str, value: Any, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise InputError(_source(checkpoint), key, value, f"a whole number from {least}")
    return value


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, Any]:
    """The first key that is given, and its value; the first key and None without any."""
    given = ((key, config[key]) for key in keys if config.get(key) is not None)
    return next(given, (keys[0], None))


def expert_counts(checkpoint: Checkpoint) -> tuple[int, int]:
    """Shared and routed experts. InputError when either is none."""
    config = checkpoint.config
    routed = _whole(checkpoint, *_first(config, _ROUTED_KEYS))
    key, shared = _first(config, _SHARED_KEYS)
    if shared is None and config.get(_SHARED_SIZE_KEYS[0]):
        shared = 1
    if type(shared) is not int or shared < 1:
        allowed = "a whole number from 1: without a shared expert there is nothing to fuse"
        raise InputError(_source(checkpoint), key, shared, allowed)
    return shared, routed


def expert_sizes(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a routed expert's projections."""
    hidden, inner = (
        _whole(checkpoint, key, checkpoint.config.get(key))
        for key in ("hidden_size", "moe_intermediate_size")
    )
    return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}


def moe_layers(checkpoint: Checkpoint) -> list[int]:
    """Layers that the config gives routed experts; draft layers beyond them are not among them.

    `moe_layer_freq` is a period, or one 0 or 1 per layer; `decoder_sparse_step` is Qwen's period, which
    counts layers from 1.
    """
    source, config = _source(checkpoint), checkpoint.config
    count, first = config.get("num_hidden_layers"), config.get("first_k_dense_replace") or 0
    _whole(checkpoint, "first_k_dense_replace", first, least=0)
    if type(count) is not int or not first < count:
        raise InputError(source, "num_hidden_layers", count, f"more than {first} dense layers")
    if count > checkpoint.num_tensors:
        allowed = f"at most the {checkpoint.num_tensors} tensors that are stored"
        raise InputError(source, "num_hidden_layers", count, allowed)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise InputError(source, "mlp_only_layers", dense, "a list of layer numbers")
    step = _whole(checkpoint, "decoder_sparse_step", config.get("decoder_sparse_step") or 1)
    pattern = _pattern(checkpoint, count)
    numbers = (n for n in range(first, count) if pattern[n] and (n + 1) % step == 0)
    return [number for number in numbers if number not in dense]


def _pattern(checkpoint: Checkpoint, count: int) -> list[bool]:
    """Whether each layer is MoE by `moe_layer_freq` alone."""
    frequency = checkpoint.config.get("moe_layer_freq")
    if isinstance(frequency, list):
        if len(frequency) < count or any(entry not in (0, 1) for entry in frequency):
            allowed = f"0 or 1 for each of {count} layers"
            raise InputError(_source(checkpoint), "moe_layer_freq", frequency, allowed)
        return [bool(entry) for entry in frequency]
    step = _whole(checkpoint, "moe_layer_freq", 1 if frequency is None else frequency)
    return [number % step == 0 for number in range(count)]


def fusion_case(checkpoint: Checkpoint, fmt: Format, server: Server) -> FusionCase:
    """The fusion case of this checkpoint on this server, without flags. InputError for a server that
    is not known or cannot hold the experts."""
    config, (shared, routed) = checkpoint.config, expert_counts(checkpoint)
    inner, hidden = expert_sizes(checkpoint)["gate_proj"]
    if server.a2a not in BACKENDS:
        raise InputError("server", "a2a", server.a2a, ", ".join(BACKENDS))
    if routed % server.ep:
        raise InputError("server", "ep", server.ep, f"a divisor of the {routed} routed experts")
    platform, capability = device_facts(server.device)
    key, size = _first(config, _SHARED_SIZE_KEYS)
    excluded = names_shared(checkpoint.quantization)
    facts: dict[str, Any] = {
        "tp": server.tp * server.ep,
        "ep": server.ep,
        "a2a": server.a2a,
        "platform": platform,
        "capability": capability,
        "aiter": platform == "hip",
        "model_type": str(config.get("model_type", "")),
        "top_k": config.get("num_experts_per_tok") or 0,
        "hidden_size": hidden,
        "moe_intermediate": inner,
        "shared_intermediate": _whole(checkpoint, key, size) if size else inner * shared,
        "hidden_act": str(config.get("hidden_act", "silu")),
        "swiglu_limit": config.get("swiglu_limit"),
        "quant": fmt.quant,
        **(fmt.facts or {}),
        "shared_excluded": excluded,
        "quant_can_fuse": not (excluded and fmt.quant in ("modelopt_fp4", "quark")),
    }
    architecture = checkpoint.text_architecture
    return FusionCase(checkpoint.architecture, architecture, routed, shared, **facts)


def converts_online(case: FusionCase) -> bool:
    """Quark's way out for an excluded shared expert, when fusion is enforced: Qwen3.5 on gfx95x."""
    qwen = case.model_type.startswith("qwen3_5")
    return case.quant == "quark" and qwen and (case.platform, case.capability) == ("hip", 95)


def names_shared(quantization: Mapping[str, Any]) -> bool:
    """Whether an exclude list names the shared expert (its gate alone does not count), or a spec of its
    own differs from the global one."""
    lists = [quantization.get(key) for key in _EXCLUDE_KEYS]
    entries = [str(entry) for found in lists if isinstance(found, list) for entry in found]
    if any("shared_expert" in entry.replace("shared_expert_gate", "") for entry in entries):
        return True
    own = quantization.get("layer_quant_config")
    specs = own.items() if isinstance(own, Mapping) else ()
    common = quantization.get("global_quant_config")
    return any("shared_expert" in pattern and spec != common for pattern, spec in specs)
