"""Compile every kernel for sm_90, which needs no GPU; prints one line for each.

Run as `compile_all.py` without the interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout

from executor.kernels import (
    gate,
    grouped_gemm,
    low_latency_kernels,
    mla_decode,
    normal_kernels,
    specialised_gemm,
    specialised_mla,
)
from executor.kernels.gemm import SPECIALISED_REGISTERS

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {
    "x": "*bf16", "scales": "*i32", "ids": "*i64", "weights": "*fp32", "places": "*i32",
    "sizes": "*i32", "plan": "*i32", "peers": "*i64", "ticket": "*i32", "error": "*i32",
    "counts": "*i32", "lengths": "*i32", "words": "*i32", "y": "*i32", "out": "*bf16", "groups": "*i32",
    "signals": "*i32", "x_scales": "*fp32", "w_scales": "*fp32", "deadline_ns": "i64",
    "q_latent": "*bf16", "q_rope": "*bf16", "cache": "*bf16", "parts": "*fp32", "sums": "*fp32",
    "scale": "fp32",
}  # fmt: skip
ENDINGS = ("_at", "hidden", "_words", "capacity", "_row", "_head", "_token", "longest")
SIXTEENS = ("rows", "n", "k")
RANK = {"rank": 1, "ranks": 2}
SHARED_BYTES = 227 * 1024  # of a CTA on Hopper, CUDA programming guide


def compiled(kernel: Any, constants: dict[str, Any], warps: int, **types: str) -> str:
    """Compile with every integer argument as i32; what came out."""
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = types.get(name) or POINTERS.get(name, "i32")
        whole = name.endswith(ENDINGS) or name in SIXTEENS
        if signature[name].startswith("*") or whole:
            attributes[(index,)] = [["tt.divisibility", 16]]
    options = {"num_warps": warps, "num_stages": 2}
    if kernel.is_gluon():
        options["maxnreg"] = SPECIALISED_REGISTERS
    kind = GluonASTSource if kernel.is_gluon() else ASTSource
    source = kind(kernel, signature, constexprs=constants, attrs=attributes)
    result = triton.compile(source, target=TARGET, options=options)
    ptx = result.asm["ptx"]
    assert ".target sm_90" in ptx
    assert result.metadata.shared <= SHARED_BYTES, (kernel.__name__, result.metadata.shared)
    if kernel.is_gluon():
        assert_in_flight(kernel.__name__, ptx)
    return (
        f"{kernel.__name__}: {result.metadata.shared} bytes shared, {ptx.count('wgmma.mma')} wgmma"
    )


def assert_in_flight(name: str, ptx: str) -> None:
    """Fail if the assembler waits for every product at once, of which it only says so, or spills."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(source)]
        done = subprocess.run(
            [*command, "-o", str(source.with_suffix(".cubin"))],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    said = done.stderr
    assert "serialized" not in said, (name, said)
    assert " 0 bytes spill stores" in said, (name, said)


def gemm(fp8: bool, masked: bool, tile: tuple[int, int], stages: int) -> str:
    """A grouped GEMM with signals if masked."""
    (m, n), k, dtype = tile, 128 if fp8 else 64, "fp8e4nv" if fp8 else "bf16"
    constants = {
        "MASKED": masked, "FP8": fp8, "SIGNAL": int(masked), "BY_ROWS": masked, "BLOCK_M": m,
        "BLOCK_N": n, "BLOCK_K": k, "STAGES": stages, "GROUPS": 32,
    }  # fmt: skip
    types = {"x": f"tensordesc<{dtype}[{m}, {k}]>", "w": f"tensordesc<{dtype}[{n}, {k}]>"}
    if not fp8:
        types |= {"x_scales": "*bf16", "w_scales": "*bf16"}
    return compiled(grouped_gemm.grouped_gemm_kernel, constants, 8 if m == 128 else 4, **types)


def tiles(dtype: str, rows: int, columns: int) -> str:
    """A descriptor of blocks as `executor.kernels.gemm.swizzled` makes them."""
    layout = NVMMASharedLayout(128, 8 if dtype == "fp8e4nv" else 16, rank=2)
    return f"tensordesc<{dtype}[{rows}, {columns}],{layout!r}>"


def specialised(fp8: bool, masked: bool, stages: int) -> str:
    """A specialised grouped GEMM with signals if masked."""
    k, dtype = 128 if fp8 else 64, "fp8e4nv" if fp8 else "bf16"
    constants = {
        "MASKED": masked, "SCALED": fp8, "SIGNAL": int(masked), "BY_ROWS": masked,
        "STAGES": stages, "LOADS": True,
    }  # fmt: skip
    types = {"x": tiles(dtype, 64, k), "w": tiles(dtype, 128, k)}
    if not fp8:
        types |= {"x_scales": "*bf16", "w_scales": "*bf16"}
    return compiled(specialised_gemm.specialised_gemm_kernel, constants, 4, **types)


def attention(split: bool) -> list[str]:
    """Both forms of MLA decode."""
    own = {"LATENT": 512, "ROPE": 64, "HEADS": 64, "KEYS": 64, "SPLIT": split}
    blocks = {"latents": "tensordesc<bf16[1, 64, 512]>", "ropes": "tensordesc<bf16[1, 64, 64]>"}
    layouts = dict.fromkeys(("Q_LATENT", "Q_ROPE", "CHANCES"), NVMMASharedLayout(128, 16, rank=2))
    swizzled = {"latents": tiles("bf16", 64, 512), "ropes": tiles("bf16", 64, 64)}
    return [
        compiled(mla_decode._mla_kernel, own, 8, **blocks),
        compiled(specialised_mla.specialised_mla_kernel, layouts | {"SPLIT": split}, 8, **swizzled),
    ]


def everything() -> list[str]:
    """All kernels in the forms that are launched."""
    low, normal = low_latency_kernels, normal_kernels
    slots = {"SLOTS": 8, "SLOTS_2": 8}
    send = {"ROWS": 4, "BLOCK": 4096, "EXPERTS": 32} | RANK
    top_k = {"SIGMOID": True, "NORMALISE": True, "GROUPS": 8, "KEPT": 4, "TOP_K": 8, "BLOCK": 32}
    return [
        gemm(True, True, (128, 128), 4),
        gemm(True, False, (64, 128), 6),
        gemm(True, True, (64, 64), 8),
        gemm(False, False, (128, 128), 4),
        specialised(True, True, 6),
        specialised(True, False, 6),
        specialised(False, False, 6),
        *attention(False),
        *attention(True),
        compiled(low.dispatch_send_kernel, {"SLOTS": 8, "FP8": True, "GROUPS": 64}, 4),
        compiled(low.dispatch_send_kernel, {"SLOTS": 8, "FP8": False, "GROUPS": 64}, 4),
        compiled(low.dispatch_recv_kernel, {"EXPERTS": 32} | RANK, 4),
        compiled(low.combine_send_kernel, {"POLL": 0} | send, 16),
        compiled(low.combine_send_kernel, {"POLL": 1} | send, 16),
        compiled(low.combine_send_kernel, {"POLL": 2} | send, 16),
        compiled(low.combine_recv_kernel, {"SLOTS": 8, "BLOCK": 1024} | RANK, 4),
        compiled(normal.layout_kernel, slots | {"EXPERTS": 64, "BLOCK": 512}, 8),
        compiled(normal.notify_kernel, {"RANKS": 2, "EXPERTS": 64} | RANK, 4),
        compiled(
            normal.transfer_kernel,
            slots | {"ROWS": 8, "BLOCK": 2048, "SCALE_BLOCK": 64} | RANK,
            16,
            x="*i32",
        ),
        *(
            compiled(
                gate._top_k_kernel,
                top_k | {"SLOTS": 8, "GIVEN": given},
                4,
                logits="*bf16",
                given="*i64",
                factor="fp32",
            )
            for given in (0, 8)
        ),
        compiled(mla_decode._merge_kernel, {"LATENT": 512, "SPLITS": 4}, 4),
        compiled(
            normal.combine_kernel, {"RANKS": 2, "ROWS": 16, "BLOCK": 1024, "STAGES": 3} | RANK, 16
        ),
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(everything()) + "\n")
