"""The router's choice and MLA attention against plain torch."""

from __future__ import annotations

import pytest
import torch

from executor.kernels.gate import plain_top_k, top_k
from executor.kernels.mla_decode import mla_decode, plain_mla_decode, shares

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("sigmoid", [True, False])
@pytest.mark.parametrize(("experts", "k", "groups", "kept"), [(64, 8, 8, 4), (24, 3, 1, 1)])
def test_the_best_experts_of_the_best_groups(
    device: str, sigmoid: bool, experts: int, k: int, groups: int, kept: int
) -> None:
    logits = torch.randn(9, experts, device=device)
    ids, weights = top_k(logits, k, groups=groups, kept_groups=kept, sigmoid=sigmoid, factor=2.5)
    expected, reference = plain_top_k(
        logits, k, groups=groups, kept_groups=kept, sigmoid=sigmoid, factor=2.5
    )
    assert torch.equal(ids, expected)
    torch.testing.assert_close(weights, reference)


def test_equal_scores_go_to_the_lower_id(device: str) -> None:
    ids, weights = top_k(torch.zeros(2, 16, device=device), 3, groups=4, kept_groups=2)
    assert ids.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3, device=device))


@pytest.mark.parametrize("sigmoid", [True, False])
@pytest.mark.parametrize("normalise", [True, False])
def test_given_ids_get_the_weights_of_their_own_logits(
    device: str, sigmoid: bool, normalise: bool
) -> None:
    logits = torch.randn(7, 16, device=device)
    given = torch.randint(-1, 32, (7, 5), device=device)
    chosen, _ = top_k(logits, 3, groups=4, kept_groups=2, sigmoid=sigmoid)
    ids, weights = top_k(
        logits, 3, groups=4, kept_groups=2, sigmoid=sigmoid, normalise=normalise, factor=2.5,
        given=given,
    )  # fmt: skip
    assert torch.equal(ids, chosen)
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    expected = scores.gather(-1, given.clamp(min=0) % 16) * (given >= 0)
    if normalise:
        expected = expected / expected.sum(-1, keepdim=True).clamp(min=1e-20)
    torch.testing.assert_close(weights, 2.5 * expected)


@pytest.mark.parametrize(("heads", "splits"), [(3, None), (20, 1), (20, 2)])
def test_attention_over_latents(device: str, heads: int, splits: int | None) -> None:
    attention_is_plain(device, heads, splits, specialised=False)


@pytest.mark.parametrize(("heads", "splits"), [(64, 1), (70, 2), (128, None)])
def test_specialised_attention_over_latents(hopper: str, heads: int, splits: int | None) -> None:
    attention_is_plain(hopper, heads, splits, specialised=True)


def attention_is_plain(device: str, heads: int, splits: int | None, specialised: bool) -> None:
    """Whole blocks of keys, parts of one, a single key; poison behind them does not matter."""
    lengths = torch.tensor([1, 150, 128], dtype=torch.int32, device=device)
    latent, rope = (512, 64) if specialised else (64, 32)
    cache = torch.randn(3, 160, latent + rope, device=device).bfloat16()
    cache[0, 1:] = float("nan")
    cache[1, 150:] = float("nan")
    wide = torch.randn(3, heads, latent + rope + 32, device=device).bfloat16()
    q_latent, q_rope = wide[..., :latent], wide[..., latent : latent + rope]
    out = mla_decode(q_latent, q_rope, cache, lengths, 0.1, splits=splits, specialised=specialised)
    reference = plain_mla_decode(q_latent, q_rope, cache, lengths, 0.1)
    assert (out.float() - reference).norm() <= 1e-2 * reference.norm()


@pytest.mark.parametrize(
    ("programs", "longest", "expected"),
    [(256, 4096, 1), (132, 4096, 1), (64, 4096, 2), (16, 4096, 8), (1, 4096, 16), (1, 100, 1)],
)
def test_keys_are_shared_out_when_sequences_are_few(
    programs: int, longest: int, expected: int
) -> None:
    assert shares(programs, longest, 132) == expected


def test_no_tokens(device: str) -> None:
    ids, weights = top_k(torch.randn(0, 16, device=device), 3)
    assert ids.shape == weights.shape == (0, 3)
