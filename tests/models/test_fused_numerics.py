"""A small MoE layer, unfused and fused in both layouts and with Waterfill: the same numbers.

Weights are rounded to the format, expert outputs and the result to bf16, sums are float64. Unfused and
fused sums then differ only by where bf16 rounds: the shared expert's output is scaled by 1/c before and
by c after, and partial sums of ranks are rounded on their way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from models.experts import Slots, TopK, append_shared, post_process, shared_weight
from models.waterfill import choose_ranks, expand, static_plan
from tests.models.number_formats import BF16_EPS, Matrix, to_bf16, to_fp8_block, to_mxfp4

WORLD, PER_RANK, TOP_K, HIDDEN, INNER, TOKENS, FACTOR = 4, 4, 3, 64, 96, 80, 2.5
EXPERTS = WORLD * PER_RANK
FORMATS: dict[str, Callable[[Matrix], Matrix]] = {
    "bf16": to_bf16,
    "fp8 block": lambda x: to_fp8_block(x, 32, 32),
    "mxfp4": to_mxfp4,
}
Result = dict[int, Matrix]


@dataclass(frozen=True)
class Expert:
    """Gate, up and down matrices, already rounded to the format."""

    gate: Matrix
    up: Matrix
    down: Matrix

    def __call__(self, x: Matrix) -> Matrix:
        gate = x @ self.gate.T
        hidden = gate / (1 + np.exp(-gate)) * (x @ self.up.T)
        return to_bf16(to_bf16(hidden) @ self.down.T)


@dataclass(frozen=True)
class Layer:
    """Routed experts, the shared one, and every rank's tokens with their routing."""

    routed: list[Expert]
    shared: Expert
    x: list[Matrix]
    ids: list[np.ndarray]
    weights: list[np.ndarray]


def layer(convert: Callable[[Matrix], Matrix], seed: int = 0) -> Layer:
    rng = np.random.default_rng(seed)

    def expert() -> Expert:
        shapes = ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
        return Expert(*(convert(rng.standard_normal(s) / np.sqrt(s[1])) for s in shapes))

    # Low ids are popular, so that Waterfill has something to level.
    popular = 1.0 / (1 + np.arange(EXPERTS))
    scores = rng.gumbel(size=(WORLD, TOKENS, EXPERTS)) + np.log(popular)
    ids = np.argsort(-scores, axis=2)[:, :, :TOP_K]
    weights = rng.random((WORLD, TOKENS, TOP_K))
    weights /= weights.sum(axis=2, keepdims=True)
    return Layer(
        [expert() for _ in range(EXPERTS)],
        expert(),
        [to_bf16(rng.standard_normal((TOKENS, HIDDEN))) for _ in range(WORLD)],
        list(ids),
        list(weights.astype(np.float32)),
    )


def unfused(moe: Layer) -> list[Matrix]:
    """`shared(x) + c * sum of weighted routed experts`, token by token."""
    results = []
    for x, ids, weights in zip(moe.x, moe.ids, moe.weights, strict=True):
        routed = np.zeros_like(x)
        for i, row in enumerate(ids):
            for e, w in zip(row, weights[i], strict=True):
                routed[i] += w * moe.routed[e](x[i : i + 1])[0]
        results.append(to_bf16(moe.shared(x) + FACTOR * to_bf16(routed)))
    return results


def grouped_gemm(
    moe: Layer, slots: Slots, rank: int, x: Matrix, ids: np.ndarray, gates: np.ndarray
) -> Matrix:
    """What one rank adds to every row of `x`: its local rows only, rounded for the way back."""
    total = np.zeros_like(x)
    for row in range(slots.rows_per_rank):
        if row < slots.per_rank:
            expert = moe.routed[rank * slots.per_rank + row]
            wanted = slots.widen(np.array([rank * slots.per_rank + row]))[0]
        else:
            expert, wanted = moe.shared, slots.shared_ids(rank)[0]
        tokens, columns = np.nonzero(ids == wanted)
        if len(tokens):
            total[tokens] += gates[tokens, columns][:, None] * expert(x[tokens])
    return to_bf16(total)


def fused_globally(moe: Layer) -> list[Matrix]:
    """One shared id on all ranks with 1/W of its weight; an all-reduce adds the ranks."""
    slots = Slots("global", WORLD, PER_RANK, 1)
    gate = shared_weight(FACTOR, folded=False)
    results = []
    for source, x in enumerate(moe.x):
        ids, gates = append_shared(moe.ids[source], moe.weights[source], slots, source, gate)
        top = post_process(ids, gates, slots, source, shared_gate=gate, scale=1 / WORLD)
        parts = [grouped_gemm(moe, slots, r, x, top.ids, top.weights) for r in range(WORLD)]
        results.append(to_bf16(FACTOR * to_bf16(np.sum(parts, axis=0))))
    return results


def fused_per_rank(moe: Layer, *, waterfill: bool) -> list[Matrix]:
    """Private slots: at home, or where Waterfill sends the copy."""
    slots = Slots("per_rank", WORLD, PER_RANK, 1)
    gate = shared_weight(FACTOR, folded=False)
    results = []
    for source, x in enumerate(moe.x):
        ids, weights = moe.ids[source], moe.weights[source]
        if waterfill:
            ranks = choose_ranks(ids, PER_RANK, source, static_plan(ids, PER_RANK, WORLD))
            assert len(set(ranks.tolist())) > 1
            dispatched = TopK(*expand(ids, weights, ranks, PER_RANK, gate), recorded=ids)
        else:
            dispatched = post_process(ids, weights, slots, source, shared_gate=gate)
        wide, gates = dispatched.ids, dispatched.weights
        parts = [grouped_gemm(moe, slots, r, x, wide, gates) for r in range(WORLD)]
        results.append(to_bf16(FACTOR * to_bf16(np.sum(parts, axis=0))))
    return results


VARIANTS: dict[str, Callable[[Layer], list[Matrix]]] = {
    "global": fused_globally,
    "per rank": lambda moe: fused_per_rank(moe, waterfill=False),
    "waterfill": lambda moe: fused_per_rank(moe, waterfill=True),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_fused_equals_unfused_within_bf16_rounding(fmt: str, variant: str) -> None:
    moe = layer(FORMATS[fmt])
    for plain, fused in zip(unfused(moe), VARIANTS[variant](moe), strict=True):
        # Each of the W partial sums, their sum and the result is rounded once to bf16.
        allowed = (WORLD + 2) * BF16_EPS / 2 * (np.abs(plain) + np.abs(plain).max(axis=1)[:, None])
        assert (np.abs(plain - fused) <= allowed).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_wrong_shared_weight_would_be_seen(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moe = layer(to_bf16)
    monkeypatch.setitem(globals(), "shared_weight", lambda factor, folded: 1.0)
    errors = [
        np.abs(a - b).max() / np.abs(a).max()
        for a, b in zip(unfused(moe), VARIANTS[variant](moe), strict=True)
    ]
    assert min(errors) > 0.2


def test_requantising_the_shared_expert_costs_the_narrower_format_s_rounding() -> None:
    """FP8 shared expert in MXFP4 slots: off by far more than bf16, within e2m1's step of a quarter."""
    moe = layer(to_mxfp4)
    rng = np.random.default_rng(9)
    shapes = ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
    matrices = [to_fp8_block(rng.standard_normal(s) / np.sqrt(s[1]), 32, 32) for s in shapes]
    stored = Layer(moe.routed, Expert(*matrices), moe.x, moe.ids, moe.weights)
    loaded = Layer(
        moe.routed, Expert(*(to_mxfp4(m) for m in matrices)), moe.x, moe.ids, moe.weights
    )
    plain, fused = unfused(stored)[0], fused_per_rank(loaded, waterfill=True)[0]
    error = np.linalg.norm(plain - fused) / np.linalg.norm(plain)
    assert 10 * BF16_EPS < error < 0.25
