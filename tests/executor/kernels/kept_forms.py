# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The forms of a kernel that are launched, by Triton itself and by `Kept`, for a GPU that is not there.

Run without the interpreter; compiles for sm_90 and launches nothing. A line of JSON for each argument
list: what Triton launches, and what `Kept` launches the first and the second time.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from executor.kernels.kept import Kept


@triton.jit
def scaled(x, out, size, factor, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0) * factor
    if TWICE:
        value *= 2.0
    tl.store(out + at, value.to(out.dtype.element_ty), mask=at < size)


class Driver:
    """A device that notes the form of each kernel that it is told to launch, and with what."""

    def __init__(self) -> None:
        self.launched: list[Any] = []
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 * 1024}

    def load_binary(self, *binary: Any) -> tuple[int, int, int, int, int]:
        return 1, 1, 32, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        form = [repr(source.signature), repr(source.constants), repr(source.attrs)]
        form.append(str(metadata.num_warps))

        def launch(*arguments: Any) -> None:
            grid, rest = arguments[:3], arguments[-6:]
            shown = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in rest]
            self.launched.append([*form, grid, arguments[3], shown])

        return launch


def arguments() -> list[tuple[tuple[torch.Tensor, torch.Tensor], int, float, int, bool]]:
    """Tensors, size, factor, BLOCK, TWICE: what Triton tells apart, and what it does not."""
    x, half = torch.zeros(64), torch.zeros(64, dtype=torch.bfloat16)
    pairs = [(x, x), (x, x[1:]), (x[1:], x), (x[4:], x), (half, x), (x, half), (half[8:], half[4:])]
    sizes = [1, 7, 8, 16, 48, 2**31, 2**31 + 1]
    return [
        *((pair, 16, 1.0, 32, False) for pair in pairs),
        *(((x, x), size, 1.0, 32, False) for size in sizes),
        ((x, x), 16, 3.5, 32, False),
        ((x, x), 16, 1.0, 64, False),
        ((x, x), 16, 1.0, 32, True),
    ]


def main() -> None:
    """All argument lists twice over, the second time when everything is kept."""
    device = Driver()
    driver.set_active(device)
    kept = Kept(scaled, num_warps=2)
    for again in (False, True):
        for tensors, size, factor, block, twice in arguments():
            device.launched.clear()
            scaled[(3, 2, 1)](*tensors, size, factor, BLOCK=block, TWICE=twice, num_warps=2)
            kept((3, 2, 1), tensors, size, factor, BLOCK=block, TWICE=twice)
            if again:
                sys.stdout.write(json.dumps(device.launched) + "\n")


if __name__ == "__main__":
    main()
