"""Plain causal attention of a prefill by torch, sequences of one shape together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch
from torch.backends import cuda
from torch.nn import functional

from executor import small_kernels as small
from executor.layer_state import Piece
from executor.production_state import ProductionState
from schedules.program import Op

# Cached tokens for each new one up to which causal attention of both is the shorter way. On an H200 (128
# heads, queries and keys of 192, values of 128) 1184 new tokens behind 1184 cached took 745 us with a mask,
# 2368 new ones 531 us: 266 and 189 ps for a pair of scores, 1.40 times as much. A mask's pairs are
# L (S + L), the causal (S + L)^2 / 2, which take less time up to S + L = 2 * 1.40 L. The copy of the
# queries is not counted.
CACHED_PER_NEW = 2 * 745 / 531 - 1


@dataclass(frozen=True)
class Group:
    """`count` sequences with `length` new tokens each. One with `start` cached tokens before them is
    alone. `mask` [length, start + length] is added to its scores; without one the cached tokens get
    queries too, and attention is causal."""

    sequence: int
    count: int
    length: int
    start: int
    mask: torch.Tensor | None

    @property
    def rows(self) -> int:
        """New tokens of all."""
        return self.count * self.length


def groups_of(pieces: Sequence[Piece], device: torch.device) -> tuple[Group, ...]:
    """All pieces in order; those of one shape share a mask, if they need one."""
    masks: dict[tuple[int, int], torch.Tensor] = {}
    groups = []
    for (length, start), group in groupby(pieces, key=lambda piece: (piece.length, piece.start)):
        alike = list(group)
        if not start:
            groups.append(Group(alike[0].sequence, len(alike), length, 0, None))
            continue
        if start > CACHED_PER_NEW * length and (length, start) not in masks:
            masks[length, start] = later_keys(length, start, device)
        mask = masks.get((length, start))
        groups += [Group(piece.sequence, 1, length, start, mask) for piece in alike]
    return tuple(groups)


def later_keys(length: int, start: int, device: torch.device) -> torch.Tensor:
    """bf16 [length, start + length]: -inf where a key comes after the query, else 0. Torch makes the
    same of a boolean mask at every call."""
    mask = torch.full((length, start + length), float("-inf"), dtype=torch.bfloat16, device=device)
    return mask.triu_(start + 1)


def plain_attention(
    state: ProductionState, op: Op, q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor
) -> torch.Tensor:
    """[T, heads, v] of queries [T, heads * qk], keys and values [T, heads * (nope + v)] and rotated
    keys [T, rope]; the queries are the last of each sequence's keys."""
    att = state.model.attention
    name = f"groups of {op.child}"
    if name not in state.kept:
        state.kept[name] = groups_of(state.of(op).part.pieces, q.device)
    groups: tuple[Group, ...] = state.kept[name]
    if not groups:
        return q.new_zeros(0, att.num_heads, att.v_head_dim)
    rows = [group.rows for group in groups]
    split = zip(groups, *(x.split_with_sizes(rows) for x in (q, kv, k_rope)), strict=True)
    with without_efficient():
        parts = [_attended(state, op, *group) for group in split]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attended(
    state: ProductionState,
    op: Op,
    group: Group,
    q: torch.Tensor,
    kv: torch.Tensor,
    k_rope: torch.Tensor,
) -> torch.Tensor:
    att = state.model.attention
    if group.start:
        kv, k_rope = _with_cached(state, op, group, kv, k_rope)
        q = q if group.mask is not None else _behind_zeros(q, group.start)
    out = attended(q, kv, k_rope, att.num_heads, att.qk_nope_head_dim, group.count, group.mask)
    return out[-group.rows :]


def _behind_zeros(q: torch.Tensor, rows: int) -> torch.Tensor:
    """[rows + T, n]: zeros before [T, n], each row written once."""
    out = q.new_empty(rows + len(q), q.shape[1])
    out[:rows].zero_()
    out[rows:].copy_(q)
    return out


def attended(
    q: torch.Tensor,
    kv: torch.Tensor,
    k_rope: torch.Tensor,
    heads: int,
    nope: int,
    count: int,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """[T, heads, v] of `count` sequences of one length: queries [T, heads * (nope + rope)], keys and values
    [S, heads * (nope + v)], rotated keys [S, rope]; causal where there is no mask [T, S] to be added."""
    keys = small.join_keys(kv, k_rope, heads, nope)
    values = kv.view(count, -1, heads, kv.shape[1] // heads)
    out = functional.scaled_dot_product_attention(
        q.view(count, -1, heads, keys.shape[2]).transpose(1, 2),
        keys.view(count, -1, heads, keys.shape[2]).transpose(1, 2),
        values[..., nope:].transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
    )
    return out.transpose(1, 2).flatten(0, 1)


def _with_cached(
    state: ProductionState, op: Op, group: Group, kv: torch.Tensor, k_rope: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, and rotated keys, of one sequence behind those of its cached tokens."""
    cached = state.cache[op.layer][group.sequence, : group.start]
    latent, roped = cached.split_with_sizes((cached.shape[1] - k_rope.shape[1], k_rope.shape[1]), 1)
    packed = small.quantise(latent, column_major=True)
    old = state.gemm.dense(packed, state.weights.linear["kv_b"], op.grid.enforced_budget)
    return torch.cat((old, kv)), torch.cat((roped, k_rope))


@contextmanager
def without_efficient() -> Iterator[None]:
    """Torch's choice among cuDNN's attention, Flash and the plain one."""
    enabled = cuda.mem_efficient_sdp_enabled()
    cuda.enable_mem_efficient_sdp(False)
    try:
        yield
    finally:
        cuda.enable_mem_efficient_sdp(enabled)
