# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Words that one kernel raises and another waits for, on one GPU or across peers.

A raise orders all earlier writes of the whole program (CTA) before the word; a wait orders all later
reads after it. Waiting has a deadline: past it the error word gets `code` and the program goes on with
whatever the memory holds, so that no kernel hangs; the host checks the word when the run ends.

The interpreter has no clock; its stand-in counts looks. It runs the programs of one process one after
another, so only another process can answer a wait there.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from executor.kernels.interpreted import INTERPRETED

DEADLINE_NS = 5_000_000_000
LOOK_NS: tl.constexpr = tl.constexpr(100_000)


@triton.jit
def raise_word(word, amount):
    """Add `amount` to a word that other programs, kernels or GPUs wait for."""
    tl.debug_barrier()
    tl.atomic_add(word, amount, sem="release", scope="sys")


@triton.jit
def last_of(ticket, programs):
    """Whether this program is the last of `programs` to come here; the last one sees what all wrote
    before, and finds the ticket reset for the next launch."""
    tl.debug_barrier()
    last = tl.atomic_add(ticket, 1, sem="acq_rel", scope="sys") == programs - 1
    if last:
        tl.atomic_xchg(ticket, 0, sem="relaxed", scope="gpu")
    return last


@triton.jit
def _device_now_ns():
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def _device_wait(word, wanted, error, code, deadline_ns):
    value = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    if value < wanted:
        limit = _device_now_ns() + deadline_ns
        late = False
        while (value < wanted) & (not late):
            value = tl.atomic_add(word, 0, sem="acquire", scope="sys")
            late = _device_now_ns() > limit
        if value < wanted:
            tl.atomic_cas(error, 0, code, sem="relaxed", scope="gpu")
    tl.debug_barrier()


@triton.jit
def _interpreted_wait(word, wanted, error, code, deadline_ns):
    looks = deadline_ns // LOOK_NS
    while (tl.load(word) < wanted) & (looks > 0):
        looks -= 1
    if tl.load(word) < wanted:
        tl.atomic_cas(error, 0, code)


# wait_word(word, wanted, error, code, deadline_ns): until the int32 word is at least `wanted`.
wait_word: Any = _interpreted_wait if INTERPRETED else _device_wait


def error_word(device: torch.device | str) -> torch.Tensor:
    """A word for `wait_word` to report in: 0 while all is well."""
    return torch.zeros(1, dtype=torch.int32, device=device)
