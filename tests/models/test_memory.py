"""Memory against published sizes, and peaks of lifetimes by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.deployment import A2A, Deployment
from models.exchange_buffers import low_latency_bytes, normal_bytes
from models.kv_cache import kv_bytes_per_token, kv_cache_bytes
from models.layer import layer_kernels
from models.memory import GIB, Lifetime, Memory, largest, lifetimes_of, memory, peak_bytes
from models.profile import load_machine
from models.routing import Routing
from models.weights import weights_bytes
from tests.models.layer_cases import decode, deployment, prefill, with_fusion


def test_deepseek_v3_weighs_its_671_billion_parameters() -> None:
    """671 B parameters, fp8 but for 1.9 B of embedding and head in bf16, plus the bf16 copy of the
    absorbed projections (61 x 32768 x 512 x 2 bytes)."""
    expected = 671.0e9 + 1.9e9 + 61 * 32768 * 512 * 2
    assert weights_bytes(deployment(ep=1)) == pytest.approx(expected, rel=0.005)


def test_expert_parallelism_divides_only_the_experts() -> None:
    whole, eighth = weights_bytes(deployment(ep=1)), weights_bytes(deployment(ep=8))
    experts = 58 * 256 * 3 * 7168 * 2048
    assert whole - eighth == pytest.approx(experts * 7 / 8, rel=1e-3)


def test_a_fused_slot_replaces_the_shared_expert() -> None:
    base = deployment(ep=8)
    assert weights_bytes(with_fusion(base)) == weights_bytes(base)


@pytest.mark.parametrize(
    ("model", "nbytes"),
    [
        ("deepseek-v3", 70_272),  # 61 x 576 x 2, as its authors state
        ("qwen3-235b-a22b", 192_512),  # 94 layers x 4 heads x (128 + 128) x 2
        ("glm-4.5", 376_832),  # 92 x 8 x 256 x 2
    ],
)
def test_cache_of_one_token(model: str, nbytes: int) -> None:
    assert kv_bytes_per_token(deployment(model)) == nbytes


def test_cache_of_a_batch_and_of_a_window() -> None:
    case = deployment()
    assert kv_cache_bytes(case, decode(8, 4, 99), 0) == 4 * 100 * 70_272
    half = replace(case, attention_tp=2)
    assert kv_cache_bytes(half, decode(8, 4, 99), 0) == 8 * 100 * 70_272
    sliding = deployment("mimo-v2-flash")
    assert kv_cache_bytes(sliding, decode(8, 1, 5000), 0) == 128 * kv_bytes_per_token(sliding)


def test_low_latency_buffer_by_hand() -> None:
    case = replace(deployment(ep=8), a2a=A2A(max_dispatch_tokens_per_rank=128))
    # 256 experts x 128 tokens of 14336 bytes with 56 pairs of bf16 scales, sent and received, twice.
    assert low_latency_bytes(case) == 2 * 2 * 256 * 128 * (14336 + 56 * 4)
    small = normal_bytes(deployment(ep=2, mode="normal"))
    assert small < normal_bytes(deployment(ep=8, mode="normal"))


def test_a_buffer_lives_from_first_to_last_use() -> None:
    uses = [((), ("a",)), (("a",), ("b",)), (("b",), ("c",)), (("a", "c"), ("d",))]
    lives = lifetimes_of(uses, {"a": 1, "b": 10, "c": 100, "d": 1000})
    assert lives == (
        Lifetime("a", 1, 0, 3),
        Lifetime("b", 10, 1, 2),
        Lifetime("c", 100, 2, 3),
        Lifetime("d", 1000, 3, 3),
    )
    assert peak_bytes(lives) == 1101
    assert peak_bytes(()) == 0
    with pytest.raises(KeyError):
        lifetimes_of(uses, {"a": 1})


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 50)), max_size=12))
def test_the_peak_is_the_largest_sum_at_a_position(spans: list[tuple[int, int, int]]) -> None:
    lives = [Lifetime("x", size, min(a, b), max(a, b)) for a, b, size in spans]
    sums = [sum(x.nbytes for x in lives if x.first <= at <= x.last) for at in range(10)]
    assert peak_bytes(lives) == max(sums)


@given(st.integers(0, 300), st.integers(1, 256))
def test_largest_finds_the_edge(edge: int, most: int) -> None:
    assert largest(lambda size: size <= edge, most) == min(edge, most)


def published(tokens: int, imbalance: float) -> Memory:
    """DeepSeek-V3 prefill on 32 H100s with 32 redundant experts and the published server's pool of
    131072 cached tokens, one batch of `tokens` at a time, on a rank whose experts are chosen about
    `imbalance` times as often as the mean."""
    case = Deployment(
        deployment().model,
        load_machine("h100-8x-ib"),
        32,
        redundant_experts=32,
        a2a=A2A(mode="normal"),
    )
    rng = np.random.default_rng(0)
    weight = np.ones(288)
    weight[:9] = (imbalance * 279) / (288 - 9 * imbalance)
    ids = np.argsort(-np.log(rng.random((tokens, 288))) / weight, axis=1)[:, :8].astype(np.int32)
    routing = Routing((ids,) * 32, 288, 32)
    batch = prefill(32, tokens // 4096, 4096)
    layer = layer_kernels(case, batch, routing, 0)
    order = ("P", "Q", "C", "M", "G", "T", "Da", "Db", "X", "S", "Cb", "O")
    uses = [(k.reads, k.writes) for letter in order for k in layer.groups[letter]]
    lives = lifetimes_of(uses, layer.buffers)
    return memory(case, batch, 0, lives, kv_pool_tokens=131072)


def test_two_children_fit_where_the_whole_prefill_batch_runs_out() -> None:
    """Published: without TBO 16384 tokens run out of 80 GB, two children of 8192 do not. Ours: under
    balanced routing both fit with room to spare; the whole batch stops fitting nine tenths of the GPU
    when the busiest rank's experts are six times as popular, where one child needs half as much."""
    limit = 0.9 * 80 * GIB
    assert published(16384, 1.0).total < 0.85 * limit
    assert published(16384, 6.0).total > limit
    assert published(8192, 6.0).total < limit
    whole, child = published(16384, 6.0), published(8192, 6.0)
    assert whole.activations == pytest.approx(2 * child.activations, rel=0.02)
