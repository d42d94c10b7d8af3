"""A common start of all ranks: a barrier between the GPUs, then a sleep that hides launch skew."""

from __future__ import annotations

import ctypes

import torch

from executor.peers import Clock, SharedWords, align_clocks, barrier
from executor.spin_library import MAX_RANKS, STAMP_WORDS, SpinArgs, SpinLibrary, build

SLOTS = 512
DEADLINE_NS = 60_000_000_000


class Gate:
    """Launches, on each rank's stream, one small CTA that ends on all ranks at the same time, within
    the flight of a message between GPUs."""

    def __init__(self, rank: int, world_size: int) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        arch = f"sm_{properties.major}{properties.minor}"
        self._library = SpinLibrary(build(arch), 48 * 1024)
        self._words = SharedWords(self._library, rank, SLOTS * MAX_RANKS)
        self._rank, self._world_size = rank, world_size
        self.clock: Clock = align_clocks(self._library, self._words, rank, world_size)
        self._slot = 0

    def launch(self, stream: torch.cuda.Stream, sleep_ns: int) -> None:
        """Barrier, then `sleep_ns`. All ranks call it equally often."""
        if self._slot == SLOTS:
            torch.cuda.synchronize()
            barrier()
            self._words.clear()
            barrier()
            self._slot = 0
        with torch.cuda.stream(stream):
            self._scratch = torch.zeros(STAMP_WORDS + 2, dtype=torch.int64, device="cuda")
        flags = [self._words.word(peer, self._slot * MAX_RANKS) for peer in range(self._world_size)]
        scratch = self._scratch.data_ptr()
        args = SpinArgs(
            stamps=scratch,
            tile_ns=sleep_ns,
            deadline_ns=DEADLINE_NS,
            tiles=1,
            placed=scratch + STAMP_WORDS * 8,
            flags=(ctypes.c_void_p * MAX_RANKS)(*flags),
            rank=self._rank,
            ranks=self._world_size,
            wait_on_start=1,
            error=scratch + STAMP_WORDS * 8 + 8,
        )
        self._library.launch(stream.cuda_stream, 1, 32, 0, False, args)
        self._slot += 1

    def close(self) -> None:
        """Give the peers' memory back."""
        self._words.close()
