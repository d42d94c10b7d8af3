"""Grouped top-k routers with one fused shared column, as the serving engine's torch code computes them.

Scores are sigmoids of the gate's logits. Ids come in falling order of the score that chose them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.experts import Weights, shared_weight

Scores = npt.NDArray[np.float32]


def grouped_topk(
    logits: Scores,
    top_k: int,
    *,
    n_group: int,
    topk_group: int,
    renormalise: bool,
    factor: float | None,
    folded: bool,
    bias: Scores | None = None,
    shared: int = 0,
) -> tuple[npt.NDArray[np.int64], Weights]:
    """Ids int64[T, k + S] and weights float32[T, k + S] of float32 logits [T, N].

    With a correction `bias` a group counts for its two best biased scores, without for its best score;
    the weights are the unbiased scores. `folded` multiplies the routed weights by `factor`; the
    shared columns hold id N, N + 1, ... and are left out of the renormalisation.
    """
    scores = (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    choice = scores if bias is None else scores + bias
    ids = _choose(choice, top_k, n_group, topk_group, best=1 if bias is None else 2)
    weights = np.take_along_axis(scores, ids, axis=1)
    if renormalise:
        weights = weights / weights.sum(axis=1, keepdims=True, dtype=np.float32)
    if folded and factor:
        weights = weights * np.float32(factor)
    columns = np.arange(shared) + logits.shape[1]
    gate = np.float32(shared_weight(factor, folded))
    return (
        np.concatenate([ids, np.tile(columns, (len(ids), 1))], axis=1).astype(np.int64),
        np.concatenate([weights, np.full((len(ids), shared), gate)], axis=1).astype(np.float32),
    )


def _choose(
    choice: Scores, top_k: int, n_group: int, topk_group: int, *, best: int
) -> npt.NDArray[np.int64]:
    """Ids of the `top_k` best choices among the `topk_group` best groups of each row."""
    grouped = choice.reshape(len(choice), n_group, -1)
    group_score = np.sort(grouped, axis=2)[:, :, -best:].sum(axis=2)
    kept = np.argsort(-group_score, axis=1, kind="stable")[:, :topk_group]
    mask = np.zeros((len(choice), n_group), dtype=np.bool_)
    np.put_along_axis(mask, kept, True, axis=1)
    masked = np.where(mask[:, :, None], grouped, -np.inf).reshape(choice.shape)
    return np.argsort(-masked, axis=1, kind="stable")[:, :top_k]
