# mypy: disable-error-code="no-untyped-def,untyped-decorator,name-defined,no-untyped-call"
"""A kernel that draws HBM bandwidth at a chosen rate from a chosen number of SMs."""

import triton
import triton.language as tl


@triton.jit
def stream_kernel(source, sink, base, blocks, pause, LOADS: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for index in range(first, blocks, tl.num_programs(0)):
        if LOADS:
            total += tl.load(source + (base + index) * BLOCK + at)
        for _ in range(pause):
            total = total * 0.999 + 1.0
    tl.store(sink + first * BLOCK + at, total)
