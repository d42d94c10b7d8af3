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
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from executor.kernels.signals import raise_word
from executor.kernels.specialised_tiles import COLUMNS, first_tile, next_tile, skip_padding

ROWS = gl.constexpr(64)


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
    at = first_tile(groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
    at = skip_padding(at, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
    while at[1] < num_groups:
        for step in range(k // BLOCK_K):
            stage = turn % STAGES
            mbarrier.wait(empty.index(stage), (turn // STAGES & 1) ^ 1)
            if LOADS or turn < STAGES:
                _load_step(
                    x, w, x_stages, w_stages, full.index(stage), at[5], at[7] * n + at[6],
                    step * BLOCK_K, stage,
                )  # fmt: skip
            else:
                mbarrier.arrive(full.index(stage), count=1)
            turn += 1
        at = next_tile(at, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
        at = skip_padding(at, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)


@gluon.jit
def _after(stage, phase, STAGES: gl.constexpr):
    """The stage after this one, and its phase."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def _before(stage, STAGES: gl.constexpr):
    """The stage before this one."""
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def _start(stages, stage, phase, into, add, HALF: gl.constexpr):
    """A step's product under way, in the registers of `into`, added to them or not.

    A constant False for `add` would let the compiler take other registers, and move them afterwards.
    """
    x_stages, w_stages, full = stages[0], stages[1], stages[2]
    mbarrier.wait(full.index(stage), phase)
    return warpgroup_mma(
        x_stages.index(2 * stage + HALF), w_stages.index(stage).permute((1, 0)), into,
        use_acc=add, is_async=True,
    )  # fmt: skip


@gluon.jit
def _finish(stages, stage, product, scale, total, PENDING: gl.constexpr):
    """(registers of a product, free again; the total with it) while `PENDING` later ones go on.

    The sum is volatile, so that it is not moved behind what is started in those registers next.
    """
    part = warpgroup_mma_wait(PENDING, deps=(product,))
    mbarrier.arrive(stages[3].index(stage), count=1)
    total = gl.inline_asm_elementwise(
        "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,0", [part, scale[:, None], total],
        dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip
    return warpgroup_mma_init(part), total


@gluon.jit
def _first_scales(
    at, x_scales, w_scales, x_scale_group, x_scale_row, num_groups, tiles_n, steps,
    HALF: gl.constexpr, MASKED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Where a half tile's scales begin: [64] of rows and one of the weights."""
    _, expert, _, count, row, _, column, owner = at
    here = expert < num_groups
    row += HALF * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    x_at = gl.where(row < count, row, 0) * x_scale_row
    if MASKED:
        x_at += gl.where(here, expert, 0) * x_scale_group
    w_at = gl.where(here, owner * tiles_n + column // COLUMNS, 0) * steps
    return x_scales + x_at, w_scales + w_at


@gluon.jit
def _scales(of_rows, of_block, x_scale_k, step, steps):
    """Those of a step, or of the last one."""
    step = gl.minimum(step, steps - 1)
    return gl.load(of_rows + step * x_scale_k), gl.load(of_block + step)


@gluon.jit
def _scaled_products(
    stages, stage, phase, one, two, never, scale_0, scale_1, of_rows, of_block, x_scale_k, steps,
    HALF: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A warpgroup's half of a tile [64, 128] over all of k.

    Every 128 of k have a scale for each row and one for the weights' block. A product is scaled while
    the next one runs, and the scales of the next two are on their way.
    """
    STAGES: gl.constexpr = stages[2].shape[0]
    one = _start(stages, stage, phase, one, never, HALF)
    total = gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT)
    for pair in range((steps - 1) // 2):
        x_0, w_0 = _scales(of_rows, of_block, x_scale_k, 2 * pair + 2, steps)
        x_1, w_1 = _scales(of_rows, of_block, x_scale_k, 2 * pair + 3, steps)
        after, turned = _after(stage, phase, STAGES)
        two = _start(stages, after, turned, two, never, HALF)
        one, total = _finish(stages, stage, one, scale_0, total, 1)
        stage, phase = _after(after, turned, STAGES)
        one = _start(stages, stage, phase, one, never, HALF)
        two, total = _finish(stages, after, two, scale_1, total, 1)
        scale_0, scale_1 = x_0 * w_0, x_1 * w_1
    if steps % 2 == 0:
        after, turned = _after(stage, phase, STAGES)
        two = _start(stages, after, turned, two, never, HALF)
        one, total = _finish(stages, stage, one, scale_0, total, 1)
        two, total = _finish(stages, after, two, scale_1, total, 0)
        stage, phase = after, turned
    else:
        one, total = _finish(stages, stage, one, scale_0, total, 0)
    stage, phase = _after(stage, phase, STAGES)
    return total, stage, phase, one, two


@gluon.jit
def _products(stages, stage, phase, steps, HALF: gl.constexpr, LAYOUT: gl.constexpr):
    """The same of operands without scales, which the tensor cores add up."""
    STAGES: gl.constexpr = stages[2].shape[0]
    empty = stages[3]
    total = warpgroup_mma_init(gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT))
    for step in range(steps):
        total = _start(stages, stage, phase, total, True, HALF)
        total = warpgroup_mma_init(warpgroup_mma_wait(1, deps=(total,)))
        mbarrier.arrive(empty.index(_before(stage, STAGES)), count=1, pred=step > 0)
        stage, phase = _after(stage, phase, STAGES)
    total = warpgroup_mma_wait(0, deps=(total,))
    mbarrier.arrive(empty.index(_before(stage, STAGES)), count=1)
    return total, stage, phase


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
def _store_tile(
    out, total, at, signals, rows, n, HALF: gl.constexpr, SIGNAL: gl.constexpr
):  # fmt: skip
    """Rows of half a tile that are valid, and their word."""
    _, expert, _, count, row, x_row, column, _ = at
    row += HALF * ROWS
    _store_half(out, total, x_row + HALF * ROWS, row, count, column, n)
    if SIGNAL > 0:
        _raise_block(signals, expert, row, count, rows, SIGNAL)


@gluon.jit
def _multiply_tiles(
    stages, sizes,
    HALF: gl.constexpr, MASKED: gl.constexpr, SIGNAL: gl.constexpr, BY_ROWS: gl.constexpr,
):  # fmt: skip
    """One of the two multiplying warpgroups: the upper (`HALF` 0) or lower 64 rows of every tile."""
    out, groups, signals, num_groups, rows, n, k = sizes
    BLOCK_K: gl.constexpr = stages[0].shape[2]
    DEPTH: gl.constexpr = 256 // stages[0].dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, DEPTH])
    tiles_n = gl.cdiv(n, COLUMNS)
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    at = first_tile(groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
    at = skip_padding(at, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
    while at[1] < num_groups:
        total, stage, phase = _products(stages, stage, phase, k // BLOCK_K, HALF, LAYOUT)
        _store_tile(out, total, at, signals, rows, n, HALF, SIGNAL)
        after = next_tile(at, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
        at = skip_padding(after, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)


@gluon.jit
def _multiply_scaled_tiles(
    stages, scales, sizes, strides,
    HALF: gl.constexpr, MASKED: gl.constexpr, SIGNAL: gl.constexpr, BY_ROWS: gl.constexpr,
):  # fmt: skip
    """The same with scales. The next tile's first ones are on their way while this tile is stored."""
    x_scales, w_scales = scales
    out, groups, signals, num_groups, rows, n, k = sizes
    x_scale_group, x_scale_row, x_scale_k = strides
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 32])
    tiles_n, steps, never = gl.cdiv(n, COLUMNS), k // 128, k < 0
    stage, phase = gl.to_tensor(0), gl.to_tensor(0)
    one = warpgroup_mma_init(gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT))
    two = warpgroup_mma_init(gl.zeros([ROWS, COLUMNS], gl.float32, LAYOUT))
    at = first_tile(groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
    at = skip_padding(at, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
    of_rows, of_block = _first_scales(
        at, x_scales, w_scales, x_scale_group, x_scale_row, num_groups, tiles_n, steps, HALF,
        MASKED, LAYOUT,
    )  # fmt: skip
    x_0, w_0 = _scales(of_rows, of_block, x_scale_k, 0, steps)
    x_1, w_1 = _scales(of_rows, of_block, x_scale_k, 1, steps)
    scale_0, scale_1 = x_0 * w_0, x_1 * w_1
    while at[1] < num_groups:
        after = next_tile(at, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
        total, stage, phase, one, two = _scaled_products(
            stages, stage, phase, one, two, never, scale_0, scale_1, of_rows, of_block, x_scale_k,
            steps, HALF, LAYOUT,
        )  # fmt: skip
        after = skip_padding(after, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS)
        of_rows, of_block = _first_scales(
            after, x_scales, w_scales, x_scale_group, x_scale_row, num_groups, tiles_n, steps,
            HALF, MASKED, LAYOUT,
        )  # fmt: skip
        x_0, w_0 = _scales(of_rows, of_block, x_scale_k, 0, steps)
        x_1, w_1 = _scales(of_rows, of_block, x_scale_k, 1, steps)
        _store_tile(out, total, at, signals, rows, n, HALF, SIGNAL)
        scale_0, scale_1 = x_0 * w_0, x_1 * w_1
        at = after


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
    stages = (x_stages, w_stages, full, empty)
    scales = (x_scales, w_scales)
    sizes = (out, groups, signals, num_groups, rows, n, k)
    strides = (x_scale_group, x_scale_row, x_scale_k)
    loads = (
        x, w, x_stages, w_stages, full, empty, groups, num_groups, rows, n, k, MASKED, BY_ROWS,
        LOADS,
    )  # fmt: skip
    if SCALED:
        gl.warp_specialize(
            [
                (_multiply_scaled_tiles, (
                    stages, scales, sizes, strides, 0, MASKED, SIGNAL, BY_ROWS,
                )),
                (_multiply_scaled_tiles, (
                    stages, scales, sizes, strides, 1, MASKED, SIGNAL, BY_ROWS,
                )),
                (_load_tiles, loads),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply_tiles, (stages, sizes, 0, MASKED, SIGNAL, BY_ROWS)),
                (_multiply_tiles, (stages, sizes, 1, MASKED, SIGNAL, BY_ROWS)),
                (_load_tiles, loads),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
