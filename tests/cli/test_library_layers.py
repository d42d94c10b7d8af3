"""One MoE layer of every library scenario, counted by hand: operations, bytes and messages of all ranks.

Hyper-parameters and batches are typed in here, not read from the scenario, so that a wrong config, a
wrong batch and a wrong formula each fail.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import moe_overlap as mo
from models.deployment import Kernel
from models.exchanges import exchange_bytes
from models.layer import layer_kernels
from scenarios import library

# Attention projections of one token, in multiply-adds: MLA compresses queries to 1536 and keys to 512 + 64,
# and absorbs the latent into queries and values in decode; GQA projects queries and grouped keys.
_MLA_DOWN = 7168 * (1536 + 576)


def _mla(heads: int, *, decode: bool) -> int:
    up = 1536 * heads * 192
    latent = 2 * heads * 128 * 512 if decode else 512 * heads * 256
    return _MLA_DOWN + up + latent + heads * 128 * 7168


def _gqa(hidden: int, heads: int, kv_heads: int) -> int:
    return hidden * (heads + 2 * kv_heads) * 128 + heads * 128 * hidden


@dataclass(frozen=True)
class Hand:
    """What a layer of one scenario has: ranks, tokens a rank, hidden, expert inner size, experts, top-k,
    shared inner size, multiply-adds of attention per token, and of its core per (token, key) pair;
    (token, key) pairs and cache bytes read per rank."""

    ranks: int
    tokens: int
    hidden: int
    inner: int
    experts: int
    top_k: int
    shared: int
    projections: int
    core: int
    pairs: int
    cache_bytes: int
    low_latency: bool


def _deepseek(
    ranks: int, tokens: int, kv: int, *, decode: bool = True, experts: int = 256, heads: int = 128
) -> Hand:
    if decode:  # each new token sees the cache and itself; a key is 576 bf16 values for all heads
        pairs, cache = tokens * (kv + 1), tokens * (kv + 1) * 576 * 2
    else:  # causal inside sequences of kv tokens; the cache is expanded instead of read
        pairs, cache = tokens * (kv + 1) // 2, 0
    core = heads * (576 + 512 if decode else 192 + 128)
    proj = _mla(heads, decode=decode)
    return Hand(ranks, tokens, 7168, 2048, experts, 8, 2048, proj, core, pairs, cache, decode)


HANDS = {
    "deepseek-v3-gb200-ep48-decode": _deepseek(48, 256, 2048),
    "deepseek-v3-h100-ep32-prefill": _deepseek(32, 8192, 4096, decode=False),
    "deepseek-v3-h100-ep72-decode": _deepseek(72, 256, 2048),
    "deepseek-v3-h20-ep16-decode": _deepseek(16, 32, 4096),
    "deepseek-v3-h200-ep16-decode": _deepseek(16, 128, 4096),
    "deepseek-v3-h200-ep16-prefill": _deepseek(16, 4096, 1024, decode=False),
    "deepseek-v3-h200-ep2-decode": _deepseek(2, 128, 4096, experts=64),
    "deepseek-v3-h200-ep2-prefill": _deepseek(2, 8192, 2048, decode=False, experts=64),
    "deepseek-v3-h200-ep8-decode": _deepseek(8, 128, 2048),
    "deepseek-v3-h200-ep8-prefill": _deepseek(8, 8192, 2048, decode=False),
    "kimi-k2-h200-ep16-decode": _deepseek(16, 64, 2048, experts=384, heads=64),
    # 64 heads, 4 key heads of 128: a key and a value of 4 x 128 bf16 each.
    "qwen3-235b-h100-ep8-decode": Hand(
        8, 64, 4096, 1536, 128, 8, 0, _gqa(4096, 64, 4), 64 * 256, 64 * 2049, 64 * 2049 * 2048, True
    ),
    "qwen3-30b-h100-ep8-prefill": Hand(
        8, 8192, 2048, 768, 128, 8, 0, _gqa(2048, 32, 4), 32 * 256, 8192 * 2049 // 2, 0, False
    ),
}
_MADE_UP = {"tiny"}  # no real model: its sizes are made to run anywhere


def test_every_scenario_of_a_real_model_is_counted() -> None:
    assert set(HANDS) == set(library()) - _MADE_UP


@pytest.mark.parametrize("name", HANDS)
def test_a_layer_by_hand(name: str) -> None:
    hand = HANDS[name]
    resolved = mo.resolve(mo.load(name))
    deployment, routing = resolved.deployment, resolved.routing
    tokens, copies = hand.tokens, hand.ranks * hand.tokens * hand.top_k
    assert (deployment.ep_size, resolved.batch.tokens) == (hand.ranks, (tokens,) * hand.ranks)

    ranks = range(hand.ranks)
    layers = [layer_kernels(deployment, resolved.batch, routing, rank) for rank in ranks]
    first = {kernel.name: kernel for group in layers[0].groups.values() for kernel in group}

    # Attention on one rank: projections, and the core over all (token, key) pairs.
    core = first["attn"].work
    assert core.total_flops == 2 * hand.core * hand.pairs
    projections = [k for letter in "QC" for k in layers[0].groups[letter] if k.name != "attn"]
    assert sum(k.work.total_flops for k in projections) == 2 * tokens * hand.projections
    if hand.cache_bytes:
        queries = core.read_bytes - hand.cache_bytes
        assert 0 < queries < hand.cache_bytes

    # Gate and shared expert on one rank: scores of all experts; three matrices.
    assert first["gate"].work.total_flops == 2 * tokens * hand.hidden * hand.experts
    shared = [k.work.total_flops for k in layers[0].groups["S"]]
    assert sum(shared) == 2 * tokens * 3 * hand.hidden * hand.shared

    # Routed experts on all ranks: three matrices for each of top_k copies of a token; contiguous rows
    # are padded to 128 per expert and add work.
    gemms = [k for layer in layers for k in layer.groups["X"] if k.name.startswith("gemm")]
    exact = 2 * copies * 3 * hand.hidden * hand.inner
    done = sum(k.work.total_flops for k in gemms)
    assert sum(_rows(k) for k in gemms) == 2 * copies
    slots = deployment.physical_experts
    most = 0 if hand.low_latency else 2 * slots * 127 * 3 * hand.hidden * hand.inner
    assert exact <= done <= exact + most

    # Messages of all ranks: one per (token, expert), of fp8 values with a float scale per 128 and a
    # header of 16 bytes; or one per (token, rank) with ids of eight and weights of four bytes.
    sent = sum(map(sum, exchange_bytes(deployment, routing, "dispatch")))
    back = sum(map(sum, exchange_bytes(deployment, routing, "combine")))
    data = hand.hidden + 4 * hand.hidden // 128
    if hand.low_latency:
        assert (sent, back) == (copies * (data + 16), copies * hand.hidden * 2)
    else:
        payload = data + 12 * hand.top_k
        hops, rest = divmod(sent, payload)
        assert rest == 0
        assert back == hops * hand.hidden * 2
        # At least one rank per token and at most two hops per expert.
        assert copies // hand.top_k < hops <= 2 * copies


def _rows(kernel: Kernel) -> int:
    return kernel.work.dim("rows")
