"""Rounding to the number formats of expert weights, in float64: bf16, block FP8 and MXFP4."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
BF16_EPS = 2.0**-8


def to_bf16(x: Matrix) -> Matrix:
    """Round to 8 significant bits, ties to even."""
    return _to_bits(x, 8)


def _to_bits(x: Matrix, bits: int) -> Matrix:
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits))


def _to_e4m3(x: Matrix) -> Matrix:
    """Normal numbers of 4 significant bits up to 448, subnormal ones in steps of 2 ** -9."""
    normal = np.clip(_to_bits(x, 4), -448.0, 448.0)
    return np.where(np.abs(x) < 2.0**-6, np.rint(x * 2.0**9) / 2.0**9, normal)


_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _to_e2m1(x: Matrix) -> Matrix:
    nearest = np.abs(np.abs(x)[..., None] - _E2M1).argmin(axis=-1)
    return np.asarray(np.sign(x) * _E2M1[nearest])


def to_fp8_block(x: Matrix, rows: int = 128, columns: int = 128) -> Matrix:
    """e4m3 with one float scale per block."""
    return _blockwise(x, rows, columns, lambda block: _scaled(block, 448.0, _to_e4m3))


def to_mxfp4(x: Matrix) -> Matrix:
    """e2m1 with one power of two per 32 numbers of a row."""

    def convert(block: Matrix) -> Matrix:
        top = np.abs(block).max()
        scale = 2.0 ** np.floor(np.log2(top / 4.0)) if top else 1.0
        return np.asarray(_to_e2m1(np.clip(block / scale, -6, 6)) * scale)

    return _blockwise(x, 1, 32, convert)


def _scaled(block: Matrix, limit: float, convert: Callable[[Matrix], Matrix]) -> Matrix:
    scale = np.abs(block).max() / limit or 1.0
    return convert(block / scale) * scale


def _blockwise(x: Matrix, rows: int, columns: int, convert: Callable[[Matrix], Matrix]) -> Matrix:
    out = np.empty_like(x)
    for i in range(0, x.shape[0], rows):
        for j in range(0, x.shape[1], columns):
            part = np.s_[i : i + rows, j : j + columns]
            out[part] = convert(x[part])
    return out
