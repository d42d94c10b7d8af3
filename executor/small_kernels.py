"""Triton kernels between the big ones: norms, casts to FP8, rotary, permutation, weighted sums."""

from __future__ import annotations

import torch

from executor.kernels.kept import Kept
from executor.triton_kernels import (
    add_kernel,
    join_keys_kernel,
    norm_kernel,
    permute_kernel,
    quantise_kernel,
    rotate_kernel,
    silu_mul_kernel,
    softmax_kernel,
    store_kernel,
    weighted_sum_kernel,
)

GROUP = 128
FP8 = torch.float8_e4m3fn
EPSILON = 1e-6
# Four 16-byte loads in flight for each thread of a block.
KEY_HEADS = 32

_norm = Kept(norm_kernel)
_quantise = Kept(quantise_kernel)
_silu_mul = Kept(silu_mul_kernel)
_rotate = Kept(rotate_kernel)
_join_keys = Kept(join_keys_kernel)
_softmax = Kept(softmax_kernel)
_store = Kept(store_kernel)
_permute = Kept(permute_kernel)
_weighted_sum = Kept(weighted_sum_kernel)
_add = Kept(add_kernel)


def power_of_two(value: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()


def column_major_scales(rows: int, groups: int, device: torch.device | str) -> torch.Tensor:
    """Uninitialised scales [rows, groups], stored column by column with columns aligned to 16 bytes,
    as the FP8 GEMMs read them."""
    aligned = -(-rows // 4) * 4
    scales = torch.empty_strided(
        (aligned, groups), (1, aligned), dtype=torch.float32, device=device
    )
    return scales if rows == aligned else scales[:rows]


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Norm of [T, n]; rows may be a slice of a wider matrix."""
    rows, size = x.shape
    out = x.new_empty((rows, size), dtype=torch.bfloat16)
    if rows:
        _norm(
            (rows, 1, 1), (x, x, weight, out, out), x.stride(0), size, EPSILON,
            ADD=False, BLOCK=power_of_two(size),
        )  # fmt: skip
    return out


def add_norm(
    x: torch.Tensor, add: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + add, its norm), both [T, n]."""
    rows, size = x.shape
    total, out = torch.empty_like(x), torch.empty_like(x)
    if rows:
        _norm(
            (rows, 1, 1), (x, add, weight, out, total), x.stride(0), size, EPSILON,
            ADD=True, BLOCK=power_of_two(size),
        )  # fmt: skip
    return total, out


def quantise(x: torch.Tensor, *, column_major: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, n] to FP8 with a scale for each 128 values; scales [T, n / 128] stored by row or column."""
    rows, columns = x.shape
    return _cast(x.contiguous(), rows, columns, gated=False, column_major=column_major)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of contiguous [T, 2 n], bf16 [T, n]; silu is rounded first, as in torch."""
    rows, columns = x.shape[0], x.shape[1] // 2
    out = x.new_empty((rows, columns), dtype=torch.bfloat16)
    if rows:
        _silu_mul((rows, -(-columns // 1024), 1), (x, out), columns, BLOCK=1024)
    return out


def silu_mul_quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """silu(gate) * up of [T, 2 n] as FP8, scales by column."""
    rows, double = x.shape
    return _cast(x, rows, double // 2, gated=True, column_major=True)


def _cast(
    x: torch.Tensor, rows: int, columns: int, *, gated: bool, column_major: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    out = x.new_empty((rows, columns), dtype=FP8)
    groups = columns // GROUP
    if column_major:
        scales = column_major_scales(rows, groups, x.device)
    else:
        scales = x.new_empty((rows, groups), dtype=torch.float32)
    if rows:
        _quantise(
            (rows, 1, 1), (x, out, scales, scales), columns, *scales.stride(), 1,
            GATED=gated, MASKED=False, GROUPS=power_of_two(groups),
        )  # fmt: skip
    return out, scales


def silu_mul_quantise_masked(
    x: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for [E, m, 2 n] of which `counts` [E] rows are valid; scales [E, m, n / 128] stored
    column by column for each expert."""
    experts, rows, double = x.shape
    columns = double // 2
    groups = columns // GROUP
    aligned = -(-rows // 4) * 4
    out = x.new_empty((experts, rows, columns), dtype=FP8)
    scales = x.new_empty((experts, groups, aligned), dtype=torch.float32)
    _quantise(
        (experts * rows, 1, 1), (x, out, scales, counts), columns, 1, aligned, rows,
        GATED=True, MASKED=True, GROUPS=power_of_two(groups),
    )  # fmt: skip
    return out, scales.transpose(1, 2)[:, :rows]


def rotate(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, base: float
) -> torch.Tensor:
    """Rotary embedding of the last axis, halves paired: of query [T, heads, n] in place, and of key
    [T, n], which is returned anew."""
    rows, heads, size = query.shape
    out = key.new_empty((rows, size))
    if rows:
        _rotate(
            (rows, 1, 1), (query, key, out, positions),
            query.stride(0), query.stride(1), key.stride(0), heads, base,
            HEADS=power_of_two(heads), HALF=size // 2,
        )  # fmt: skip
    return out


def join_keys(kv: torch.Tensor, rope: torch.Tensor, heads: int, nope: int) -> torch.Tensor:
    """Keys [T, heads, nope + rope], all contiguous: the first `nope` of each head in kv [T, heads * n], and
    rope [T, rope] behind them, the same for all heads. One pass, as SGLang's `concat_mla_k` makes it."""
    rows, size = rope.shape
    out = kv.new_empty((rows, heads, nope + size))
    if rows:
        block = min(KEY_HEADS, power_of_two(heads))
        _join_keys(
            (rows, -(-heads // block), 1), (kv, rope, out), heads, kv.shape[1] // heads,
            NOPE=nope, ROPE=size, HEADS=block,
            NOPE_BLOCK=power_of_two(nope), ROPE_BLOCK=power_of_two(size),
        )  # fmt: skip
    return out


def softmax_(x: torch.Tensor, lengths: torch.Tensor, scale: float) -> torch.Tensor:
    """Softmax in place of [B, heads, n] over the first `lengths` [B] keys; the rest becomes 0."""
    batch, heads, size = x.shape
    if batch:
        grid = (batch * heads, 1, 1)
        _softmax(grid, (x, lengths), size, scale, heads, BLOCK=power_of_two(size))
    return x


def store_latents(
    latent: torch.Tensor,
    key: torch.Tensor,
    sequence: torch.Tensor,
    position: torch.Tensor,
    cache: torch.Tensor,
) -> None:
    """Rows [T, c] and [T, r] side by side into cache [sequences, length, c + r]."""
    if latent.shape[0]:
        _store(
            (latent.shape[0], 1, 1), (latent, key, sequence, position, cache),
            cache.shape[1], latent.shape[1], key.shape[1],
            LATENT=power_of_two(latent.shape[1]), KEY=power_of_two(key.shape[1]),
        )  # fmt: skip


def permute(
    x: torch.Tensor,
    scales: torch.Tensor,
    ids: torch.Tensor,
    starts: torch.Tensor,
    next_row: torch.Tensor,
    rows: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """FP8 rows [R, n] to `rows` rows sorted by local expert, expert e from `starts[e]` on.

    `ids` [R, k] are local experts, -1 for none; `starts` [E + 1] int32, and `next_row` its first E,
    which are counted up. Returns rows, scales stored by
    column, the expert of each row [rows], and where each (row, slot) went [R, k].
    """
    received, columns = x.shape
    experts, slots = next_row.shape[0], ids.shape[1]
    out = x.new_empty((rows, columns), dtype=FP8)
    out_scales = column_major_scales(rows, columns // GROUP, x.device)
    places = starts.new_empty((received, slots))
    expert_of = starts.new_empty(rows)
    _permute(
        (experts + received, 1, 1),
        (
            x.view(torch.uint8), scales, ids, starts, next_row,
            out.view(torch.uint8), out_scales, expert_of, places,
        ),
        experts, columns, out_scales.stride(1),
        SLOTS=slots, BLOCK=power_of_two(columns), GROUPS=power_of_two(columns // GROUP), FILL=256,
    )  # fmt: skip
    return out, out_scales, expert_of, places


def weighted_sum(
    x: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each received row's sum of its experts' rows, [R, n], in `out` if given."""
    received, slots = places.shape
    columns = x.shape[1]
    if out is None:
        out = x.new_empty((received, columns), dtype=torch.bfloat16)
    if received:
        grid = (received, -(-columns // 1024), 1)
        _weighted_sum(grid, (x, places, weights, out), columns, SLOTS=slots, BLOCK=1024)
    return out


def add_three(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a + b + c in float32, bf16 out."""
    out, size = torch.empty_like(a), a.numel()
    if size:
        _add((-(-size // 4096), 1, 1), (a, b, c, out), size, BLOCK=4096)
    return out
