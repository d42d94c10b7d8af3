"""What a checkpoint's config says: MoE layers, experts, the server, and refusals that name file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint import inspect
from models.checkpoint_config import Server
from models.checkpoint_files import open_checkpoint
from models.errors import InputError
from tests.models.checkpoint_cases import (
    EXPERTS,
    config_of,
    expert_tensors,
    only,
    quantised,
    report,
    write,
)


def test_unknown_methods_and_missing_keys_name_file_and_key(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"quantization_config": {"quant_method": "bitnet"}}, "quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "X"}}, "quant_algo"),
        ({"quantization_config": []}, "quantization_config"),
        ({"n_shared_experts": None}, "n_shared_experts"),
        ({"n_shared_experts": 0}, "n_shared_experts"),
        ({"n_routed_experts": "many"}, "n_routed_experts"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 1}, "num_hidden_layers"),
        ({"num_hidden_layers": 2**62}, "num_hidden_layers"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace"),
        ({"moe_layer_freq": 0}, "moe_layer_freq"),
        ({"moe_layer_freq": [0, 1]}, "moe_layer_freq"),
        ({"moe_layer_freq": [0, 1, "x"]}, "moe_layer_freq"),
        ({"decoder_sparse_step": "x"}, "decoder_sparse_step"),
        ({"mlp_only_layers": True}, "mlp_only_layers"),
        ({"shared_expert_intermediate_size": "x"}, "shared_expert_intermediate_size"),
        ({"architectures": []}, "architectures"),
        ({"architectures": ["a\nb"]}, "architectures"),
        (quantised("awq", bits=2**31), "bits"),
        (quantised("gptq", bits=3), "bits"),
        (quantised("gptq", group_size=None), "group_size"),
        (quantised("nvfp4", quant_algo=["NVFP4"]), "quant_algo"),
        (quantised("fp8_block", weight_block_size=[0, 0]), "weight_block_size"),
    ]
    folder = write(tmp_path, config_of("bf16"), expert_tensors("bf16"))
    for changes, key in cases:
        (folder / "config.json").write_text(json.dumps(config_of("bf16") | changes))
        if changes == {"quantization_config": []}:
            (folder / "config.json").write_text(json.dumps(config_of("bf16") | {key: [1]}))
        with pytest.raises(InputError) as caught:
            inspect(open_checkpoint(folder))
        assert caught.value.key == key and "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("server", "key"),
    [
        (Server(a2a="deepepp"), "a2a"),
        (Server(ep=3), "ep"),
        (Server(device="sm" + "9" * 5000), "device"),
        (Server(device="sm90\n"), "device"),
    ],
    ids=["a2a", "ep", "digits", "newline"],
)
def test_a_server_that_cannot_be_is_refused(server: Server, key: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        report(tmp_path, "bf16", server=server)
    assert caught.value.key == key and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"moe_layer_freq": 2}, [2]),
        ({"moe_layer_freq": [0, 1, 0]}, [1]),
        ({"decoder_sparse_step": 2}, [1]),
        ({"mlp_only_layers": [2]}, [1]),
        ({"moe_layer_freq": None, "first_k_dense_replace": None, "mlp_only_layers": [0]}, [1, 2]),
    ],
    ids=["period", "pattern", "Qwen's period", "dense layers", "nulls"],
)
def test_which_layers_are_moe(config: dict[str, Any], layers: list[int], tmp_path: Path) -> None:
    assert [one.layer for one in report(tmp_path, "bf16", **config).layers] == layers


def test_experts_that_the_config_does_not_count_are_not_taken_for_the_slot(tmp_path: Path) -> None:
    layer = only(report(tmp_path, "bf16", n_routed_experts=EXPERTS - 1))
    assert (layer.verdict, layer.rule) == ("refused", "checkpoint.routed")
    assert layer.findings[0].tensor.endswith(f"experts.{EXPERTS - 1}")
    missing = only(report(tmp_path, "bf16", n_routed_experts=2**40))
    assert missing.findings[0].tensor.endswith(f"experts.{EXPERTS}")


def test_a_draft_module_does_not_stand_in_for_the_model_s_layers(tmp_path: Path) -> None:
    """Its layers count from 0 again (`mtp.layers.1`), and would hide what the model's lack."""
    tensors = expert_tensors("fp8_block")
    prefix = "model.layers.1.mlp"
    draft = {
        name.replace("model.", "mtp.", 1): spec
        for name, spec in tensors.items()
        if name.startswith(prefix)
    }
    kept = {name: s for name, s in tensors.items() if not name.startswith(f"{prefix}.shared")}
    found = inspect(open_checkpoint(write(tmp_path, config_of("fp8_block"), kept | draft)))
    assert [layer.rule for layer in found.layers] == ["checkpoint.shared", "slot.fits"]
