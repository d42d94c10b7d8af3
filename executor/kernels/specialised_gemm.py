# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The grouped GEMM with one warp that loads and two warpgroups that multiply (Hopper).

A warpgroup that scales a product into its total leaves the tensor cores idle. Here the two wait for
nothing but the arrival of operands, so that one multiplies while the other scales, and the loads of
the next tile run on beside the stores of this one. Tiles are dealt out as in
`executor.kernels.grouped_gemm`, which runs everywhere.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from executor.kernels.signals import raise_word

ROWS = gl.constexpr(64)
COLUMNS = gl.constexpr(128)


@gluon.jit
def _group_of(tile, expert, begin, count, groups, num_groups, tiles_n, BLOCK_M: gl.constexpr):
    """(group, its first tile, its rows) of a tile that is not before the group given."""
    end = begin + gl.cdiv(count, BLOCK_M) * tiles_n
    while (expert < num_groups) & (tile >= end):
        begin = end
        expert += 1
        count = gl.load(groups + expert, mask=expert < num_groups, other=0)
        end = begin + gl.cdiv(count, BLOCK_M) * tiles_n
    return expert, begin, count


@gluon.jit
def _first_group(groups, num_groups, rows, tiles_n, MASKED: gl.constexpr, BLOCK_M: gl.constexpr):
    """This program's first tile and its group; the contiguous layout is one group of all rows."""
    count = rows
    if MASKED:
        count = gl.load(groups)
    tile, none = gl.program_id(0), gl.to_tensor(0)
    expert, begin, count = _group_of(tile, none, none, count, groups, num_groups, tiles_n, BLOCK_M)
    return tile, expert, begin, count


@gluon.jit
def _place_of(
    local, expert, count, groups, rows, tiles_n,
    MASKED: gl.constexpr, BY_ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """(row of the tile in its group, row in x, column, whose weights) of a group's tile."""
    if BY_ROWS:
        block, column_block = local // tiles_n, local % tiles_n
    else:
        blocks = gl.cdiv(count, BLOCK_M)
        block, column_block = local % blocks, local // blocks
    row = block * BLOCK_M
    x_row, owner = row, expert
    if MASKED:
        x_row = expert * rows + row
    else:
        owner = gl.load(groups + row)
    return row, x_row, column_block * BLOCK_N, owner


@gluon.jit
def _load_step(
    x, w, x_stages, w_stages, bar, x_row, w_row, at, stage,
    M_PARTS: gl.constexpr, N_PARTS: gl.constexpr,
):  # fmt: skip
    """Ask for a step's rows and columns."""
    mbarrier.expect(bar, M_PARTS * x.block_type.nbytes + N_PARTS * w.block_type.nbytes)
    for part in gl.static_range(M_PARTS):
        to = x_stages.index(stage * M_PARTS + part)
        tma.async_copy_global_to_shared(x, [x_row + part * ROWS, at], bar, to)
    for part in gl.static_range(N_PARTS):
        to = w_stages.index(stage * N_PARTS + part)
        tma.async_copy_global_to_shared(w, [w_row + part * COLUMNS, at], bar, to)


@gluon.jit
def _load_tiles(
    x, w, x_stages, w_stages, full, empty, groups, num_groups, rows, n, k,
    MASKED: gl.constexpr, BY_ROWS: gl.constexpr, M_PARTS: gl.constexpr, N_PARTS: gl.constexpr,
    LOADS: gl.constexpr,
):  # fmt: skip
    """The loading warp: every step of every tile into the next free stage."""
    STAGES: gl.constexpr = full.shape[0]
    BLOCK_K: gl.constexpr = x_stages.shape[2]
    BLOCK_M: gl.constexpr = M_PARTS * ROWS
    BLOCK_N: gl.constexpr = N_PARTS * COLUMNS
    tiles_n, turn = gl.cdiv(n, BLOCK_N), 0
    tile, expert, begin, count = _first_group(groups, num_groups, rows, tiles_n, MASKED, BLOCK_M)
    while expert < num_groups:
        _, x_row, column, owner = _place_of(
            tile - begin, expert, count, groups, rows, tiles_n, MASKED, BY_ROWS, BLOCK_M, BLOCK_N
        )
        if owner >= 0:
            for step in range(k // BLOCK_K):
                stage = turn % STAGES
                mbarrier.wait(empty.index(stage), (turn // STAGES & 1) ^ 1)
                if LOADS or turn < STAGES:
                    _load_step(
                        x, w, x_stages, w_stages, full.index(stage), x_row, owner * n + column,
                        step * BLOCK_K, stage, M_PARTS, N_PARTS,
                    )  # fmt: skip
                else:
                    mbarrier.arrive(full.index(stage), count=1)
                turn += 1
        tile += gl.num_programs(0)
        expert, begin, count = _group_of(
            tile, expert, begin, count, groups, num_groups, tiles_n, BLOCK_M
        )


@gluon.jit
def _add_scaled(a, b, total, scale, empty, LAST: gl.constexpr, LAYOUT: gl.constexpr):
    """total + a b scale; the stage is free after the last product."""
    nothing = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    part = warpgroup_mma(a, b, nothing, use_acc=False, is_async=True)
    part = warpgroup_mma_wait(0, deps=(part,))
    if LAST:
        mbarrier.arrive(empty, count=1)
    return total + part * scale[:, None]


@gluon.jit
def _scaled_products(
    x_stages, w_stages, full, empty, turn, x_scales, x_at, x_next, x_stride,
    w_scales, w_at, w_next, k,
    FIRST: gl.constexpr, M_PARTS: gl.constexpr, N_PARTS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A warpgroup's one or two parts [64, 128] of a tile over all of k, and the turn after it.

    Every 128 of k have a scale for each row and one for the weights' block; those of the next step
    are on their way while this one multiplies.
    """
    STAGES: gl.constexpr = full.shape[0]
    TWO: gl.constexpr = M_PARTS * N_PARTS > 2
    steps = k // 128
    total = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    other = total
    scale = gl.load(x_scales + x_at) * gl.load(w_scales + w_at)
    if TWO:
        next_scale = gl.load(x_scales + x_next) * gl.load(w_scales + w_next)
    for step in range(steps):
        stage = turn % STAGES
        after = gl.minimum(step + 1, steps - 1)
        by_row = gl.load(x_scales + x_at + after * x_stride)
        by_block = gl.load(w_scales + w_at + after)
        a = x_stages.index(stage * M_PARTS + FIRST)
        b = w_stages.index(stage * N_PARTS).permute((1, 0))
        mbarrier.wait(full.index(stage), turn // STAGES & 1)
        total = _add_scaled(a, b, total, scale, empty.index(stage), not TWO, LAYOUT)
        if TWO:
            next_by_row = gl.load(x_scales + x_next + after * x_stride)
            next_by_block = gl.load(w_scales + w_next + after)
            a = x_stages.index(stage * M_PARTS + FIRST + M_PARTS // 4)
            b = w_stages.index(stage * N_PARTS + N_PARTS // 2).permute((1, 0))
            other = _add_scaled(a, b, other, next_scale, empty.index(stage), True, LAYOUT)
            next_scale = next_by_row * next_by_block
        scale = by_row * by_block
        turn += 1
    return total, other, turn


@gluon.jit
def _products(
    x_stages, w_stages, full, empty, turn, k,
    FIRST: gl.constexpr, M_PARTS: gl.constexpr, N_PARTS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The same of operands without scales, which the tensor cores add up."""
    STAGES: gl.constexpr = full.shape[0]
    BLOCK_K: gl.constexpr = x_stages.shape[2]
    total = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    other = total
    for _step in range(k // BLOCK_K):
        stage = turn % STAGES
        a = x_stages.index(stage * M_PARTS + FIRST)
        b = w_stages.index(stage * N_PARTS).permute((1, 0))
        mbarrier.wait(full.index(stage), turn // STAGES & 1)
        total = warpgroup_mma(a, b, total, is_async=True)
        if M_PARTS * N_PARTS > 2:
            a = x_stages.index(stage * M_PARTS + FIRST + M_PARTS // 4)
            b = w_stages.index(stage * N_PARTS + N_PARTS // 2).permute((1, 0))
            other = warpgroup_mma(a, b, other, is_async=True)
            total, other = warpgroup_mma_wait(0, deps=(total, other))
        else:
            total = warpgroup_mma_wait(0, deps=(total,))
        mbarrier.arrive(empty.index(stage), count=1)
        turn += 1
    return total, other, turn


@gluon.jit
def _store_part(out, value, x_row, row, count, column, n):
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    value = gl.convert_layout(value.to(gl.bfloat16), WIDE)
    at = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE))
    columns = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))
    to = out + (x_row + at).to(gl.int64)[:, None] * n + columns[None, :]
    gl.store(to, value, mask=(row + at < count)[:, None] & (columns < n)[None, :])


@gluon.jit
def _raise_block(signals, expert, row, count, rows, SIGNAL: gl.constexpr):
    """One more tile of a started block of 64 rows, in its word or its expert's."""
    if row < count:
        word = expert
        if SIGNAL == 1:
            word = expert * gl.cdiv(rows, ROWS) + row // ROWS
        raise_word(signals + word, 1)


@gluon.jit
def _multiply_tiles(
    x_stages, w_stages, full, empty, x_scales, w_scales, out, groups, signals,
    num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k, SECOND: gl.constexpr,
    MASKED: gl.constexpr, SCALED: gl.constexpr, SIGNAL: gl.constexpr, BY_ROWS: gl.constexpr,
    M_PARTS: gl.constexpr, N_PARTS: gl.constexpr,
):  # fmt: skip
    """One of the two multiplying warpgroups: the upper or the lower (`SECOND`) half of every tile."""
    BLOCK_M: gl.constexpr = M_PARTS * ROWS
    BLOCK_N: gl.constexpr = N_PARTS * COLUMNS
    FIRST: gl.constexpr = M_PARTS // 2 * SECOND
    DOWN: gl.constexpr = M_PARTS // 4 * ROWS
    RIGHT: gl.constexpr = N_PARTS // 2 * COLUMNS
    DEPTH: gl.constexpr = 256 // x_stages.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, DEPTH])
    tiles_n, turn = gl.cdiv(n, BLOCK_N), 0
    tile, expert, begin, count = _first_group(groups, num_groups, rows, tiles_n, MASKED, BLOCK_M)
    while expert < num_groups:
        row, x_row, column, owner = _place_of(
            tile - begin, expert, count, groups, rows, tiles_n, MASKED, BY_ROWS, BLOCK_M, BLOCK_N
        )
        if owner >= 0:
            row += FIRST * ROWS
            x_row += FIRST * ROWS
            if SCALED:
                at = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
                group = expert * x_scale_group if MASKED else 0
                x_at = group + gl.where(at < count, at, 0) * x_scale_row
                x_next = group + gl.where(at + DOWN < count, at + DOWN, 0) * x_scale_row
                right = gl.where(column + RIGHT < n, column + RIGHT, column)
                block = owner * gl.cdiv(n, 128)
                w_at = (block + column // 128) * (k // 128)
                w_next = (block + right // 128) * (k // 128)
                total, other, turn = _scaled_products(
                    x_stages, w_stages, full, empty, turn, x_scales, x_at, x_next, x_scale_k,
                    w_scales, w_at, w_next, k, FIRST, M_PARTS, N_PARTS, LAYOUT,
                )  # fmt: skip
            else:
                total, other, turn = _products(
                    x_stages, w_stages, full, empty, turn, k, FIRST, M_PARTS, N_PARTS, LAYOUT
                )
            _store_part(out, total, x_row, row, count, column, n)
            if M_PARTS * N_PARTS > 2:
                _store_part(out, other, x_row + DOWN, row + DOWN, count, column + RIGHT, n)
            if SIGNAL > 0:
                for part in gl.static_range(M_PARTS // 2):
                    _raise_block(signals, expert, row + part * ROWS, count, rows, SIGNAL)
        tile += gl.num_programs(0)
        expert, begin, count = _group_of(
            tile, expert, begin, count, groups, num_groups, tiles_n, BLOCK_M
        )


@gluon.jit
def specialised_gemm_kernel(
    x, x_scales, w, w_scales, out, groups, signals,
    num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k,
    MASKED: gl.constexpr, SCALED: gl.constexpr, SIGNAL: gl.constexpr, BY_ROWS: gl.constexpr,
    M_PARTS: gl.constexpr, N_PARTS: gl.constexpr, STAGES: gl.constexpr, LOADS: gl.constexpr,
):  # fmt: skip
    """See `executor.kernels.gemm`. A tile has M_PARTS (2 or 4) times 64 rows and N_PARTS (1 or 2)
    times 128 columns, at most four such parts. `num_groups` is 1 in the contiguous layout. Without
    `LOADS` all steps multiply the first operands: wrong results, and the time that loads do not take."""
    X_SHAPE: gl.constexpr = [STAGES * M_PARTS, x.block_type.shape[0], x.block_type.shape[1]]
    W_SHAPE: gl.constexpr = [STAGES * N_PARTS, w.block_type.shape[0], w.block_type.shape[1]]
    x_stages = gl.allocate_shared_memory(x.dtype, X_SHAPE, x.layout)
    w_stages = gl.allocate_shared_memory(w.dtype, W_SHAPE, w.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    gl.warp_specialize(
        [
            (_multiply_tiles, (
                x_stages, w_stages, full, empty, x_scales, w_scales, out, groups, signals,
                num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k,
                0, MASKED, SCALED, SIGNAL, BY_ROWS, M_PARTS, N_PARTS,
            )),
            (_multiply_tiles, (
                x_stages, w_stages, full, empty, x_scales, w_scales, out, groups, signals,
                num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k,
                1, MASKED, SCALED, SIGNAL, BY_ROWS, M_PARTS, N_PARTS,
            )),
            (_load_tiles, (
                x, w, x_stages, w_stages, full, empty, groups, num_groups, rows, n, k,
                MASKED, BY_ROWS, M_PARTS, N_PARTS, LOADS,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
