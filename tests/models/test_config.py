"""Models from library names, real configs and overrides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.config import library_models, load_model
from models.errors import InputError


def test_deepseek_v3_has_its_published_sizes() -> None:
    model = load_model("deepseek-v3")
    assert (model.hidden_size, model.num_layers, model.first_k_dense) == (7168, 61, 3)
    assert (model.n_routed_experts, model.top_k, model.n_shared_experts) == (256, 8, 1)
    assert (model.moe_intermediate_size, model.intermediate_size) == (2048, 18432)
    assert model.attention.kind == "mla"
    assert (model.attention.q_lora_rank, model.attention.kv_lora_rank) == (1536, 512)
    assert model.scoring == "sigmoid"
    assert model.quant_method == "fp8"
    assert model.num_moe_layers == 58


@pytest.mark.parametrize(
    ("name", "kind", "experts", "shared", "heads", "scoring"),
    [
        ("deepseek-v2-lite", "mla", 64, 2, 16, "softmax"),
        ("kimi-k2", "mla", 384, 1, 64, "sigmoid"),
        ("qwen3-235b-a22b", "gqa", 128, 0, 64, "softmax"),
        ("qwen3-30b-a3b", "gqa", 128, 0, 32, "softmax"),
        ("glm-4.5", "gqa", 160, 1, 96, "sigmoid"),
        ("glm-5", "mla", 256, 1, 64, "sigmoid"),
        ("mimo-v2-flash", "gqa", 256, 0, 64, "sigmoid"),
        ("deepseek-v4-flash", "mqa", 256, 1, 64, "sqrtsoftplus"),
    ],
)
def test_library_families(
    name: str, kind: str, experts: int, shared: int, heads: int, scoring: str
) -> None:
    model = load_model(name)
    assert model.attention.kind == kind
    assert (model.n_routed_experts, model.n_shared_experts) == (experts, shared)
    assert model.attention.num_heads == heads
    assert model.scoring == scoring


def test_every_library_model_loads_and_names_its_source() -> None:
    for name in library_models():
        assert "config.json" in load_model(name).source


def test_sparse_attention_and_dense_prefix_of_a_pattern() -> None:
    assert load_model("deepseek-v3.2").attention.index_topk == 2048
    mimo = load_model("mimo-v2-flash")
    assert mimo.first_k_dense == 1
    assert (mimo.attention.window, mimo.attention.num_kv_heads) == (128, 8)


def test_override_fields_keep_the_rest() -> None:
    model = load_model({"base": "deepseek-v3", "num_layers": 6, "n_routed_experts": 64})
    assert (model.num_layers, model.n_routed_experts, model.hidden_size) == (6, 64, 7168)
    assert "n_routed_experts=64" in model.source
    wide = load_model({"base": "deepseek-v3", "attention": {"num_heads": 64}})
    assert wide.attention.num_heads == 64
    assert wide.attention.kv_lora_rank == 512
    assert (
        load_model({"base": "deepseek-v3", "n_shared_experts": 2}).shared_intermediate_size == 4096
    )


def config_of(name: str) -> dict[str, object]:
    path = Path("models/library/models") / f"{name}.json"
    text = (Path(__file__).parents[2] / path).read_text()
    config: dict[str, object] = json.loads(text)
    return config


def test_nested_text_config_and_quantisation_beside_it(tmp_path: Path) -> None:
    nested = config_of("kimi-k2.5")
    del nested["quantization_config"]
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": nested})
    )
    quant = {"quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quant))
    model = load_model(tmp_path / "config.json")
    assert model.architecture == "KimiK25ForConditionalGeneration"
    assert model.n_routed_experts == 384
    assert model.quant_method == "modelopt_fp4"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"n_routed_experts": None}, "n_routed_experts"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_experts_per_tok": 300}, "top_k"),
        ({"n_group": 7}, "n_group"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"scoring_func": "tanh"}, "scoring_func"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
        ({"routed_scaling_factor": float("nan")}, "routed_scaling_factor"),
    ],
)
def test_a_wrong_value_is_named_with_file_and_key(
    tmp_path: Path, change: dict[str, object], key: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of("deepseek-v3") | change))
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert caught.value.key == key
    assert str(path) in str(caught.value)


def test_unreadable_input_is_one_message(tmp_path: Path) -> None:
    binary = tmp_path / "config.json"
    binary.write_bytes(b"\xff\xfe\x00junk")
    for spec in (binary, tmp_path, tmp_path / "absent.json", "deepseek-v33"):
        with pytest.raises(InputError):
            load_model(spec)
    with pytest.raises(InputError, match="did you mean 'deepseek-v3"):
        load_model("deepseek-v33")
    with pytest.raises(InputError, match="did you mean 'top_k'"):
        load_model({"base": "deepseek-v3", "topk": 4})
    for change in ({"num_layers": "six"}, {"num_layers": -1}, {"num_layers": True}):
        with pytest.raises(InputError):
            load_model({"base": "deepseek-v3", **change})
