"""A common start of all ranks: a barrier between the GPUs, and a sleep that hides launch skew."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

from executor.peers import Clock, SharedWords, align_clocks, barrier
from executor.spin_library import MAX_RANKS, STAMP_WORDS, SpinArgs, SpinLibrary, build

SLOTS = 512
DEADLINE_NS = 60_000_000_000
MEETINGS = 20
SAMPLE_CYCLES = 1_000_000


class StartGate(Protocol):
    """Brings the ranks' streams together; `clock` bounds how far apart they leave."""

    clock: Clock

    def launch(self, stream: torch.cuda.Stream, sleep_ns: int) -> None:
        """Make the stream wait for all ranks. All ranks call it equally often."""
        ...


class CollectiveGate:
    """The same for ranks that cannot reach each other's memory: the sleep, then an all-reduce of one
    word, which no rank leaves before the last has come. `clock.error_ns` is its own duration."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group = group
        self._word = torch.zeros(1, dtype=torch.int32, device=device)
        self._cycles_per_ns = max(_sleeping_cycles_per_ns() for _ in range(MEETINGS))
        self.clock = Clock(error_ns=self._meeting_ns())

    def launch(self, stream: torch.cuda.Stream, sleep_ns: int) -> None:
        """A sleep of `sleep_ns` or a little longer, then the meeting."""
        with torch.cuda.stream(stream):
            torch.cuda._sleep(round(sleep_ns * self._cycles_per_ns))
            dist.all_reduce(self._word, group=self._group)

    def _meeting_ns(self) -> int:
        """The shortest of some all-reduces as the host sees them, which is longer than on the GPU."""
        taken = []
        for _ in range(MEETINGS):
            began = time.perf_counter_ns()
            dist.all_reduce(self._word, group=self._group)
            torch.cuda.synchronize()
            taken.append(time.perf_counter_ns() - began)
        return min(taken)


def _sleeping_cycles_per_ns() -> float:
    """The GPU's clock during a sleep."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(SAMPLE_CYCLES)
    end.record()
    end.synchronize()
    return SAMPLE_CYCLES / (float(begin.elapsed_time(end)) * 1e6)


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
