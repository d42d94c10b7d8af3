"""Attention of DeepSeek V4, counted by hand: 64 heads of 512 with one key, in 43 layers of which 2 attend to
their window of 128 only, 21 also to a key for every 4 tokens, 20 to one for every 128."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.config import load_model, model_from_config
from models.deployment import Batch, LayerKernels
from models.errors import InputError
from models.kv_cache import kv_cache_bytes
from models.layer import layer_kernels
from models.sequences import compressed_sums
from models.weights import attention_bytes
from tests.models.layer_cases import decode, deployment, kernel, prefill, spread
from tests.models.test_config import config_of

T, H, HEADS, SIZE, RANK, GROUPS = 16, 4096, 64, 512, 1024, 8
COMPRESSOR = round((21 * 2 * 2 * (SIZE + 128) + 20 * 2 * SIZE) / 43)
INDEX = round(21 * 64 * 128 / 43)


def layer(batch: Batch, attention_tp: int = 1) -> LayerKernels:
    case = replace(deployment("deepseek-v4-flash"), attention_tp=attention_tp)
    return layer_kernels(case, batch, spread(8, batch.tokens[0], 256, 4), 0)


def flops(built: LayerKernels, name: str) -> int:
    return kernel(built, name).work.total_flops


def test_projections_of_a_token() -> None:
    built = layer(decode(8, T, 4095))
    found = {name: flops(built, name) // (2 * T) for name in ("qkv_a", "q_b", "o_a", "o_proj")}
    assert found == {
        "qkv_a": H * (RANK + SIZE),
        "q_b": RANK * HEADS * SIZE,
        "o_a": HEADS * SIZE * RANK,  # every head's values through one group's rank
        "o_proj": GROUPS * RANK * H,
    }
    assert flops(built, "compress") == 2 * T * H * COMPRESSOR
    assert flops(built, "index_q") == 2 * T * RANK * INDEX


@pytest.mark.parametrize(
    ("before", "window", "by_4", "by_128"),
    [(64, 65, 16, 0), (4095, 128, 512, 32), (1023, 128, 256, 8)],
)
def test_keys_of_a_decoded_token(before: int, window: int, by_4: int, by_128: int) -> None:
    core = kernel(layer(decode(8, T, before)), "attn").work
    keys = T * window + round(T * (21 * by_4 + 20 * by_128) / 43)
    assert core.dim("kv_tokens") == core.dim("pairs") == keys
    assert core.total_flops == 2 * HEADS * keys * 2 * SIZE
    # The key is the value too: read once, in bf16.
    assert core.read_bytes == keys * SIZE * 2 + T * HEADS * SIZE * 2


def test_the_indexer_scores_every_compressed_key() -> None:
    index = kernel(layer(decode(8, T, 4095)), "index").work
    assert index.dim("pairs") == round(T * 21 * 1024 / 43)
    assert index.total_flops == 2 * 64 * 128 * index.dim("pairs")


@pytest.mark.parametrize(("ratio", "keep"), [(4, 0), (4, 3), (4, 512), (128, 0), (128, 1)])
@pytest.mark.parametrize(("new", "before"), [(1, 0), (1, 11), (50, 0), (7, 129), (300, 100)])
def test_pairs_are_those_of_a_loop(ratio: int, keep: int, new: int, before: int) -> None:
    batch = Batch("prefill", ((new,),) * 8, ((before,),) * 8)
    seen = [position // ratio for position in range(before + 1, before + new + 1)]
    expected = sum(min(one, keep) if keep else one for one in seen)
    found = compressed_sums(deployment("deepseek-v4-flash"), batch, 0, ratio, keep)
    assert found.pairs == expected


def test_attention_tp_shares_heads_and_groups() -> None:
    whole, half = layer(prefill(8, 2, 64)), layer(prefill(8, 2, 64), attention_tp=2)
    # Two ranks hold twice the tokens of one: each head, each group is on one of them.
    for name in ("q_b", "o_a"):
        assert flops(half, name) == flops(whole, name)
    assert flops(half, "attn") == pytest.approx(flops(whole, "attn"), rel=1e-3)  # means are rounded
    assert flops(half, "qkv_a") == 2 * flops(whole, "qkv_a")


def test_a_cache_holds_windows_and_compressed_keys() -> None:
    case = deployment("deepseek-v4-flash")
    one = 43 * 128 * SIZE * 2 + 21 * (4096 // 4) * (SIZE * 2 + 132) + 20 * 32 * SIZE * 2
    assert kv_cache_bytes(case, decode(8, 3, 4095), 0) == 3 * one
    fewer = replace(case, model=replace(case.model, num_layers=4))
    assert kv_cache_bytes(fewer, decode(8, 1, 4095), 0) == pytest.approx(one * 4 / 43, abs=1)


def test_weights_of_a_mean_layer() -> None:
    case = deployment("deepseek-v4-flash")
    case = replace(case, quantization=replace(case.quantization, weights="bf16"))
    values = H * (RANK + SIZE) + RANK * HEADS * SIZE + HEADS * SIZE * RANK + GROUPS * RANK * H
    assert attention_bytes(case) == 2 * (values + H * COMPRESSOR + RANK * INDEX)


def test_layers_without_compression_attend_to_their_window() -> None:
    config = config_of("deepseek-v4-flash") | {"compress_ratios": None}
    case = replace(
        deployment("deepseek-v4-flash"), model=model_from_config(config, "made up", "plain")
    )
    built = layer_kernels(case, decode(8, T, 4095), spread(8, T, 256, 4), 0)
    assert kernel(built, "attn").work.dim("pairs") == T * 128
    assert not any(
        k.name.startswith(("compress", "index")) for g in built.groups.values() for k in g
    )


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"compress_ratios": [0, 4]}, "compress_ratios"),
        ({"compress_ratios": [3] * 43}, "compress_ratios"),
        ({"o_groups": 7}, "o_groups"),
        ({"o_lora_rank": None}, "o_lora_rank"),
    ],
)
def test_a_wrong_config_names_its_key(change: dict[str, object], key: str) -> None:
    with pytest.raises(InputError) as caught:
        model_from_config(config_of("deepseek-v4-flash") | change, "made up", "wrong")
    assert caught.value.key == key


def test_draft_layers_are_left_out() -> None:
    assert load_model("deepseek-v4-flash").attention.compression == ((0, 2), (4, 21), (128, 20))
