# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The mean clock of the SMs between two moments, counted on the GPU itself.

The driver reads the clock at one instant; here every SM's cycle counter is read twice.
"""

from __future__ import annotations

from statistics import median

import torch
import triton
import triton.language as tl

# CTAs enough for every SM to run one.
CTAS_PER_SM = 4


@triton.jit
def stamp_kernel(stamps):
    """Row `smid` of `stamps` [SMs, 2]: the SM's cycles, and the GPU's ns."""
    sm = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
    cycles = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(stamps + sm * 2, cycles)
    tl.store(stamps + sm * 2 + 1, ns)


class SmClock:
    """Call `start`, run something, call `mhz`."""

    def __init__(self) -> None:
        self.num_sms = torch.cuda.get_device_properties(
            torch.cuda.current_device()
        ).multi_processor_count
        self._rows = [
            torch.zeros(self.num_sms, 2, dtype=torch.int64, device="cuda") for _ in range(2)
        ]

    def start(self) -> None:
        """Read the counters once the GPU is idle."""
        self._stamp(0)

    def mhz(self) -> float:
        """MHz since `start`: cycles over time, the median of the SMs; 0 when no SM was met twice."""
        self._stamp(1)
        before, after = (rows.tolist() for rows in self._rows)
        return mean_mhz(before, after)

    def _stamp(self, which: int) -> None:
        torch.cuda.synchronize()
        self._rows[which].zero_()
        stamp_kernel[(self.num_sms * CTAS_PER_SM,)](self._rows[which], num_warps=1)
        torch.cuda.synchronize()


def mean_mhz(before: list[list[int]], after: list[list[int]]) -> float:
    """From (cycles, ns) of each SM at two moments."""
    found = [
        1e3 * (later[0] - sooner[0]) / (later[1] - sooner[1])
        for sooner, later in zip(before, after, strict=True)
        if sooner[1] and later[1] > sooner[1]
    ]
    return median(found) if found else 0.0
