# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The FP8 grouped GEMM as one loop over all steps of all tiles of a program.

Loads of the next tile begin before the last one is finished, and a tile is stored while the next
one's first step is multiplied, which matters where k is short. Signals need barriers, which would end
that overlap: `executor.kernels.grouped_gemm` raises them.
"""

import triton
import triton.language as tl

from executor.kernels.grouped_gemm import place_of, store_halves, tiles_of


@triton.jit
def flat_gemm_kernel(
    x, x_scales, w, w_scales, out, groups,
    num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k,
    MASKED: tl.constexpr, BY_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """In two column halves: one is scaled while the other is multiplied."""
    HALF: tl.constexpr = BLOCK_N // 2
    tiles_n, index = tl.cdiv(n, BLOCK_N), tl.arange(0, GROUPS)
    counts, ends, total_tiles = tiles_of(groups, num_groups, rows, tiles_n, index, MASKED, BLOCK_M)
    programs = tl.num_programs(0)
    mine = tl.cdiv(tl.maximum(total_tiles - tl.program_id(0), 0), programs)
    steps = k // 128
    tile = tl.program_id(0) - programs
    step, w_scale_at = steps - 1, 0
    expert, count, row, column, first_row = -1, 0, 0, 0, 0
    done_expert, done_count, done_row, done_column, done_first = -1, 0, 0, 0, 0
    scale_rows = tl.zeros([BLOCK_M], tl.int32)
    earlier = tl.zeros([BLOCK_M], tl.float32)
    none = tl.zeros([BLOCK_M, HALF], tl.float32)
    left, right, pending = none + 0.0, none + 0.0, none + 0.0
    for _ in tl.range(0, mine * steps, num_stages=STAGES):
        step = tl.where(step == steps - 1, 0, step + 1)
        if step == 0:
            done_expert, done_count, done_first = expert, count, first_row
            done_row, done_column = row, column
            tile += programs
            expert, count, row, column, first_row = place_of(
                tile, groups, ends, counts, index, rows, tiles_n, MASKED, BY_ROWS, BLOCK_M, BLOCK_N
            )
            at = row + tl.arange(0, BLOCK_M)
            scale_rows = tl.where(at < count, at, 0) * x_scale_row
            scale_rows += (expert if MASKED else 0) * x_scale_group
            w_scale_at = (tl.maximum(expert, 0) * tl.cdiv(n, 128) + column // 128) * steps
        weight_row = tl.maximum(expert, 0) * n + column
        a = x.load([first_row + row, step * 128])
        b = w.load([weight_row, step * 128])
        c = w.load([weight_row + HALF, step * 128])
        by_block = tl.load(w_scales + w_scale_at + step)
        scale = tl.load(x_scales + scale_rows + step * x_scale_k) * by_block
        product = tl.dot(a, b.T)
        next_pending = tl.dot(a, c.T)
        right += pending * earlier[:, None]
        if step == 0:
            if done_expert >= 0:
                store_halves(
                    out, left, right, done_first, done_row, done_count, done_column, n, HALF
                )
            left, right = none, none
        left += product * scale[:, None]
        pending, earlier = next_pending, scale
    right += pending * earlier[:, None]
    if expert >= 0:
        store_halves(out, left, right, first_row, row, count, column, n, HALF)
