# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The router's choice: the best experts of the best groups, with their weights; plain torch beside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executor.kernels.kept import Kept


@triton.jit
def _top_k_kernel(
    logits, ids, weights, given, experts, factor,
    SIGMOID: tl.constexpr, NORMALISE: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr,
    TOP_K: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """One token: GROUPS x BLOCK experts; a group's score is the sum of its two best. With GIVEN
    slots the weights are those of other ids than the chosen ones."""
    token = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, GROUPS), tl.arange(0, BLOCK)
    size = experts // GROUPS
    expert = group[:, None] * size + member[None, :]
    live = (member < size)[None, :] & (group >= 0)[:, None]
    score = tl.load(logits + token * experts + expert, mask=live, other=float("-inf"))
    score = score.to(tl.float32)
    highest = 0.0
    total = 1.0
    if SIGMOID:
        score = tl.where(live, 1.0 / (1.0 + tl.exp(-score)), -1.0)
    else:
        highest = tl.max(tl.max(score, 1), 0)
        score = tl.where(live, tl.exp(score - highest), 0.0)
        total = tl.sum(tl.sum(score, 1), 0)
        score = tl.where(live, score / total, -1.0)
    if KEPT < GROUPS:
        best = tl.max(score, 1)
        at = tl.argmax(score, 1)
        second = tl.max(tl.where(member[None, :] == at[:, None], -1.0, score), 1)
        rank_of = best + tl.maximum(second, 0.0)
        better = rank_of[None, :] > rank_of[:, None]
        tied = (rank_of[None, :] == rank_of[:, None]) & (group[None, :] < group[:, None])
        place = tl.sum((better | tied).to(tl.int32), 1)
        score = tl.where((place < KEPT)[:, None], score, -1.0)
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros([SLOTS], tl.int32)
    weight = tl.zeros([SLOTS], tl.float32)
    for turn in tl.static_range(TOP_K):
        best = tl.max(tl.max(score, 1), 0)
        winner = tl.min(tl.min(tl.where(score == best, expert, experts), 1), 0)
        chosen = tl.where(slot == turn, winner, chosen)
        weight = tl.where(slot == turn, best, weight)
        score = tl.where(expert == winner, -1.0, score)
    if GIVEN:
        other = tl.load(given + token * GIVEN + slot, mask=slot < GIVEN, other=-1)
        logit = tl.load(logits + token * experts + other % experts, mask=other >= 0, other=0.0)
        if SIGMOID:
            weight = 1.0 / (1.0 + tl.exp(-logit.to(tl.float32)))
        else:
            weight = tl.exp(logit.to(tl.float32) - highest) / total
        weight = tl.where(other >= 0, weight, 0.0)
    if NORMALISE:
        weight = weight / tl.maximum(tl.sum(weight, 0), 1e-20)
    tl.store(ids + token * TOP_K + slot, chosen.to(tl.int64), mask=slot < TOP_K)
    width = GIVEN if GIVEN else TOP_K
    tl.store(weights + token * width + slot, weight * factor, mask=slot < width)


_top_k = Kept(_top_k_kernel, num_warps=4)


def top_k(
    logits: torch.Tensor,
    k: int,
    *,
    groups: int = 1,
    kept_groups: int = 1,
    sigmoid: bool = True,
    normalise: bool = True,
    factor: float = 1.0,
    given: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int64 [T, k], weights float32 [T, k]) of logits [T, experts]; `groups` is a power of two
    that divides the experts. Ties go to the lower id. With `given` ids [T, n] the choice is made all the
    same, but the weights [T, n] are theirs: 0 for -1, and an id beyond the experts is a copy of one."""
    tokens, experts = logits.shape
    slots = 0 if given is None else given.shape[1]
    ids = logits.new_empty((tokens, k), dtype=torch.int64)
    weights = logits.new_empty((tokens, slots or k), dtype=torch.float32)
    if tokens:
        _top_k(
            (tokens, 1, 1), (logits, ids, weights, ids if given is None else given), experts, factor,
            SIGMOID=sigmoid, NORMALISE=normalise, GROUPS=groups, KEPT=kept_groups, TOP_K=k,
            SLOTS=1 << (max(k, slots) - 1).bit_length(),
            BLOCK=1 << (experts // groups - 1).bit_length(), GIVEN=slots,
        )  # fmt: skip
    return ids, weights


def plain_top_k(
    logits: torch.Tensor,
    k: int,
    *,
    groups: int = 1,
    kept_groups: int = 1,
    sigmoid: bool = True,
    normalise: bool = True,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch."""
    scores = logits.float().sigmoid() if sigmoid else logits.float().softmax(-1)
    by_group = scores.unflatten(-1, (groups, -1))
    best = by_group.topk(2, dim=-1).values.sum(-1).topk(kept_groups, dim=-1).indices
    kept = torch.zeros_like(by_group[..., 0]).scatter(-1, best, 1.0).bool().unsqueeze(-1)
    weights, ids = by_group.masked_fill(~kept, -1.0).flatten(-2).topk(k, dim=-1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights * factor
