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
BLOCK_M = gl.constexpr(128)
COLUMNS = gl.constexpr(128)


@gluon.jit
def _group_of(tile, expert, begin, count, groups, num_groups, tiles_n):
    """(group, its first tile, its rows) of a tile that is not before the group given."""
    end = begin + gl.cdiv(count, BLOCK_M) * tiles_n
    while (expert < num_groups) & (tile >= end):
        begin = end
        expert += 1
        count = gl.load(groups + expert, mask=expert < num_groups, other=0)
        end = begin + gl.cdiv(count, BLOCK_M) * tiles_n
    return expert, begin, count


@gluon.jit
def _first_group(groups, num_groups, rows, tiles_n, MASKED: gl.constexpr):
    """This program's first tile and its group; the contiguous layout is one group of all rows."""
    count = rows
    if MASKED:
        count = gl.load(groups)
    tile, none = gl.program_id(0), gl.to_tensor(0)
    expert, begin, count = _group_of(tile, none, none, count, groups, num_groups, tiles_n)
    return tile, expert, begin, count


@gluon.jit
def _place_of(
    local, expert, count, groups, rows, tiles_n,
    MASKED: gl.constexpr, BY_ROWS: gl.constexpr,
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
    return row, x_row, column_block * COLUMNS, owner


@gluon.jit
def _load_step(x, w, x_stages, w_stages, bar, x_row, w_row, at, stage):
    """Ask for a step's rows and columns."""
    mbarrier.expect(bar, 2 * x.block_type.nbytes + w.block_type.nbytes)
    tma.async_copy_global_to_shared(x, [x_row, at], bar, x_stages.index(2 * stage))
    tma.async_copy_global_to_shared(x, [x_row + ROWS, at], bar, x_stages.index(2 * stage + 1))
    tma.async_copy_global_to_shared(w, [w_row, at], bar, w_stages.index(stage))


@gluon.jit
def _load_tiles(
    x, w, x_stages, w_stages, full, empty, groups, num_groups, rows, n, k,
    MASKED: gl.constexpr, BY_ROWS: gl.constexpr, LOADS: gl.constexpr,
):  # fmt: skip
    """The loading warp: every step of every tile into the next free stage."""
    STAGES: gl.constexpr = full.shape[0]
    BLOCK_K: gl.constexpr = x_stages.shape[2]
    tiles_n, turn = gl.cdiv(n, COLUMNS), 0
    tile, expert, begin, count = _first_group(groups, num_groups, rows, tiles_n, MASKED)
    while expert < num_groups:
        _, x_row, column, owner = _place_of(
            tile - begin, expert, count, groups, rows, tiles_n, MASKED, BY_ROWS
        )
        if owner >= 0:
            for step in range(k // BLOCK_K):
                stage = turn % STAGES
                mbarrier.wait(empty.index(stage), (turn // STAGES & 1) ^ 1)
                if LOADS or turn < STAGES:
                    _load_step(
                        x, w, x_stages, w_stages, full.index(stage), x_row, owner * n + column,
                        step * BLOCK_K, stage,
                    )  # fmt: skip
                else:
                    mbarrier.arrive(full.index(stage), count=1)
                turn += 1
        tile += gl.num_programs(0)
        expert, begin, count = _group_of(tile, expert, begin, count, groups, num_groups, tiles_n)


@gluon.jit
def _scaled_products(
    x_stages, w_stages, full, empty, turn, x_scales, x_at, x_stride, w_scales, w_at, k,
    HALF: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A warpgroup's half of a tile [64, 128] over all of k, and the turn after it.

    Every 128 of k have a scale for each row and one for the weights' block; those of the next step
    are on their way while this one multiplies.
    """
    STAGES: gl.constexpr = full.shape[0]
    steps = k // 128
    total = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    scale = gl.load(x_scales + x_at) * gl.load(w_scales + w_at)
    for step in range(steps):
        stage = turn % STAGES
        after = gl.minimum(step + 1, steps - 1)
        by_row = gl.load(x_scales + x_at + after * x_stride)
        by_block = gl.load(w_scales + w_at + after)
        b = w_stages.index(stage).permute((1, 0))
        nothing = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
        mbarrier.wait(full.index(stage), turn // STAGES & 1)
        part = warpgroup_mma(
            x_stages.index(2 * stage + HALF), b, nothing, use_acc=False, is_async=True
        )
        part = warpgroup_mma_wait(0, deps=(part,))
        mbarrier.arrive(empty.index(stage), count=1)
        total += part * scale[:, None]
        scale = by_row * by_block
        turn += 1
    return total, turn


@gluon.jit
def _products(x_stages, w_stages, full, empty, turn, k, HALF: gl.constexpr, LAYOUT: gl.constexpr):
    """The same of operands without scales, which the tensor cores add up."""
    STAGES: gl.constexpr = full.shape[0]
    BLOCK_K: gl.constexpr = x_stages.shape[2]
    total = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    for _step in range(k // BLOCK_K):
        stage = turn % STAGES
        b = w_stages.index(stage).permute((1, 0))
        mbarrier.wait(full.index(stage), turn // STAGES & 1)
        total = warpgroup_mma(x_stages.index(2 * stage + HALF), b, total, is_async=True)
        total = warpgroup_mma_wait(0, deps=(total,))
        mbarrier.arrive(empty.index(stage), count=1)
        turn += 1
    return total, turn


@gluon.jit
def _store_half(out, value, x_row, row, count, column, n):
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
    num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k, HALF: gl.constexpr,
    MASKED: gl.constexpr, SCALED: gl.constexpr, SIGNAL: gl.constexpr, BY_ROWS: gl.constexpr,
):  # fmt: skip
    """One of the two multiplying warpgroups: the upper (`HALF` 0) or lower 64 rows of every tile."""
    DEPTH: gl.constexpr = 256 // x_stages.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, DEPTH])
    tiles_n, turn = gl.cdiv(n, COLUMNS), 0
    tile, expert, begin, count = _first_group(groups, num_groups, rows, tiles_n, MASKED)
    while expert < num_groups:
        row, x_row, column, owner = _place_of(
            tile - begin, expert, count, groups, rows, tiles_n, MASKED, BY_ROWS
        )
        if owner >= 0:
            row += HALF * ROWS
            if SCALED:
                at = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
                group = expert * x_scale_group if MASKED else 0
                x_at = group + gl.where(at < count, at, 0) * x_scale_row
                w_at = (owner * tiles_n + column // COLUMNS) * (k // 128)
                total, turn = _scaled_products(
                    x_stages, w_stages, full, empty, turn, x_scales, x_at, x_scale_k, w_scales,
                    w_at, k, HALF, LAYOUT,
                )  # fmt: skip
            else:
                total, turn = _products(x_stages, w_stages, full, empty, turn, k, HALF, LAYOUT)
            _store_half(out, total, x_row + HALF * ROWS, row, count, column, n)
            if SIGNAL > 0:
                _raise_block(signals, expert, row, count, rows, SIGNAL)
        tile += gl.num_programs(0)
        expert, begin, count = _group_of(tile, expert, begin, count, groups, num_groups, tiles_n)


@gluon.jit
def specialised_gemm_kernel(
    x, x_scales, w, w_scales, out, groups, signals,
    num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k,
    MASKED: gl.constexpr, SCALED: gl.constexpr, SIGNAL: gl.constexpr, BY_ROWS: gl.constexpr,
    STAGES: gl.constexpr, LOADS: gl.constexpr,
):  # fmt: skip
    """See `executor.kernels.gemm`; tiles of 128 x 128. `num_groups` is 1 in the contiguous layout.
    Without `LOADS` all steps multiply the first operands: wrong results, and the time that loads do
    not take."""
    X_SHAPE: gl.constexpr = [2 * STAGES, x.block_type.shape[0], x.block_type.shape[1]]
    W_SHAPE: gl.constexpr = [STAGES, w.block_type.shape[0], w.block_type.shape[1]]
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
                0, MASKED, SCALED, SIGNAL, BY_ROWS,
            )),
            (_multiply_tiles, (
                x_stages, w_stages, full, empty, x_scales, w_scales, out, groups, signals,
                num_groups, rows, n, k, x_scale_group, x_scale_row, x_scale_k,
                1, MASKED, SCALED, SIGNAL, BY_ROWS,
            )),
            (_load_tiles, (
                x, w, x_stages, w_stages, full, empty, groups, num_groups, rows, n, k,
                MASKED, BY_ROWS, LOADS,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
