"""Seeded top-k draws: which `k` distinct logical experts each token chooses.

Experts are drawn one after the other in proportion to their popularity, never twice for a token.
With a group limit a token first draws `topk_group` of the `n_group` contiguous groups in proportion
to their popularity, then each expert from one of these groups at random, by popularity inside it: a
gate keeps groups for their best experts, so each group kept gives about as many, and popularity
survives the limit as far as it can.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

MAX_EXPERTS = 32767  # ids are drawn as 16-bit numbers
_REJECTION_ROUNDS = 24
# The public kernel tables draw expert loads up to this share of the tokens in flight.
_POWER_LAW_TOP_SHARE = 0.8


def power_law_popularity(
    num_experts: int, alpha: float, num_tokens: int, rng: np.random.Generator
) -> Floats:
    """Expert popularity [num_experts], summing to 1, whose values have the density `x ** -alpha`.

    The density runs from 1 to 0.8 times the tokens of all ranks, the definition behind the
    `power_law_0.8` and `power_law_1.2` rows of the public grouped GEMM tables (NVIDIA
    AIConfigurator 0.12.0), so that the skew means the same there and here. The skew grows up to an
    `alpha` of 1.5 and falls above 1.8, where ever more values lie close to 1 (256 experts: the most
    popular has 3.4, 21, 68, 51 and 4.9 times the mean at 0.6, 1.2, 1.5, 2 and 4). `alpha` 0 switches
    the skew off: all experts are equally popular.
    """
    if alpha == 0:
        return np.full(num_experts, 1.0 / num_experts)
    top = max(2.0, _POWER_LAW_TOP_SHARE * num_tokens)
    u = rng.random(num_experts)
    # Near 1 the general form cancels badly; its limit is the logarithmic one.
    if abs(alpha - 1) < 1e-9:
        loads = np.exp(u * np.log(top))
    else:
        loads = (u * (top ** (1 - alpha) - 1) + 1) ** (1 / (1 - alpha))
    return np.asarray(loads / loads.sum(), dtype=np.float64)


def draw_topk(
    popularity: Floats,
    num_tokens: int,
    top_k: int,
    rng: np.random.Generator,
    *,
    n_group: int = 1,
    topk_group: int = 1,
) -> Ids:
    """Logical expert ids int32[num_tokens, top_k], all different in a row.

    `popularity` is float64[N] and need not be normalised. ValueError when a token could not find
    `top_k` experts of positive popularity in any `topk_group` groups, or when `n_group` does not
    divide N.
    """
    _check(popularity, top_k, n_group, topk_group)
    groups = _draw_distinct(
        _Union(popularity.reshape(n_group, -1).sum(axis=1)), num_tokens, topk_group, rng
    )
    return _draw_distinct(_Union(popularity, groups, n_group), num_tokens, top_k, rng).T.astype(
        np.int32, order="C"
    )


def _check(popularity: Floats, top_k: int, n_group: int, topk_group: int) -> None:
    if n_group < 1 or len(popularity) % n_group:
        raise ValueError(f"n_group {n_group} does not divide the {len(popularity)} experts")
    if not 1 <= topk_group <= n_group:
        raise ValueError(f"topk_group must be 1 to {n_group} (n_group), not {topk_group}")
    with np.errstate(over="ignore"):
        total = popularity.sum()
    if not np.isfinite(total) or np.any(popularity < 0):
        raise ValueError("expert popularity and its sum must be finite and not negative")
    usable = np.sort((popularity.reshape(n_group, -1) > 0).sum(axis=1))
    if (usable > 0).sum() < topk_group or usable[usable > 0][:topk_group].sum() < top_k:
        raise ValueError(
            f"top_k {top_k} needs as many experts of positive popularity in every choice of "
            f"{topk_group} of {n_group} groups"
        )


class _Union:
    """Draws one of the items that each row may choose: all of them, or those of its groups."""

    def __init__(
        self,
        weights: Floats,
        groups: npt.NDArray[np.int16] | None = None,
        n_group: int = 1,
    ) -> None:
        limited = groups is not None and len(groups) < n_group
        self.groups = groups if limited else None
        self.size = len(weights)
        table = weights.reshape(n_group if limited else 1, -1)
        sums = table.sum(axis=1, keepdims=True)
        self.weights = (table / np.where(sums > 0, sums, 1.0)).reshape(-1)
        self.per_group = table.shape[1]
        rows = [_alias(row) for row in self.weights.reshape(table.shape)]
        self.keep = np.concatenate([keep for keep, _ in rows])
        self.other = np.concatenate(
            [other + g * self.per_group for g, (_, other) in enumerate(rows)]
        ).astype(np.int16)

    def draw(self, rows: npt.NDArray[np.intp] | slice, u: Floats) -> npt.NDArray[np.int16]:
        """One item for each of the rows from uniform numbers `u`."""
        u = u * self.per_group
        if self.groups is None:
            item = u.astype(np.int16)
            u -= item
        else:
            allowed = self.groups[:, rows]
            u *= len(allowed)
            cell = u.astype(np.int16)
            u -= cell
            which, inside = np.divmod(cell, np.int16(self.per_group))
            item = _pick(allowed, which) * np.int16(self.per_group) + inside
        return np.where(u < self.keep[item], item, self.other[item])

    def allowed(self, rows: npt.NDArray[np.intp]) -> Floats:
        """Weights [rows, size] with 0 for what a row may not choose."""
        if self.groups is None:
            return np.broadcast_to(self.weights, (len(rows), self.size))
        group = np.arange(self.size) // self.per_group
        mask = (self.groups[:, rows, None] == group).any(axis=0)
        return np.where(mask, self.weights, 0.0)


def _pick(table: npt.NDArray[np.int16], which: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """`table[which[i], i]` for every column i."""
    return np.asarray(table[which, np.arange(table.shape[1])], dtype=np.int16)


def _alias(weights: Floats) -> tuple[Floats, npt.NDArray[np.int16]]:
    """Walker's alias table: item `i` of a uniform choice stays with probability `keep[i]`, else it
    becomes `other[i]`, so that every item comes up in proportion to its weight."""
    keep = weights * len(weights)
    other = np.arange(len(weights), dtype=np.int16)
    small = [i for i, share in enumerate(keep) if share < 1]
    large = [i for i, share in enumerate(keep) if share >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        other[low] = high
        keep[high] -= 1 - keep[low]
        if keep[high] < 1:
            small.append(large.pop())
    # What is left over is 1 up to rounding; an item of weight 0 must still never come up.
    left = np.array(small + large, dtype=np.intp)
    keep[left] = weights[left] > 0
    other[left] = np.argmax(weights)
    return keep, other


def _draw_distinct(
    union: _Union, num_rows: int, count: int, rng: np.random.Generator
) -> npt.NDArray[np.int16]:
    """Distinct items int16[count, num_rows]: each drawn by weight among those not yet taken."""
    taken = np.empty((count, num_rows), dtype=np.int16)
    if count == union.size:
        taken[:] = np.arange(count, dtype=np.int16)[:, None]
        return taken
    for j in range(count):
        taken[j] = union.draw(slice(None), rng.random(num_rows))
        rows = np.flatnonzero((taken[:j] == taken[j]).any(axis=0))
        for _ in range(_REJECTION_ROUNDS):
            if not len(rows):
                break
            taken[j, rows] = union.draw(rows, rng.random(len(rows)))
            rows = rows[(taken[:j, rows] == taken[j, rows]).any(axis=0)]
        if len(rows):
            taken[j, rows] = _draw_exactly(union, taken[:j, rows], rows, rng)
    return taken


def _draw_exactly(
    union: _Union,
    taken: npt.NDArray[np.int16],
    rows: npt.NDArray[np.intp],
    rng: np.random.Generator,
) -> npt.NDArray[np.int16]:
    """The same draw without rejection, for the few rows whose taken items hold almost all weight."""
    weights = union.allowed(rows).copy()
    weights[np.arange(len(rows)), taken] = 0.0
    with np.errstate(divide="ignore"):
        waiting_times = rng.exponential(size=weights.shape) / weights
    return np.asarray(np.argmin(waiting_times, axis=1), dtype=np.int16)
