# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""What the interpreter on the CPU does differently from a GPU.

Triton's interpreter keeps bf16 as integers and multiplies them as such, and has no inline assembly.
"""

from typing import Any

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)


@triton.jit
def _device_dot(a, b, total):
    return tl.dot(a, b, total)


@triton.jit
def _interpreted_dot(a, b, total):
    return tl.dot(a.to(tl.float32), b.to(tl.float32), total)


# dot(a, b, total): the bf16 product added to a float32 total.
dot: Any = _interpreted_dot if INTERPRETED else _device_dot
