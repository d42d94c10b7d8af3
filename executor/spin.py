"""The spin kernel set: kernels of given CTAs, time and kind on a real GPU, and nothing else.

With it a program runs without any physics but placement, launch gaps and waiting for peers: what the
hardware does then is the engine's independent oracle.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from executor.cuda import CudaQueues, StreamPool, require_gpus
from executor.kernel_set import MissingKernel, MissingResource, PeerLost
from executor.peers import Clock, SharedWords, align_clocks, barrier, gathered
from executor.spin_library import MAX_RANKS, STAMP_WORDS, SpinArgs, SpinLibrary, build
from models.spin import SpinCosts
from schedules.program import Op, Program, RegionKind
from schedules.timeline import Span, Waited

MAX_SMEM_BYTES = 227 * 1024
SHARED_WORDS = 16384
DEADLINE_NS = 5_000_000_000


@dataclass
class _Launched:
    op: Op
    first: int
    ctas: int


@dataclass
class _Layout:
    """Where an op's stamps and words lie. Words: next tile, CTAs placed."""

    stamps: dict[str, int] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)
    signals: dict[str, int] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)
    num_stamps: int = 0
    num_words: int = 0
    num_flags: int = 0


class Spin:
    """Spin kernels on the current GPU; see the module docstring.

    `cta_overhead_ns` is taken off every CTA's time, `pull_ns` off every tile that is fetched and
    `meeting_ns` off a kernel that waits for its peers, so that they last as long as the program states.
    `host_ns` says how long the host
    is busy for a class of host work. Exchanges of role `whole`, `notify` wait until the kernel is
    placed on every rank, `recv` until every send has ended; their traffic is not moved. Spans carry
    `peer_wait` stalls.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        cta_overhead_ns: int = 0,
        pull_ns: int = 0,
        host_ns: Mapping[str, int] | None = None,
    ) -> None:
        require_gpus(1)
        if world_size > MAX_RANKS:
            raise MissingResource(
                f"spin kernels run on {MAX_RANKS} ranks at most, not {world_size}"
            )
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.num_sms = properties.multi_processor_count
        self.cta_overhead_ns = cta_overhead_ns
        self.pull_ns = pull_ns
        self.meeting_ns = 0
        self.machine = f"spin kernels on {properties.name}"
        self._costs = SpinCosts(self.num_sms)
        self._rank, self._world_size = rank, world_size
        self._host_ns = dict(host_ns or {})
        arch = f"sm_{properties.major}{properties.minor}"
        self.library = SpinLibrary(build(arch), MAX_SMEM_BYTES)
        self._words = SharedWords(self.library, rank, SHARED_WORDS)
        self._clock: Clock = align_clocks(self.library, self._words, rank, world_size)
        self._queues = CudaQueues(StreamPool())
        self._program: Program | None = None
        self._layout = _Layout()
        self._launched: list[_Launched] = []

    @property
    def clock_error_ns(self) -> int:
        """Half of the shortest round trip between the GPUs, the largest of all ranks."""
        return self._clock.error_ns

    def prepare(self, program: Program, rank: int) -> None:
        """Lay out stamps and counters; only spin work is known."""
        for op in program.launches(rank):
            if op.work.kind != "spin":
                raise MissingKernel(
                    f"rank {rank}: op {op.name} is {op.work.kind!r}; the spin set runs 'spin' only"
                )
        self._program = program
        self._queues.prepare(program)
        self._queues.forget_graphs()
        self._layout = self._laid_out(program, rank)
        self._launched.clear()
        self._stamps = torch.zeros(
            max(1, self._layout.num_stamps), STAMP_WORDS, dtype=torch.int64, device="cuda"
        )
        self._counters = torch.zeros(self._layout.num_words + 1, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        barrier()
        self._words.clear()
        barrier()
        self._clock = align_clocks(self.library, self._words, rank, self._world_size)

    def _laid_out(self, program: Program, rank: int) -> _Layout:
        layout = _Layout()
        for op in program.launches(rank):
            layout.stamps[op.name] = layout.num_stamps
            layout.num_stamps += self._costs.footprint(op.work, op.grid).ctas
            layout.words[op.name] = layout.num_words
            layout.num_words += 2
        for signal in program.signals:
            layout.signals[signal.name] = layout.num_words
            layout.num_words += signal.blocks
        for exchange in program.exchanges:
            for part in ("notify", "data"):
                layout.flags[f"{exchange.name}/{part}"] = layout.num_flags
                layout.num_flags += MAX_RANKS
        if layout.num_flags > SHARED_WORDS:
            most = SHARED_WORDS // (2 * MAX_RANKS)
            raise MissingResource(f"{len(program.exchanges)} exchanges; spin holds {most} at most")
        return layout

    def launch(self, op: Op) -> None:
        """Launch on the op's stream."""
        if self._queues.replaying:
            return
        footprint = self._costs.footprint(op.work, op.grid)
        self._launched.append(_Launched(op, self._layout.stamps[op.name], footprint.ctas))
        self.library.launch(
            self._queues.stream(op.stream).cuda_stream,
            footprint.ctas,
            footprint.threads,
            footprint.smem_bytes,
            op.grid.gang,
            self._arguments(op),
        )

    def _arguments(self, op: Op) -> SpinArgs:
        tiles = op.work.dim("ctas")
        args = SpinArgs(
            stamps=self._stamps.data_ptr() + self._layout.stamps[op.name] * STAMP_WORDS * 8,
            tile_ns=max(0, op.work.dim("cta_ns") - self._overhead_per_tile(op)),
            deadline_ns=DEADLINE_NS,
            tiles=tiles,
            rank=self._rank,
            ranks=self._world_size,
            error=self._counters.data_ptr() + self._layout.num_words * 4,
        )
        words = self._counters.data_ptr() + self._layout.words[op.name] * 4
        if op.grid.kind == "dynamic":
            args.next_tile = words
        if op.exchange is not None:
            self._join(op, args, words + 4)
        if op.raises is not None:
            args.raises = self._signal(op.raises, args)
        if op.polls is not None:
            args.polls = self._signal(op.polls, args)
        return args

    def _overhead_per_tile(self, op: Op) -> int:
        """A wave's CTA runs one tile; a persistent one spreads its own overhead over its tiles."""
        if op.grid.kind == "wave":
            meets = op.exchange is not None and op.role != "send"
            return self.cta_overhead_ns + (self.meeting_ns if meets else 0)
        ctas = self._costs.footprint(op.work, op.grid).ctas
        fetch_ns = self.pull_ns if op.grid.kind == "dynamic" else 0
        return fetch_ns + self.cta_overhead_ns // -(-op.work.dim("ctas") // ctas)

    def _join(self, op: Op, args: SpinArgs, placed: int) -> None:
        part = "notify" if op.role == "notify" else "data"
        first = self._layout.flags[f"{op.exchange}/{part}"]
        flags = [self._words.word(rank, first) for rank in range(self._world_size)]
        args.flags = (ctypes.c_void_p * MAX_RANKS)(*flags)
        if op.role != "recv":
            args.placed = placed
        args.wait_on_start = int(op.role != "send")
        args.arrive_on_end = int(op.role == "send")

    def _signal(self, name: str, args: SpinArgs) -> int:
        assert self._program is not None
        signal = next(signal for signal in self._program.signals if signal.name == name)
        args.blocks, args.threshold = signal.blocks, signal.threshold
        return int(self._counters.data_ptr()) + self._layout.signals[name] * 4

    def record(self, event: str, stream: str) -> None:
        """Record on a CUDA stream."""
        self._queues.record(event, stream)

    def wait(self, event: str, stream: str) -> None:
        """Wait on a CUDA stream."""
        self._queues.wait(event, stream)

    def host_wait(self, event: str) -> None:
        """Block the host."""
        self._queues.host_wait(event, f"rank {self._rank}: the host's wait for event {event!r}")

    def host_work(self, kind: str) -> None:
        """Keep the host busy for the time given for this kind."""
        until = time.perf_counter_ns() + self._host_ns.get(kind, 0)
        while time.perf_counter_ns() < until:
            pass

    def begin(self, kind: RegionKind, name: str) -> None:
        """Graph regions are captured."""
        self._queues.begin(kind, name)

    def end(self, kind: RegionKind, name: str) -> None:
        """Graph regions are replayed."""
        self._queues.end(kind, name)

    def finish(self) -> tuple[Span, ...]:
        """Spans on rank 0's clock, from the first start of any rank."""
        self._queues.finish(f"rank {self._rank}: the program")
        if blocked := int(self._counters[self._layout.num_words]):
            raise PeerLost(
                f"rank {self._rank}: CTA {blocked - 1} of a kernel waited {DEADLINE_NS // 10**9} s "
                "for a peer or a signal"
            )
        stamps = self._stamps.cpu() - torch.tensor([*[self._clock.offset_ns] * 3, 0])
        first = int(stamps[:, 0].min()) if self._launched else 0
        origin = min(gathered(first))
        return tuple(
            self._span(launched, stamps - torch.tensor([origin] * 3 + [0]))
            for launched in self._launched
        )

    def _span(self, launched: _Launched, stamps: torch.Tensor) -> Span:
        op = launched.op
        rows = stamps[launched.first : launched.first + launched.ctas]
        start, end = int(rows[:, 0].min()), int(rows[:, 2].max())
        placed, released = int(rows[:, 0].max()), int(rows[:, 1].max())
        stall = released - placed if op.exchange is not None else 0
        return Span(
            op=op.name,
            rank=self._rank,
            lane=op.stream,
            ready_ns=start,
            start_ns=start,
            end_ns=end,
            kind="spin",
            layer=op.layer,
            child=op.child,
            stalls=(Waited("peer_wait", stall),) if stall > 0 else (),
            sms=len({int(sm) for sm in rows[:, 3] & 0xFFFFFFFF}),
            label="exact",
        )

    def close(self) -> None:
        """Give peers' memory back."""
        self._words.close()
