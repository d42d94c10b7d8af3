"""Verdicts on checkpoints of every format, good and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint import inspect
from models.checkpoint_config import Server
from models.checkpoint_files import open_checkpoint
from models.checkpoint_slots import RULES
from tests.models.checkpoint_cases import (
    EXPERTS,
    HIDDEN,
    INNER,
    MOE_LAYERS,
    ROUTED,
    SIZES,
    Projection,
    Tensors,
    awq,
    bf16,
    config_of,
    expert_tensors,
    fp8_block,
    nvfp4,
    only,
    quantised,
    report,
    w4afp8,
    wna16,
    write,
)

KIMI: dict[str, Any] = {"architectures": ["KimiK25ForConditionalGeneration"]}
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe_text",
    "shared_expert_intermediate_size": INNER,
}


@pytest.mark.parametrize("fmt", ROUTED)
def test_a_shared_expert_in_the_routed_experts_format_fuses(fmt: str, tmp_path: Path) -> None:
    found = report(tmp_path, fmt)
    layer = only(found)
    assert (layer.verdict, layer.rule) == ("fuses", "slot.fits")
    assert len(layer.findings) == len(ROUTED[fmt](*SIZES["gate_proj"])) * 3
    assert len(found.moves) == len(layer.findings) * len(MOE_LAYERS)


def dropped(make: Projection, suffix: str) -> Projection:
    return lambda o, k: {key: spec for key, spec in make(o, k).items() if key != suffix}


def changed(
    make: Projection, suffix: str, shape: Callable[[int, int], tuple[int, ...]]
) -> Projection:
    return lambda o, k: make(o, k) | {suffix: (make(o, k)[suffix][0], shape(o, k))}


def transposed_awq(o: int, k: int) -> Tensors:
    return {key: (dtype, shape[::-1]) for key, (dtype, shape) in awq(o, k).items()}


EXCLUDED = {"ignore": ["lm_head", "model.layers.*.mlp.shared_experts*"]}
GATE_ONLY = {"ignore": ["lm_head", "model.layers.1.mlp.shared_expert_gate"]}
BROKEN: dict[str, tuple[str, Projection, dict[str, Any], str, str]] = {
    "BF16 in NVFP4, excluded": (
        *("nvfp4", bf16, quantised("nvfp4", **EXCLUDED)),
        *("refused", "deepseek.quant"),
    ),
    "BF16 in NVFP4, not excluded": ("nvfp4", bf16, {}, "refused", "loader.stops"),
    "only the gate excluded": (
        *("nvfp4", nvfp4, quantised("nvfp4", **GATE_ONLY)),
        *("fuses", "slot.fits"),
    ),
    "BF16 in int4, as Kimi-K2.5": (
        *("wna16", bf16, quantised("wna16", ignore=["re:.*shared_experts.*"]) | KIMI),
        *("would load and serve garbage", "loader.unwritten"),
    ),
    "BF16 in block FP8": (
        *("fp8_block", bf16, {}),
        *("would load and serve garbage", "loader.cast"),
    ),
    "block FP8 without scales": (
        *("fp8_block", dropped(fp8_block, "weight_scale_inv"), {}),
        *("would load and serve garbage", "loader.unwritten"),
    ),
    "NVFP4 without its second scale": (
        *("nvfp4", dropped(nvfp4, "weight_scale_2"), {}),
        *("would load and serve garbage", "loader.unwritten"),
    ),
    "too few block scales": (
        *("fp8_block", changed(fp8_block, "weight_scale_inv", lambda o, k: (o // 256, 3)), {}),
        *("refused", "loader.stops"),
    ),
    "one scale for all blocks": (
        *("fp8_block", changed(fp8_block, "weight_scale_inv", lambda o, k: ()), {}),
        *("refused", "loader.stops"),
    ),
    "scales of narrower groups": (
        *("wna16", changed(wna16, "weight_scale", lambda o, k: (o, k // 16)), {}),
        *("refused", "loader.stops"),
    ),
    "packed bytes of the other sign": (
        "w4afp8",
        lambda o, k: w4afp8(o, k) | {"weight": ("uint8", (o, k // 2))},
        {},
        *("fuses", "slot.fits"),
    ),
    "transposed AWQ": ("awq", transposed_awq, {}, "refused", "loader.stops"),
    "block FP8 in FP4 experts": (
        *("fp4_experts", fp8_block, {"architectures": ["DeepseekV4ForCausalLM"]}),
        *("fuses after online requantisation", "requant.fp8_to_mxfp4"),
    ),
    "block FP8 in FP4 experts, scales missing": (
        *("fp4_experts", dropped(fp8_block, "weight_scale_inv"), {}),
        *("would load and serve garbage", "requant.incomplete"),
    ),
    "BF16 in MXFP4, excluded": (
        *("mxfp4", bf16, quantised("mxfp4", exclude=["*shared_experts*"])),
        *("refused", "deepseek.quant"),
    ),
    "block FP8 in W4AFP8": ("w4afp8", fp8_block, {}, "refused", "loader.stops"),
    "a model whose class never fuses": (
        *("bf16", bf16, {"architectures": ["HYV4ForCausalLM"]}),
        *("refused", "hunyuan_v4.never"),
    ),
    "two shared experts": (
        *("fp8_block", fp8_block, {"n_shared_experts": 2}),
        *("refused", "deepseek.one_shared"),
    ),
}


def test_every_rule_of_the_loader_is_explained() -> None:
    cited = {rule for _, _, _, _, rule in BROKEN.values()}
    assert {
        rule for rule in cited if rule.partition(".")[0] in ("loader", "requant", "slot")
    } <= set(RULES)


@pytest.mark.parametrize(
    ("strategy", "shape"),
    [
        ("channel", lambda o, k: (o, 1)),
        ("tensor", lambda o, k: (1,)),
        ("block", lambda o, k: (o // 128, k // 128)),
    ],
)
def test_compressed_tensors_fp8_by_strategy(
    strategy: str, shape: Callable[[int, int], tuple[int, ...]], tmp_path: Path
) -> None:
    def make(o: int, k: int) -> Tensors:
        return {"weight": ("float8_e4m3fn", (o, k)), "weight_scale": ("float32", shape(o, k))}

    weights = {"strategy": strategy, "block_structure": [128, 128]}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    }
    tensors = {
        name.replace(".weight", f".{suffix}"): spec
        for name in expert_tensors("bf16")
        for suffix, spec in make(*SIZES[name.split(".")[-2]]).items()
    }
    config = config_of("bf16", quantization_config=quantization)
    assert only(inspect(open_checkpoint(write(tmp_path, config, tensors)))).verdict == "fuses"


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit_gets_the_right_verdict(name: str, tmp_path: Path) -> None:
    fmt, shared, config, verdict, rule = BROKEN[name]
    layer = only(report(tmp_path, fmt, shared, **config))
    assert (layer.verdict, layer.rule) == (verdict, rule)
    assert all(finding.tensor and finding.detail for finding in layer.findings)


def test_kimi_k25_is_refused_by_default_and_garbage_when_enforced(tmp_path: Path) -> None:
    """The published mixed checkpoint: int4 experts, BF16 shared expert (sglang #25974)."""
    found = report(tmp_path, "wna16", bf16, **KIMI)
    assert (found.default.outcome, found.default.rule) == ("not fused", "deepseek.config")
    assert found.enforced.outcome == "fused"
    names = {finding.rule for finding in found.layers[0].findings}
    assert names == {"loader.unwritten", "loader.unmatched"}


def test_qwen_bf16_shared_is_quantised_online_on_gfx950_only(tmp_path: Path) -> None:
    config = QWEN | quantised("mxfp4", exclude=["*shared_expert.*"])
    amd = only(report(tmp_path / "a", "mxfp4", bf16, server=Server("gfx950"), **config))
    assert amd.verdict == "fuses after online requantisation"
    other = only(report(tmp_path / "b", "mxfp4", bf16, server=Server("gfx942"), **config))
    assert (other.verdict, other.rule) == ("refused", "qwen.can_fuse.quant")


@pytest.mark.parametrize(
    ("tp", "verdict", "rule"), [(2, "fuses", "slot.fits"), (4, "refused", "tp.divisible")]
)
def test_tensor_parallel_shares_keep_whole_blocks(
    tp: int, verdict: str, rule: str, tmp_path: Path
) -> None:
    layer = only(report(tmp_path, "fp8_block", server=Server(tp=tp)))
    assert (layer.verdict, layer.rule) == (verdict, rule)


def test_one_bad_layer_does_not_taint_the_others(tmp_path: Path) -> None:
    tensors = expert_tensors("fp8_block")
    del tensors["model.layers.2.mlp.experts.3.up_proj.weight_scale_inv"]
    for key in [key for key in tensors if "layers.1" in key and "shared" in key]:
        del tensors[key]
    found = inspect(open_checkpoint(write(tmp_path, config_of("fp8_block"), tensors)))
    rules = [(layer.rule, layer.findings[0].tensor) for layer in found.layers]
    assert rules[0][0] == "checkpoint.shared"
    assert rules[1] == (
        "checkpoint.routed",
        "model.layers.2.mlp.experts.3.up_proj.weight_scale_inv",
    )


def test_a_wider_shared_expert_would_be_cut(tmp_path: Path) -> None:
    """Twice the inner size: the loader takes the first half and says nothing."""
    wide = {
        "gate_proj": (2 * INNER, HIDDEN),
        "up_proj": (2 * INNER, HIDDEN),
        "down_proj": (HIDDEN, 2 * INNER),
    }
    tensors = expert_tensors("bf16", shared_sizes=wide)
    layer = only(inspect(open_checkpoint(write(tmp_path, config_of("bf16"), tensors))))
    assert (layer.verdict, layer.rule) == ("would load and serve garbage", "loader.cut")


def test_the_plan_renames_to_slot_n(tmp_path: Path) -> None:
    moves = {move.name: move for move in report(tmp_path, "nvfp4").moves}
    move = moves["model.layers.2.mlp.shared_experts.up_proj.weight_scale_2"]
    assert move.renamed == f"model.layers.2.mlp.experts.{EXPERTS}.up_proj.weight_scale_2"
    assert move.parameter == "model.layers.2.mlp.experts.w13_weight_scale_2"
    assert (move.part, move.stored) == ("w3", "F32[]")


def test_modelopt_s_own_file_is_read(tmp_path: Path) -> None:
    config = config_of("nvfp4")
    del config["quantization_config"]
    folder = write(tmp_path, config, expert_tensors("nvfp4", bf16))
    quantization = {"quant_algo": "NVFP4", "exclude_modules": ["*.shared_experts*"]}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    assert only(inspect(open_checkpoint(folder))).rule == "deepseek.quant"


def test_deepseek_s_own_names_are_understood(tmp_path: Path) -> None:
    renames = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2", "mlp": "ffn"}
    tensors = {}
    for name, spec in expert_tensors("fp8_block").items():
        for old, new in renames.items():
            name = name.replace(f".{old}.", f".{new}.")
        tensors[name.replace("weight_scale_inv", "scale").removeprefix("model.")] = spec
    found = inspect(open_checkpoint(write(tmp_path, config_of("fp8_block"), tensors)))
    assert only(found).verdict == "fuses"


def test_a_copy_that_fails_is_not_called_a_broadcast(tmp_path: Path) -> None:
    """One dimension of size 1 would be repeated, but the other is neither 1 nor right."""
    short = changed(bf16, "weight", lambda o, k: (1, 3))
    assert only(report(tmp_path, "bf16", short)).rule == "loader.stops"


def test_online_conversion_needs_enforced_fusion(tmp_path: Path) -> None:
    config = QWEN | quantised("mxfp4", exclude=["*shared_expert.*"])
    found = report(tmp_path, "mxfp4", bf16, server=Server("gfx950"), **config)
    assert (found.default.outcome, found.default.rule) == ("not fused", "qwen.can_fuse.quant")
    assert found.enforced.outcome == "fused"


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_mxfp8_scales_have_either_name_but_have_one(name: str, tmp_path: Path) -> None:
    tensors = {
        key.replace("weight_scale", name): spec for key, spec in expert_tensors("mxfp8").items()
    }
    stored = inspect(open_checkpoint(write(tmp_path / "a", config_of("mxfp8"), tensors)))
    assert only(stored).verdict == "fuses"
    bare = {key: spec for key, spec in tensors.items() if not key.endswith(name)}
    missing = inspect(open_checkpoint(write(tmp_path / "b", config_of("mxfp8"), bare)))
    assert only(missing).rule == "checkpoint.routed"
