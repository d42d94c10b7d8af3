"""The library's models against a table of what their sources say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from models.config import library_models, load_model
from models.deployment import Attention

TABLE = Path(__file__).parents[1] / "fixtures" / "library_models.csv"
LINES = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
ROWS = {row["model"]: row for row in csv.DictReader(LINES)}


def test_every_library_model_has_a_source_of_its_own() -> None:
    assert set(ROWS) == set(library_models())
    assert all(row["source"] for row in ROWS.values())


def keys_of(attention: Attention) -> str:
    if attention.kind == "mla":
        ranks = (attention.q_lora_rank, attention.kv_lora_rank)
        head = (attention.qk_nope_head_dim, attention.qk_rope_head_dim, attention.v_head_dim)
        return " ".join(map(str, ranks + head))
    if attention.kind == "mqa":
        sizes = (attention.o_lora_rank, attention.o_groups, attention.head_dim)
        return " ".join(map(str, (attention.q_lora_rank, *sizes, attention.qk_rope_head_dim)))
    return f"{attention.num_kv_heads} {attention.head_dim} {attention.v_head_dim}"


@pytest.mark.parametrize("name", ROWS)
def test_sizes_are_those_of_the_source(name: str) -> None:
    model = load_model(name)
    found = {
        "model": name,
        "hidden": model.hidden_size,
        "layers": model.num_layers,
        "dense": model.first_k_dense,
        "mlp": model.intermediate_size,
        "expert_mlp": model.moe_intermediate_size,
        "experts": model.n_routed_experts,
        "shared": model.n_shared_experts,
        "top_k": model.top_k,
        "groups": model.n_group,
        "groups_kept": model.topk_group,
        "scale": model.routed_scaling_factor,
        "scoring": model.scoring,
        "vocabulary": model.vocab_size,
        "heads": model.attention.num_heads,
        "keys": keys_of(model.attention),
    }
    expected = {key: value for key, value in ROWS[name].items() if key != "source"}
    assert {key: str(value) for key, value in found.items()} == expected
