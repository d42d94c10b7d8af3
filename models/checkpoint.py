"""Can the shared expert of a real checkpoint fill a slot of the grouped GEMM?

`inspect` answers for every MoE layer from file headers alone: *fuses*, *fuses after online
requantisation*, *refused* (the server says no, or stops), or *would load and serve garbage*, with the
rule and the tensors. It asks what happens when fusion is enforced; `Report.default` says what the
server does without that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from models.checkpoint_config import (
    Server,
    converts_online,
    expert_counts,
    expert_sizes,
    fusion_case,
    moe_layers,
)
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
from models.fusion import Decision, decide

Verdict = Literal[
    "fuses", "fuses after online requantisation", "refused", "would load and serve garbage"
]
_VERDICTS: Mapping[Effect, Verdict] = {
    "fits": "fuses",
    "requantised": "fuses after online requantisation",
    "refused": "refused",
    "garbage": "would load and serve garbage",
}


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
    """The report. InputError with file and key for a config that lacks sizes or a shared expert, or a
    server that cannot be."""
    server = server or Server()
    fmt = format_of(checkpoint)
    _, routed = expert_counts(checkpoint)
    sizes = expert_sizes(checkpoint)
    case = fusion_case(checkpoint, fmt, server)
    can_fuse = case.quant_can_fuse or converts_online(case)
    enforced = decide(replace(case, enforce=True, quant_can_fuse=can_fuse))
    stored, layers = {layer.layer: layer for layer in checkpoint.layers}, []
    for number in moe_layers(checkpoint):
        layer = stored.get(number)
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
        yield Finding("checkpoint.routed", "refused", where, "no experts.0, .1, ... are stored")
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
