# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Persistent grouped GEMM: rows of each expert times that expert's weights, on a budget of SMs.

Program i of a grid of `num_sms` takes tiles i, i + num_sms, ... so the budget is the grid. Tiles of
an expert are taken by rows (all columns of a row block first, which completes row blocks early) or by
columns (all rows of a column block first, which reads weights once).
"""

import triton
import triton.language as tl

from executor.kernels.interpreted import dot
from executor.kernels.signals import raise_word

SIGNAL_ROWS = 64


@triton.jit
def tile_of(tile, ends, counts, index):
    """(expert, rows of it, tile in it) of a tile of the masked layout; `ends` are running tile counts."""
    before = ends <= tile
    expert = tl.sum(before.to(tl.int32), 0)
    first = tl.max(tl.where(before, ends, 0), 0)
    count = tl.sum(tl.where(index == expert, counts, 0), 0)
    return expert, count, tile - first


@triton.jit
def tiles_of(groups, num_groups, rows, tiles_n, index, MASKED: tl.constexpr, BLOCK_M: tl.constexpr):
    """(counts and running numbers of tiles of the groups, if masked; number of all tiles)."""
    if MASKED:
        counts = tl.load(groups + index, mask=index < num_groups, other=0)
        ends = tl.cumsum((counts + BLOCK_M - 1) // BLOCK_M * tiles_n, 0)
        total = tl.max(ends, 0)
    else:
        counts, ends, total = index, index, tl.cdiv(rows, BLOCK_M) * tiles_n
    return counts, ends, total


@triton.jit
def place_of(
    tile, groups, ends, counts, index, rows, tiles_n,
    MASKED: tl.constexpr, BY_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """(expert, rows of its group, first row and column of the tile in it, the group's first row)."""
    if MASKED:
        expert, count, local = tile_of(tile, ends, counts, index)
        first_row = expert * rows
    else:
        count, local, first_row = rows, tile, tile * 0
    if BY_ROWS:
        block, column_block = local // tiles_n, local % tiles_n
    else:
        blocks = tl.cdiv(count, BLOCK_M)
        block, column_block = local % blocks, local // blocks
    row = block * BLOCK_M
    if not MASKED:
        expert = tl.load(groups + row)
    return expert, count, row, column_block * BLOCK_N, first_row


@triton.jit
def _scaled_products(
    x, x_scales, w, w_scales, row, column, k, scale_rows, scale_stride, w_scale_at,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """FP8: every 128 of k have a scale for each row and one for the weights' block."""
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    steps = k // 128
    scale = tl.load(x_scales + scale_rows) * tl.load(w_scales + w_scale_at)
    for step in tl.range(0, steps, num_stages=STAGES):
        after = tl.minimum(step + 1, steps - 1)
        by_row = tl.load(x_scales + scale_rows + after * scale_stride)
        by_block = tl.load(w_scales + w_scale_at + after)
        a = x.load([row, step * 128])
        b = w.load([column, step * 128])
        total += tl.dot(a, b.T) * scale[:, None]
        scale = by_row * by_block
    return total


@triton.jit
def store_tile(out, value, first_row, at, valid, column, n, WIDTH: tl.constexpr):
    columns = column + tl.arange(0, WIDTH)
    to = out + (first_row + at).to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(to, value.to(tl.bfloat16), mask=valid[:, None] & (columns < n)[None, :])


@triton.jit
def grouped_gemm_kernel(
    x, x_scales, w, w_scales, out, groups, signals,
    num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k,
    MASKED: tl.constexpr, FP8: tl.constexpr, SIGNAL: tl.constexpr, BY_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """See `executor.kernels.gemm`. `groups` holds counts [E] (masked, `rows` rows each) or the expert
    of every row [rows] (contiguous, each expert's rows beginning at a multiple of BLOCK_M)."""
    tiles_n, index = tl.cdiv(n, BLOCK_N), tl.arange(0, GROUPS)
    counts, ends, total_tiles = tiles_of(groups, num_groups, rows, tiles_n, index, MASKED, BLOCK_M)
    for tile in tl.range(tl.program_id(0), total_tiles, tl.num_programs(0)):
        expert, count, row, column, first_row = place_of(
            tile, groups, ends, counts, index, rows, tiles_n, MASKED, BY_ROWS, BLOCK_M, BLOCK_N
        )
        if expert >= 0:
            at = row + tl.arange(0, BLOCK_M)
            valid = at < count
            if FP8:
                group = expert if MASKED else 0
                scale_rows = group * x_scale_group + tl.where(valid, at, 0) * x_scale_row
                w_scale_at = (expert * tl.cdiv(n, 128) + column // 128) * (k // 128)
                total = _scaled_products(
                    x, x_scales, w, w_scales, first_row + row, expert * n + column, k,
                    scale_rows, x_scale_k, w_scale_at, BLOCK_M, BLOCK_N, STAGES,
                )  # fmt: skip
            else:
                total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
                for step in tl.range(0, tl.cdiv(k, BLOCK_K), num_stages=STAGES):
                    a = x.load([first_row + row, step * BLOCK_K])
                    b = w.load([expert * n + column, step * BLOCK_K])
                    total = dot(a, b.T, total)
            store_tile(out, total, first_row, at, valid, column, n, BLOCK_N)
            if SIGNAL > 0:
                raise_row_blocks(signals, expert, row, count, rows, SIGNAL, BLOCK_M)


@triton.jit
def raise_row_blocks(
    signals, expert, row, count, rows, SIGNAL: tl.constexpr, BLOCK_M: tl.constexpr
):
    """One more tile of every started run of 64 rows under this tile, in its word or its expert's."""
    first = expert
    if SIGNAL == 1:
        first = expert * tl.cdiv(rows, 64) + row // 64
    for part in tl.static_range(BLOCK_M // 64):
        if row + part * 64 < count:
            raise_word(signals + first + (part if SIGNAL == 1 else 0), 1)
