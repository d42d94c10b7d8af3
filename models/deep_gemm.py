"""The tile that DeepGEMM 2.5 takes for an FP8 GEMM with scales per 128 x 128 block on Hopper.

Facts from its heuristics for SM90: which tiles it considers, and the cycles of L1 and L2 by which it
ranks them. All 329 GEMMs of a calibration on H200s were launched with the tile that this rule gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf

from models.kernel_names import FP8_DEPTH, NO_TILE, Tile
from models.work import Work

SMEM_BYTES = 232448
MOST_STAGES = 16
WIDEST, STEP = 192, 16
MATH_ROWS = 64
# What its ranking grants in a cycle: L1 and L2 to each SM, and L2 to all (8 TB/s at 1.3 GHz).
L1_BYTES_PER_SM_CYCLE, L2_BYTES_PER_SM_CYCLE = 128, 64
L2_BYTES_PER_CYCLE = int(8e6 / 1.3e3)
OUT_BYTES = 2
CLUSTERS = ((1, 1), (1, 2), (2, 1))


@dataclass(frozen=True, slots=True)
class _Problem:
    """What the choice depends on: rows of one group, result columns, depth, groups, SMs, and whether
    groups are masked or lie one after the other."""

    rows: int
    columns: int
    depth: int
    groups: int
    sms: int
    kind: str

    def tiles(self, tile: Tile) -> int:
        """Tiles of all groups."""
        return _up(self.rows, tile[0]) * _up(self.columns, tile[1]) * self.groups


def deep_gemm_tile(work: Work, sms: int) -> Tile:
    """Rows and columns of the tile for `work` on at most `sms` SMs; (0, 0) for other than FP8 GEMMs, and
    for those without a row."""
    sizes: Mapping[str, int] = dict(work.dims)
    if not work.flops or work.flops[0][0] != "fp8" or "n" not in sizes:
        return NO_TILE
    rows, groups = sizes.get("padded", sizes.get("m", 0)), 1
    if work.kind == "grouped_gemm_masked":
        # It is told the rows of an expert that a uniform routing would bring.
        groups = max(1, sizes["experts"])
        rows = max(1, _up(sizes["rows"], groups))
    if not rows:
        return NO_TILE
    return _chosen(_Problem(rows, sizes["n"], sizes["k"], groups, sms, work.kind))


@lru_cache(maxsize=4096)
def _chosen(problem: _Problem) -> Tile:
    """The first of the tiles with the fewest cycles."""
    best, found = inf, NO_TILE
    for cluster, tile in _candidates(problem):
        cycles = _cycles(problem, tile, cluster)
        if cycles < best or found == NO_TILE:
            best, found = cycles, tile
    return found


def _candidates(problem: _Problem) -> Iterator[tuple[Tile, Tile]]:
    """Clusters (along rows, along columns) and tiles."""
    for cluster, rows in product(CLUSTERS, _row_counts(problem)):
        size = cluster[0] * cluster[1]
        if problem.sms % size:
            continue
        for columns in range(STEP, WIDEST + 1, STEP):
            masked = problem.kind == "grouped_gemm_masked"
            if masked and _up(problem.columns, columns) % size:
                continue
            if _fits_registers(rows, columns) and _fits_smem(problem.depth, rows, columns):
                yield cluster, (rows, columns)


def _row_counts(problem: _Problem) -> tuple[int, ...]:
    if problem.kind == "grouped_gemm_contiguous":
        return (128,)
    if problem.kind == "grouped_gemm_masked":
        return (64, 128)
    small = tuple(rows for rows in (16, 32) if problem.rows <= rows)
    return (64, 128, *small, 256)


def _fits_registers(rows: int, columns: int) -> bool:
    """Not both sides above 128; and the columns beyond one block of scales divide the rest evenly."""
    beyond = columns - FP8_DEPTH
    if beyond > 0 and columns % beyond and FP8_DEPTH % beyond:
        return False
    return rows <= 128 or columns <= 128


def _fits_smem(depth: int, rows: int, columns: int) -> bool:
    """Room for at least four stages of the pipeline, three of the largest tile, beside the result."""
    scales = _up(depth, FP8_DEPTH) * 4 * (1 if FP8_DEPTH % columns == 0 else 2)
    fixed = _aligned(rows * columns * OUT_BYTES, 1024) + MOST_STAGES * 16 + _aligned(scales, 8)
    stage = (rows + columns) * FP8_DEPTH + _aligned(rows * 4, 128)
    stages = min(MOST_STAGES, (SMEM_BYTES - fixed) // stage)
    return stages >= (3 if rows * columns >= 128 * WIDEST else 4)


def _cycles(problem: _Problem, tile: Tile, cluster: Tile) -> float:
    """Cycles of the slower cache over the share of the SMs that the rounds of tiles keep busy; a
    cluster that shares its loads is of no use in a single round."""
    (rows, columns), tiles = tile, problem.tiles(tile)
    rounds = _up(tiles, problem.sms)
    if cluster != (1, 1) and rounds <= 1:
        return inf
    depth, out = problem.depth, rows * columns * OUT_BYTES
    shared = depth * (rows // cluster[1] + columns // cluster[0])
    loaded = depth * (rows + columns) + depth * (max(MATH_ROWS, rows) + columns) + out
    l2 = (shared + out) * tiles // min(L2_BYTES_PER_SM_CYCLE * problem.sms, L2_BYTES_PER_CYCLE)
    l1 = (loaded + out) * tiles // (L1_BYTES_PER_SM_CYCLE * problem.sms)
    return int(max(l1, l2) * rounds * problem.sms / tiles)


def _up(count: int, by: int) -> int:
    return -(-count // by)


def _aligned(count: int, to: int) -> int:
    return _up(count, to) * to
