"""The KV pool that a server reserves: its size, what it leaves, and batches that it cannot hold."""

from __future__ import annotations

import pytest

from models.memory import GIB
from models.weights import weights_bytes
from moe_overlap.memory_fit import Fit, fit_of
from moe_overlap.prediction import program_of
from scenarios import ScenarioError, load
from scenarios.resolve import Resolved, resolve

PREFILL = "deepseek-v3-h100-ep32-prefill"
KV_TOKEN = 70_272  # 61 layers x 576 x 2 bytes, as the model's authors state


def resolved(*settings: str, name: str = PREFILL) -> Resolved:
    return resolve(load(name, settings))


def fit(found: Resolved, schedule: str = "baseline") -> Fit:
    program = program_of(found, found.choice(schedule), layers=2, whole_step=True)
    return fit_of(found, program)


def test_weights_and_pool_fill_the_static_share() -> None:
    """Of 80 GiB 3 are taken before the weights are loaded; 0.85 of the other 77 is static."""
    found = resolved("runtime.mem_fraction_static=0.85")
    weights, pool = weights_bytes(found.deployment), found.kv_pool_tokens
    assert pool is not None
    assert weights + pool * KV_TOKEN <= 0.85 * 77 * GIB < weights + (pool + 1) * KV_TOKEN


def test_the_smaller_of_both_limits_counts() -> None:
    fraction = "runtime.mem_fraction_static=0.85"
    assert resolved(fraction, "runtime.max_total_tokens=131072").kv_pool_tokens == 131072
    alone = resolved(fraction).kv_pool_tokens
    assert resolved(fraction, "runtime.max_total_tokens=100000000").kv_pool_tokens == alone
    assert resolved("runtime.max_total_tokens=9000").kv_pool_tokens == 9000
    assert resolved().kv_pool_tokens is None


def test_a_pool_is_taken_whole_and_bounds_the_batch() -> None:
    """8192 tokens of the pool of 16384 are in use: all of it counts, and twice the batch fills it."""
    without, reserved = fit(resolved()), fit(resolved("runtime.max_total_tokens=16384"))
    assert without.needed.kv_cache == 8192 * KV_TOKEN
    assert reserved.needed.kv_cache == 16384 * KV_TOKEN
    assert without.max_batch > reserved.max_batch == 16384


def test_the_published_pool_leaves_room_and_an_uncapped_one_only_for_two_children() -> None:
    """The published server capped its pool at 131072 tokens: both schedules then fit at 16384 tokens. With
    0.85 of the GPU alone, and experts in order, only two-batch overlap does."""
    size = "phase.prefill.tokens_per_rank=16384"
    share, cap = "runtime.mem_fraction_static=0.85", "runtime.max_total_tokens=131072"
    capped = resolved(size, share, cap)
    assert fit(capped).refusal is None
    uncapped = resolved(size, share, "routing.eplb=false")
    refused = fit(uncapped).refusal
    assert refused is not None
    assert refused.rule == "memory"
    assert "GiB too much; 24.4 GiB are the KV pool; about 13," in refused.reason
    assert refused.reason.endswith(" tokens per rank fit")
    assert fit(uncapped, "tbo").refusal is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["runtime.max_total_tokens=8191"],
            "phase.prefill.tokens_per_rank = 8192: rank 0 needs the KV cache of 8,192 tokens, "
            "the pool holds 8,191 (runtime.max_total_tokens 8191)",
        ),
        (
            ["runtime.mem_fraction_static=0.5"],
            "runtime.mem_fraction_static = 0.5: leaves nothing for the KV pool",
        ),
        (
            ["runtime.mem_fraction_static=0.535", "phase.prefill.prefix_tokens=1000000"],
            "(runtime.mem_fraction_static 0.535)",
        ),
        (["runtime.mem_fraction_static=85"], "a finite number without a unit more than 0.0"),
        (["runtime.mem_fraction_static=0"], "more than 0.0, at most 1.0"),
        (["runtime.max_total_tokens=128K"], "needs a whole number without a unit at least 1"),
    ],
)
def test_what_cannot_be_is_one_message(settings: list[str], words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        resolved(*settings)
    assert words in str(caught.value)


def test_a_rank_holds_the_sequences_of_its_attention_group() -> None:
    """Two ranks of 16 sequences of 65 tokens share attention: each caches 2080 tokens."""
    pair = "parallel={ep: 2, attention_tp: 2, attention_dp: 1}"
    with pytest.raises(ScenarioError, match="the KV cache of 2,080 tokens"):
        resolved(pair, "runtime.max_total_tokens=2079", name="tiny")
    assert resolved(pair, "runtime.max_total_tokens=2080", name="tiny").kv_pool_tokens == 2080
