"""Does a green context hold attention to its SMs? Time of torch's attention over SM budgets.

python -m benchmarks.green_context
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from executor.partition import Partitions

HEADS, LENGTH, SEQUENCES = 128, 2048, 4
BUDGETS = (None, 120, 112, 96, 64)
REPEATS = 15


def timed_us(call: Callable[[], None]) -> float:
    """Median of repeats between events, after three calls for warm-up."""
    times = []
    for turn in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if turn >= 3:
            times.append(start.elapsed_time(end) * 1000)
    return float(median(times))


def main() -> None:
    """Print a line for each budget."""
    q, k = (torch.randn(SEQUENCES, HEADS, LENGTH, 192, device="cuda").bfloat16() for _ in range(2))
    v = torch.randn(SEQUENCES, HEADS, LENGTH, 128, device="cuda").bfloat16()
    partitions = Partitions()

    def attention() -> None:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    whole = timed_us(attention)
    for budget in BUDGETS:

        def limited(sms: int | None = budget) -> None:
            if sms is None:
                attention()
                return
            with partitions.limited(sms):
                attention()

        time_us = timed_us(limited)
        print(f"{budget or 132:>4} SMs {time_us:>9.1f} us, x{time_us / whole:.3f}")


if __name__ == "__main__":
    main()
