"""Prefill attention over sequences with and without cached tokens, against plain float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from executor.layer_state import Piece
from executor.prefill_attention import plain_attention
from executor.production_state import ProductionState
from executor.production_weights import dequantised, production_weights
from schedules.program import Op
from tests.executor.production_fakes import MODEL, PlainGemm

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ATT = MODEL.attention
HEADS, QK = ATT.num_heads, ATT.qk_nope_head_dim + ATT.qk_rope_head_dim
CASES = {
    "one sequence": [(0, 5)],
    "alike": [(0, 4), (0, 4), (0, 4)],
    "cached": [(70, 3)],
    "cached alike": [(6, 2), (6, 2)],
    "all kinds": [(0, 4), (0, 4), (2, 4), (7, 1), (7, 1), (0, 1), (0, 6)],
}


def state_of(pairs: list[tuple[int, int]], device: str) -> ProductionState:
    """Sequences of (cached, new) tokens; what the cache holds behind the cached ones is poison."""
    weights = production_weights(MODEL, range(1), 1, torch.device(device))
    width = ATT.kv_lora_rank + ATT.qk_rope_head_dim
    cache = torch.randn(len(pairs), 96, width, device=device).bfloat16()
    pieces, row = [], 0
    for sequence, (old, new) in enumerate(pairs):
        pieces.append(Piece(sequence, old, new, row))
        cache[sequence, old:] = float("nan")
        row += new
    tokens = SimpleNamespace(part=SimpleNamespace(pieces=tuple(pieces)))
    gemm: Any = PlainGemm()
    exchange: Any = None
    return ProductionState(
        MODEL, weights, gemm, exchange, {"": cast("Any", tokens)}, [cache], 0, 1, 8
    )


def expected(
    state: ProductionState, q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor
) -> torch.Tensor:
    """Query by query in float64."""
    up = dequantised(state.weights.linear["kv_b"]).double().T
    out = []
    for piece in state.tokens[""].part.pieces:
        cached = state.cache[0][piece.sequence, : piece.start].double()
        old = cached[:, : ATT.kv_lora_rank] @ up
        joint = torch.cat((old, kv[piece.rows].double())).unflatten(1, (HEADS, -1))
        roped = torch.cat((cached[:, ATT.kv_lora_rank :], k_rope[piece.rows].double()))
        for index in range(piece.length):
            seen = slice(0, piece.start + index + 1)
            query = q[piece.row + index].double().view(HEADS, QK)
            nope, values = (
                joint[seen, :, : ATT.qk_nope_head_dim],
                joint[seen, :, ATT.qk_nope_head_dim :],
            )
            scores = torch.einsum("hd,shd->hs", query[:, : ATT.qk_nope_head_dim], nope)
            scores += query[:, ATT.qk_nope_head_dim :] @ roped[seen].T
            chances = (scores * QK**-0.5).softmax(-1)
            out.append(torch.einsum("hs,shd->hd", chances, values))
    return torch.stack(out)


@pytest.mark.parametrize("name", CASES)
def test_each_query_sees_its_sequence_up_to_itself(name: str, device: str) -> None:
    """Cached latents lose some percent to FP8 on the way through kv_b; the others nothing."""
    state = state_of(CASES[name], device)
    tokens = sum(new for _, new in CASES[name])
    q = torch.randn(tokens, HEADS * QK, device=device).bfloat16()
    kv = torch.randn(tokens, HEADS * (ATT.qk_nope_head_dim + ATT.v_head_dim), device=device)
    k_rope = torch.randn(tokens, ATT.qk_rope_head_dim, device=device).bfloat16()
    op: Any = SimpleNamespace(child="", layer=0, grid=SimpleNamespace(enforced_budget=None))
    reference = expected(state, q, kv.bfloat16(), k_rope)
    for _ in range(2):
        out = plain_attention(state, cast("Op", op), q, kv.bfloat16(), k_rope)
        assert out.shape == (tokens, HEADS, ATT.v_head_dim)
        error = (out.double() - reference).norm() / reference.norm()
        assert error < (8e-2 if any(old for old, _ in CASES[name]) else 1e-2)


def test_no_tokens(device: str) -> None:
    state = state_of([], device)
    op: Any = SimpleNamespace(child="", layer=0)
    none = torch.zeros(0, 1, device=device)
    out = plain_attention(state, cast("Op", op), none, none, none)
    assert out.shape == (0, HEADS, ATT.v_head_dim)
