"""Can the shared expert of a real checkpoint fill a slot of the grouped GEMM?

`inspect` answers for every MoE layer from file headers alone: *fuses*, *fuses after online
requantisation*, *refused* (the server says no, or stops), or *would load and serve garbage*, with the
rule and the tensors. It asks what happens when fusion is enforced; `Report.default` says what the
server does without that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.checkpoint_files import Checkpoint, LayerTensors
from models.checkpoint_formats import FP4_EXPERTS, MXFP4, Format, ceil_div, format_of
from models.checkpoint_slots import (
    PROJECTIONS,
    Effect,
    Finding,
    routed_faults,
    shared_name,
    slot_findings,
)
from models.errors import InputError
from models.fusion import Decision, decide
from models.fusion_case import FusionCase, device_facts

Verdict = Literal[
    "fuses", "fuses after online requantisation", "refused", "would load and serve garbage"
]
_VERDICTS: Mapping[Effect, Verdict] = {
    "fits": "fuses",
    "requantised": "fuses after online requantisation",
    "refused": "refused",
    "garbage": "would load and serve garbage",
}
_SHARED_KEYS = ("n_shared_experts", "num_shared_experts")
_ROUTED_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")


@dataclass(frozen=True, slots=True)
class Server:
    """What the checkpoint is to be served on: device, ranks that share an expert, and ranks that spread
    the experts with their all-to-all."""

    device: str = "sm90"
    tp: int = 1
    ep: int = 1
    a2a: str = "none"


@dataclass(frozen=True, slots=True)
class LayerVerdict:
    """The verdict of one layer: the rule that decided and every finding of that weight."""

    layer: int
    verdict: Verdict
    rule: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """One line of the rename table: where a shared tensor goes."""

    name: str
    renamed: str
    parameter: str
    part: str
    stored: str


@dataclass(frozen=True)
class Report:
    """The answer: format, decisions with and without enforced fusion, and a verdict for each layer."""

    format: str
    architecture: str
    num_tensors: int
    routed_experts: int
    enforced: Decision
    default: Decision
    layers: tuple[LayerVerdict, ...]
    moves: tuple[Move, ...]


def inspect(checkpoint: Checkpoint, server: Server | None = None) -> Report:
    """The report. InputError with file and key for a config that lacks sizes or a shared expert."""
    server = server or Server()
    fmt = format_of(checkpoint)
    shared, routed = _counts(checkpoint)
    sizes = _sizes(checkpoint)
    case = _case(checkpoint, fmt, server, shared, routed, sizes)
    enforced = decide(replace(case, enforce=True))
    layers = []
    for number in _moe_layers(checkpoint):
        layer = next((one for one in checkpoint.layers if one.layer == number), None)
        findings = _layer_findings(layer, number, fmt, enforced, routed, sizes, server.tp)
        layers.append(_judge(number, findings, fmt))
    return Report(
        fmt.name,
        checkpoint.architecture,
        checkpoint.num_tensors,
        routed,
        enforced,
        decide(case),
        tuple(layers),
        tuple(move for layer in checkpoint.layers for move in _moves(layer, routed)),
    )


def _layer_findings(
    layer: LayerTensors | None,
    number: int,
    fmt: Format,
    enforced: Decision,
    routed: int,
    sizes: Mapping[str, tuple[int, int]],
    tp: int,
) -> Iterator[Finding]:
    if layer is None or not layer.routed:
        where = f"layers.{number}"
        yield Finding("checkpoint.routed", "refused", where, "no routed expert is stored")
        return
    yield from routed_faults(layer, fmt, routed, sizes)
    if not layer.shared:
        name = shared_name(layer, ("gate_proj", "weight"))
        yield Finding("checkpoint.shared", "refused", name, "no shared expert is stored")
        return
    refusal = enforced.refusal
    if refusal is not None:
        yield Finding(refusal.rule, "refused", f"{layer.block}.shared_experts", refusal.reason)
        return
    inner = sizes["gate_proj"][0]
    if inner % tp or inner // tp % fmt.inner_unit:
        detail = f"inner size {inner} over {tp} ranks is not a multiple of {fmt.inner_unit}"
        yield Finding("tp.divisible", "refused", f"{layer.block}.experts", detail)
        return
    online = _requantised(layer, fmt, sizes, tp)
    yield from online if online is not None else slot_findings(layer, fmt)


def _requantised(
    layer: LayerTensors, fmt: Format, sizes: Mapping[str, tuple[int, int]], tp: int
) -> list[Finding] | None:
    """Findings where the server converts the shared expert to FP4 while it loads; None where not."""
    if any(projection == "gate_up_proj" for projection, _ in layer.shared) and fmt is MXFP4:
        name = shared_name(layer, ("gate_up_proj", "weight"))
        detail = "gate and up stored as one tensor cannot be converted online"
        return [Finding("requant.fused_gate_up", "refused", name, detail)]
    dtypes = {info.dtype for (_, suffix), info in layer.shared.items() if suffix == "weight"}
    if fmt is FP4_EXPERTS and dtypes == {"F8_E4M3"}:
        return _from_fp8(layer, sizes)
    if fmt is MXFP4 and dtypes and dtypes <= {"BF16", "F16"}:
        return _from_bf16(layer, sizes, tp)
    return None


def _from_fp8(layer: LayerTensors, sizes: Mapping[str, tuple[int, int]]) -> list[Finding]:
    """Block FP8 to MXFP4, once weight and scale have both arrived."""
    findings = []
    for projection in PROJECTIONS:
        outputs, inputs = sizes[projection]
        scales = (ceil_div(outputs, 128), ceil_div(inputs, 128))
        for suffix, shape in (("weight", (outputs, inputs)), ("weight_scale_inv", scales)):
            info = layer.shared.get((projection, suffix))
            name = shared_name(layer, (projection, suffix))
            if info is None:
                detail = "the conversion waits for it, so the slot keeps what is in memory"
                findings.append(Finding("requant.incomplete", "garbage", name, detail))
            elif info.shape != shape:
                detail = f"{info}, needed {list(shape)}"
                findings.append(Finding("requant.shape", "refused", name, detail))
            else:
                findings.append(Finding("requant.fp8_to_mxfp4", "requantised", name, str(info)))
    return findings


def _from_bf16(layer: LayerTensors, sizes: Mapping[str, tuple[int, int]], tp: int) -> list[Finding]:
    """BF16 to MXFP4 in blocks of 32 along hidden and the rank's share of the inner size."""
    findings = []
    for projection in PROJECTIONS:
        outputs, inputs = sizes[projection]
        name = shared_name(layer, (projection, "weight"))
        info = layer.shared.get((projection, "weight"))
        share = inputs // tp if projection == "down_proj" else inputs
        if info is None:
            findings.append(Finding("requant.incomplete", "garbage", name, "not stored"))
        elif info.shape != (outputs, inputs) or share % 32:
            detail = f"{info}; blocks of 32 need [{outputs}, {inputs}] and {share} in 32s"
            findings.append(Finding("requant.shape", "refused", name, detail))
        else:
            findings.append(Finding("requant.bf16_to_mxfp4", "requantised", name, str(info)))
    return findings


def _judge(number: int, findings: Iterator[Finding], fmt: Format) -> LayerVerdict:
    """The gravest effect decides: what stops the server comes before what it would serve."""
    by_effect: dict[Effect, list[Finding]] = {}
    for finding in findings:
        by_effect.setdefault(finding.effect, []).append(finding)
    for effect in ("refused", "garbage", "requantised", "fits"):
        if found := by_effect.get(effect):
            return LayerVerdict(number, _VERDICTS[effect], found[0].rule, tuple(found))
    raise AssertionError(f"layer {number} of {fmt.name} has no finding")


def _moves(layer: LayerTensors, routed: int) -> Iterator[Move]:
    """Substring `shared_experts` becomes `experts.N`; w13 takes gate and up, w2 takes down."""
    parts = {"gate_proj": ("w13", "w1"), "up_proj": ("w13", "w3"), "down_proj": ("w2", "w2")}
    for key, info in sorted(layer.shared.items()):
        projection, suffix = key
        prefix, part = parts.get(projection, ("w13", "w1 and w3"))
        renamed = f"{layer.block}.experts.{routed}.{projection}.{suffix}"
        parameter = f"{layer.block}.experts.{prefix}_{suffix}"
        yield Move(layer.names[key], renamed, parameter, part, str(info))


def _counts(checkpoint: Checkpoint) -> tuple[int, int]:
    """Shared and routed experts by the config."""
    source, config = str(checkpoint.folder / "config.json"), checkpoint.config
    routed = _first(config, _ROUTED_KEYS)
    if type(routed) is not int or routed < 1:
        raise InputError(source, _ROUTED_KEYS[0], routed, "a whole number from 1")
    shared = _first(config, _SHARED_KEYS)
    if shared is None and config.get("shared_expert_intermediate_size"):
        shared = 1
    if type(shared) is not int or shared < 1:
        allowed = "a whole number from 1: without a shared expert there is nothing to fuse"
        raise InputError(source, "n_shared_experts", shared, allowed)
    return shared, routed


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _sizes(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of a routed expert's projections."""
    source, sizes = str(checkpoint.folder / "config.json"), []
    for key in ("hidden_size", "moe_intermediate_size"):
        value = checkpoint.config.get(key)
        if type(value) is not int or value < 1:
            raise InputError(source, key, value, "a whole number from 1")
        sizes.append(value)
    hidden, inner = sizes
    return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}


def _moe_layers(checkpoint: Checkpoint) -> list[int]:
    """Layers that the config gives routed experts; draft layers beyond them are not among them."""
    source, config = str(checkpoint.folder / "config.json"), checkpoint.config
    count, first = config.get("num_hidden_layers"), config.get("first_k_dense_replace", 0)
    if type(count) is not int or type(first) is not int or not 0 <= first < count:
        raise InputError(source, "num_hidden_layers", count, f"more than {first} dense layers")
    step = config.get("moe_layer_freq", 1)
    dense = config.get("mlp_only_layers") or ()
    step = step if type(step) is int and step > 0 else 1
    return [number for number in range(first, count, step) if number not in dense]


def _case(
    checkpoint: Checkpoint,
    fmt: Format,
    server: Server,
    shared: int,
    routed: int,
    sizes: Mapping[str, tuple[int, int]],
) -> FusionCase:
    """The fusion case of this checkpoint on this server."""
    config = checkpoint.config
    platform, capability = device_facts(server.device)
    inner = sizes["gate_proj"][0]
    given = _first(
        config, ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    )
    facts: dict[str, Any] = {
        "architecture": (config.get("architectures") or [checkpoint.architecture])[0],
        "tp": server.tp * server.ep,
        "ep": server.ep,
        "a2a": server.a2a,
        "platform": platform,
        "capability": capability,
        "aiter": platform == "hip",
        "model_type": str(config.get("model_type", "")),
        "top_k": config.get("num_experts_per_tok") or 0,
        "hidden_size": sizes["gate_proj"][1],
        "moe_intermediate": inner,
        "shared_intermediate": given or inner * shared,
        "hidden_act": str(config.get("hidden_act", "silu")),
        "swiglu_limit": config.get("swiglu_limit"),
        "quant": fmt.quant,
        **(fmt.facts or {}),
    }
    excluded = names_shared(checkpoint.quantization)
    facts["shared_excluded"] = excluded
    vetoing = fmt.quant in ("modelopt_fp4", "quark")
    facts["quant_can_fuse"] = not (vetoing and excluded) or _converts_online(facts)
    return FusionCase(checkpoint.architecture, facts.pop("architecture"), routed, shared, **facts)


def _converts_online(facts: Mapping[str, Any]) -> bool:
    """Quark's way out for an excluded shared expert: Qwen3.5 on gfx95x, enforced."""
    qwen = str(facts["model_type"]).startswith("qwen3_5")
    return facts["quant"] == "quark" and qwen and facts["capability"] == 95


def names_shared(quantization: Mapping[str, Any]) -> bool:
    """Whether an exclude list names the shared expert (its gate alone does not count), or a spec of its
    own differs from the global one."""
    lists = [
        quantization.get(key)
        for key in ("exclude_modules", "ignore", "exclude", "modules_to_not_convert")
    ]
    entries = [str(entry) for found in lists if isinstance(found, list) for entry in found]
    if any("shared_expert" in entry.replace("shared_expert_gate", "") for entry in entries):
        return True
    own = quantization.get("layer_quant_config")
    specs = own.items() if isinstance(own, Mapping) else ()
    common = quantization.get("global_quant_config")
    return any("shared_expert" in pattern and spec != common for pattern, spec in specs)
