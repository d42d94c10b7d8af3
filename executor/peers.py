"""Ranks of one node that see each other's GPU memory, and their clocks on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from executor.kernel_set import ExecutorError
from executor.spin_library import SharedMemory, SpinLibrary

WORD_BYTES = 4
PING_TURNS = 200


def gathered(value: Any) -> list[Any]:
    """`value` of every rank; of this one alone without a process group."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def barrier() -> None:
    """Wait for all ranks' hosts."""
    gathered(None)


class SharedWords:
    """`count` 32-bit words on every rank's GPU, each rank able to write all ranks' words."""

    def __init__(self, library: SpinLibrary, rank: int, count: int) -> None:
        self._library = library
        self._memory: SharedMemory = library.allocate(count * WORD_BYTES)
        self.count = count
        self._rank = rank
        handles = gathered(self._memory.handle)
        self.addresses = [
            self._memory.address if peer == rank else library.open(handle)
            for peer, handle in enumerate(handles)
        ]

    def word(self, rank: int, index: int) -> int:
        """Address in this process of word `index` on `rank`."""
        if not 0 <= index < self.count:
            raise ExecutorError(f"shared word {index} of {self.count}")
        return self.addresses[rank] + index * WORD_BYTES

    def clear(self) -> None:
        """Zero this rank's own words; ranks must meet before and after."""
        self._library.clear(self._memory.address, self.count * WORD_BYTES)

    def close(self) -> None:
        """Give the memory back, once no peer uses it."""
        barrier()
        for peer, address in enumerate(self.addresses):
            if peer != self._rank:
                self._library.close(address)
        barrier()
        self._library.free(self._memory)


@dataclass(frozen=True)
class Clock:
    """`rank's clock - offset_ns` is rank 0's clock, within `error_ns`."""

    offset_ns: int = 0
    error_ns: int = 0


def align_clocks(library: SpinLibrary, words: SharedWords, rank: int, world_size: int) -> Clock:
    """This rank's clock against rank 0's, from messages that the GPUs exchange over their link.

    The error is half of the shortest round trip. Ranks are compared with rank 0 one after another.
    """
    mine = Clock()
    for other in range(1, world_size):
        stamps = _ping_pong(library, words, rank, other) if rank in (0, other) else None
        sides = gathered(stamps)
        if rank == other:
            mine = clock_from_stamps(sides[0], sides[other])
        words.clear()
        barrier()
    return mine


def clock_from_stamps(leader: list[tuple[int, int]], other: list[tuple[int, int]]) -> Clock:
    """Offset of `other` from the turn with the shortest round trip: the leader's (sent, answered)
    and the other's (began, seen) stamps of each turn."""
    trips = [
        (answered - sent, seen - (sent + answered) // 2)
        for (sent, answered), (_, seen) in zip(leader, other, strict=True)
    ]
    trip, offset = min(trips)
    return Clock(offset, -(-trip // 2))


def _ping_pong(
    library: SpinLibrary, words: SharedWords, rank: int, other: int
) -> list[tuple[int, int]]:
    leads = rank == 0
    out = torch.zeros(PING_TURNS, 2, dtype=torch.int64, device="cuda")
    error = torch.zeros(1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    library.ping_pong(
        torch.cuda.current_stream().cuda_stream,
        words.word(rank, 0),
        words.word(other if leads else 0, 0),
        leads=leads,
        turns=PING_TURNS,
        out=out.data_ptr(),
        error=error.data_ptr(),
    )
    torch.cuda.synchronize()
    if error.item():
        raise ExecutorError(f"rank {rank}: the clock comparison of ranks 0 and {other} stalled")
    return [(int(a), int(b)) for a, b in out.tolist()]
