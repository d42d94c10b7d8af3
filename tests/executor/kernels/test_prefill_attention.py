"""Prefill attention over sequences with and without cached tokens, against plain float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from executor import prefill_attention
from executor.layer_state import Piece
from executor.prefill_attention import groups_of, plain_attention
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
    "second half": [(37, 37)],
    "second halves alike": [(4, 4), (4, 4)],
    "last that is causal": [(9, 5)],
    "first with a mask": [(10, 5)],
    "one cached": [(1, 6)],
    "all kinds": [(0, 4), (0, 4), (2, 4), (7, 1), (7, 1), (0, 1), (0, 6)],
}


def state_of(pairs: list[tuple[int, int]], device: str) -> ProductionState:
    """Sequences of (cached, new) tokens; what the cache holds behind the cached ones is poison. Latents
    are +-1, 1/2 and 1/4, which FP8 holds exactly beside a largest of 1."""
    weights = production_weights(MODEL, range(1), 1, torch.device(device))
    width = ATT.kv_lora_rank + ATT.qk_rope_head_dim
    cache = torch.randn(len(pairs), 96, width, device=device).bfloat16()
    latent = cache[..., : ATT.kv_lora_rank]
    latent.copy_(latent.sign() * 2.0 ** -torch.randint(3, latent.shape, device=device))
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


def drawn(tokens: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, and rotated keys of new tokens."""
    widths = HEADS * QK, HEADS * (ATT.qk_nope_head_dim + ATT.v_head_dim), ATT.qk_rope_head_dim
    q, kv, k_rope = (torch.randn(tokens, width, device=device).bfloat16() for width in widths)
    return q, kv, k_rope


@pytest.mark.parametrize("name", CASES)
def test_each_query_sees_its_sequence_up_to_itself(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time nothing is left to prepare."""
    state = state_of(CASES[name], device)
    tokens = sum(new for _, new in CASES[name])
    q, kv, k_rope = drawn(tokens, device)
    op: Any = SimpleNamespace(child="", layer=0, grid=SimpleNamespace(enforced_budget=None))
    reference = expected(state, q, kv, k_rope)
    for _ in range(2):
        out = plain_attention(state, cast("Op", op), q, kv, k_rope)
        assert out.shape == (tokens, HEADS, ATT.v_head_dim)
        for piece in state.tokens[""].part.pieces:
            found, wanted = out[piece.rows].double(), reference[piece.rows]
            assert (found - wanted).norm() < 1e-2 * wanted.norm()
        monkeypatch.delattr(prefill_attention, "later_keys", raising=False)


def test_only_few_queries_behind_many_keys_need_a_mask() -> None:
    """1184 behind 1184 took 745 us with a mask and 531 without: equal at 2 * 745 / 531 - 1 = 1.806
    cached tokens for each new one, if times follow the pairs of scores."""
    shapes = [(0, 40), (1184, 1184), (1806, 1000), (1807, 1000), (1807, 1000), (70, 3)]
    pieces = [Piece(at, old, new, 0) for at, (old, new) in enumerate(shapes)]
    masks = [group.mask for group in groups_of(pieces, torch.device("cpu"))]
    assert [mask is not None for mask in masks] == [False, False, False, True, True, True]
    assert masks[3] is masks[4]


def test_no_tokens(device: str) -> None:
    state = state_of([], device)
    op: Any = SimpleNamespace(child="", layer=0)
    none = torch.zeros(0, 1, device=device)
    out = plain_attention(state, cast("Op", op), none, none, none)
    assert out.shape == (0, HEADS, ATT.v_head_dim)
