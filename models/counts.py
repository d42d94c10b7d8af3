"""Bytes and operations of the kernels that every layer is made of.

All byte counts are HBM traffic with each operand read once. Linear layers follow the weights' format:
`fp8_block` has 1x128 activation scales and 128x128 weight scales in float32, `nvfp4` one float8 scale
per 16 values.
"""

from __future__ import annotations

from collections.abc import Iterable

from models.work import Work, work

BF16 = 2
FP32 = 4
SCALE_BLOCK = 128
BLOCK_M = 128

# What the tensor cores compute in, by the format of the weights.
FLOP_DTYPE = {"bf16": "bf16", "fp8_block": "fp8", "nvfp4": "fp4"}


def ceil_to(value: int, block: int) -> int:
    """`value` rounded up to a multiple of `block`."""
    return -(-value // block) * block


def activation_bytes(rows: int, columns: int, weights: str) -> int:
    """Bytes of a linear layer's input [rows, columns] in the format that `weights` asks for."""
    if weights == "fp8_block":
        return rows * (columns + FP32 * -(-columns // SCALE_BLOCK))
    if weights == "nvfp4":
        return rows * (columns // 2 + -(-columns // 16))
    return rows * columns * BF16


def weight_bytes(n: int, k: int, weights: str) -> int:
    """Bytes of a weight matrix [n, k] with its scales."""
    if weights == "fp8_block":
        return n * k + FP32 * -(-n // SCALE_BLOCK) * -(-k // SCALE_BLOCK)
    if weights == "nvfp4":
        return n * (k // 2 + -(-k // 16))
    return n * k * BF16


def gemm(m: int, n: int, k: int, weights: str, kind: str = "gemm") -> Work:
    """[m, k] times [k, n] with a bf16 result: 2 m n k operations."""
    return work(
        kind,
        flops={FLOP_DTYPE[weights]: 2 * m * n * k},
        read_bytes=activation_bytes(m, k, weights) + weight_bytes(n, k, weights),
        write_bytes=m * n * BF16,
        m=m,
        n=n,
        k=k,
    )


def quantise(rows: int, columns: int, weights: str) -> Work:
    """A bf16 matrix to the input format of the next linear layer."""
    return elementwise(
        "quantise", rows, columns, rows * columns * BF16, activation_bytes(rows, columns, weights)
    )


def elementwise(kind: str, rows: int, columns: int, read_bytes: int, write_bytes: int) -> Work:
    """A kernel whose time is its traffic."""
    return work(kind, read_bytes=read_bytes, write_bytes=write_bytes, rows=rows, columns=columns)


def bmm(heads: int, m: int, n: int, k: int) -> Work:
    """`heads` products [m, k] times [k, n] in bf16, whatever the weights' format: SGLang dequantises
    the absorbed weights of fp8-block checkpoints once, at load."""
    return work(
        "bmm",
        flops={"bf16": 2 * heads * m * n * k},
        read_bytes=heads * (m * k + n * k) * BF16,
        write_bytes=heads * m * n * BF16,
        heads=heads,
        m=m,
        n=n,
        k=k,
    )


def padded_rows(rows: Iterable[int]) -> int:
    """Rows of a contiguous grouped GEMM whose experts have `rows`: each rounded up to BLOCK_M."""
    return sum(ceil_to(count, BLOCK_M) for count in rows)


def grouped_gemm(kind: str, rows: tuple[int, ...], n: int, k: int, weights: str, part: int) -> Work:
    """A grouped GEMM over the local experts; `rows` are the tokens of each.

    Contiguous: every active expert's rows are padded to BLOCK_M and the padding is computed. Masked:
    the real rows are computed, in tiles of BLOCK_M (dim `padded`). Weights of inactive experts are
    not read. `part` is 1 for gate and up, 2 for down.
    """
    active = sum(1 for count in rows if count)
    padded = padded_rows(rows)
    computed = padded if kind == "grouped_gemm_contiguous" else sum(rows)
    return work(
        kind,
        flops={FLOP_DTYPE[weights]: 2 * computed * n * k},
        read_bytes=activation_bytes(computed, k, weights) + active * weight_bytes(n, k, weights),
        write_bytes=computed * n * BF16,
        experts=len(rows),
        active=active,
        rows=sum(rows),
        padded=padded,
        n=n,
        k=k,
        part=part,
    )
