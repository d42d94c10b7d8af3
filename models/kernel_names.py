"""What the name of a compiled kernel says of its tiles."""

from __future__ import annotations

import re

from models.work import Work

Tile = tuple[int, int]
NO_TILE: Tile = (0, 0)
# Depth of a tile of DeepGEMM's FP8 kernels, which follows rows and columns in its template arguments.
FP8_DEPTH = 128
WARP_GROUP = 128
_NUMBER = re.compile(r"(?<![\w.])\d+(?=u?\b)")
_SIZES = re.compile(r"_(\d+)x(\d+)x(\d+)_")


def tile_of(work: Work, name: str, threads: int) -> Tile:
    """Rows and columns of the result that a CTA of so many threads computes at a time, from the kernel's
    name: DeepGEMM's template arguments are the GEMM's rows, n and k (0 where it is compiled for any), its
    groups, and the tile; cuDNN's attention has the queries and keys of a warp group among words, and one
    group that only loads. (0, 0) for other names."""
    sizes = dict(work.dims)
    if {"n", "k"} <= sizes.keys() and ("deep_gemm" in name or "fp8_gemm" in name):
        return _deep_gemm(name, sizes["n"], sizes["k"])
    if work.kind.startswith("attention") and (found := _SIZES.search(name)):
        return int(found[1]) * max(1, threads // WARP_GROUP - 1), int(found[2])
    return NO_TILE


def _deep_gemm(name: str, n: int, k: int) -> Tile:
    numbers = [int(text) for text in _NUMBER.findall(name.partition("<")[2])]
    for at in range(len(numbers) - 5):
        if numbers[at : at + 2] == [n, k] and numbers[at + 5] == FP8_DEPTH:
            return numbers[at + 3], numbers[at + 4]
    return NO_TILE
