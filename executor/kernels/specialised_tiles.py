# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Which tiles of 128 x 128 a program of the specialised grouped GEMM works on, and in which order.

Program p of P takes every tile whose number is p modulo P; numbers run on from group to group.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

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
def _place_of(
    local, expert, count, groups, rows, tiles_n,
    MASKED: gl.constexpr, BY_ROWS: gl.constexpr,
):  # fmt: skip
    """(row of the tile in its group, row in x, column, whose weights) of a group's tile. Behind the
    last group the owner is 0."""
    if BY_ROWS:
        block, column_block = local // tiles_n, local % tiles_n
    else:
        blocks = gl.maximum(gl.cdiv(count, BLOCK_M), 1)
        block, column_block = local % blocks, local // blocks
    row = block * BLOCK_M
    x_row, owner = row, expert
    if MASKED:
        x_row = expert * rows + row
    else:
        owner = gl.load(groups + row, mask=row < rows, other=0)
    return row, x_row, column_block * COLUMNS, owner


@gluon.jit
def _tile_at(
    tile, expert, begin, count, groups, num_groups, rows, tiles_n,
    MASKED: gl.constexpr, BY_ROWS: gl.constexpr,
):  # fmt: skip
    expert, begin, count = _group_of(tile, expert, begin, count, groups, num_groups, tiles_n)
    row, x_row, column, owner = _place_of(
        tile - begin, expert, count, groups, rows, tiles_n, MASKED, BY_ROWS
    )
    return tile, expert, begin, count, row, x_row, column, owner


@gluon.jit
def first_tile(
    groups, num_groups, rows, tiles_n, MASKED: gl.constexpr, BY_ROWS: gl.constexpr
):  # fmt: skip
    """This program's first tile: (its number; its group, the group's first tile and rows; its row in
    the group, row in x, first column; whose weights). The contiguous layout is one group of all rows,
    and the owner of its padding is negative. Behind the last tile the group is `num_groups`."""
    count = rows
    if MASKED:
        count = gl.load(groups)
    none = gl.to_tensor(0)
    return _tile_at(
        gl.program_id(0), none, none, count, groups, num_groups, rows, tiles_n, MASKED, BY_ROWS
    )


@gluon.jit
def next_tile(
    at, groups, num_groups, rows, tiles_n, MASKED: gl.constexpr, BY_ROWS: gl.constexpr
):  # fmt: skip
    """This program's tile after that one."""
    return _tile_at(
        at[0] + gl.num_programs(0), at[1], at[2], at[3], groups, num_groups, rows, tiles_n,
        MASKED, BY_ROWS,
    )  # fmt: skip


@gluon.jit
def skip_padding(
    at, groups, num_groups, rows, tiles_n, MASKED: gl.constexpr, BY_ROWS: gl.constexpr
):  # fmt: skip
    """The tile, or this program's first one behind it that has an owner."""
    tile, expert, begin, count, row, x_row, column, owner = at
    while (owner < 0) & (expert < num_groups):
        tile, expert, begin, count, row, x_row, column, owner = _tile_at(
            tile + gl.num_programs(0), expert, begin, count, groups, num_groups, rows, tiles_n,
            MASKED, BY_ROWS,
        )  # fmt: skip
    return tile, expert, begin, count, row, x_row, column, owner
