"""CUDA streams, events and graphs by the names that a program gives them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from executor.kernel_set import ExecutorError, MissingResource, PeerLost
from schedules.program import Program, RegionKind


def many_hardware_queues() -> None:
    """Ask for the most hardware queues; only the first CUDA call of a process heeds it."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def require_gpus(count: int) -> None:
    """MissingResource unless torch sees this many GPUs."""
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen < count:
        raise MissingResource(f"this run needs {count} CUDA GPUs; torch sees {seen}")


class StreamPool:
    """CUDA streams by name, made once for a process: streams are few, since hardware queues are.

    Two streams that share a hardware queue wait for each other's work, which no program asked for
    and which can stop an exchange for ever; and memory freed on one stream does not serve another.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[str, int], torch.cuda.Stream] = {}
        self._adopted: dict[str, torch.cuda.Stream] = {}

    def stream(self, name: str, priority: int) -> torch.cuda.Stream:
        """The stream of this name and priority, or the library's own under this name."""
        if name in self._adopted:
            return self._adopted[name]
        if (name, priority) not in self._streams:
            self._streams[name, priority] = torch.cuda.Stream(priority=priority)
        return self._streams[name, priority]

    def adopt(self, name: str, stream: torch.cuda.Stream) -> None:
        """Use a library's own stream under a program's name."""
        self._adopted[name] = stream


class CudaQueues:
    """Streams, events and graph regions of one rank on the current device.

    Streams come from `pool`. A graph region is captured the first time that it
    is met and replayed from then on; `replaying` is true while its steps are to be skipped. The
    capture forks every stream from the first one at `begin` and joins them at `end`, so work outside
    the region stays ordered before and after all of it.
    """

    def __init__(self, pool: StreamPool, *, deadline_s: float = 15.0) -> None:
        self.deadline_s = deadline_s
        self.replaying = False
        self._pool = pool
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._events: dict[str, torch.cuda.Event] = {}
        self._recorded: set[str] = set()
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._capturing: torch.cuda.CUDAGraph | None = None

    def prepare(self, program: Program) -> None:
        """Find the program's streams; forget which events were recorded."""
        self._recorded.clear()
        self._streams = {
            stream.name: self._pool.stream(stream.name, stream.priority)
            for stream in program.streams
        }

    def forget_graphs(self) -> None:
        """Drop captured graphs, for a program with other work under the same names."""
        self._graphs.clear()

    def stream(self, name: str) -> torch.cuda.Stream:
        """The stream of this name."""
        return self._streams[name]

    def record(self, event: str, stream: str) -> None:
        """Record on a stream."""
        if self.replaying:
            return
        if event not in self._events:
            self._events[event] = torch.cuda.Event()
        self._events[event].record(self._streams[stream])
        self._recorded.add(event)

    def wait(self, event: str, stream: str) -> None:
        """Wait on a stream, for a record of this run only."""
        if not self.replaying and event in self._recorded:
            self._streams[stream].wait_event(self._events[event])

    def host_wait(self, event: str, what: str) -> None:
        """Poll until the event completes; PeerLost (with `what`) after the deadline."""
        if self.replaying or event not in self._recorded:
            return
        self.wait_for(self._events[event], what)

    def wait_for(self, event: torch.cuda.Event, what: str) -> None:
        """Poll a CUDA event with the deadline."""
        limit = time.monotonic() + self.deadline_s
        while not event.query():
            if time.monotonic() > limit:
                raise PeerLost(f"{what} did not complete within {self.deadline_s:.0f} s")

    def begin(self, kind: RegionKind, name: str) -> None:
        """Start capturing a graph region, or skip its steps when it is captured already."""
        if kind != "graph":
            return
        if name in self._graphs:
            self.replaying = True
            return
        first, *others = self._streams.values()
        self._order(others, first)
        self._graphs[name] = self._capturing = torch.cuda.CUDAGraph()
        with torch.cuda.stream(first):
            self._capturing.capture_begin(capture_error_mode="thread_local")
        self._order([first], *others)

    def end(self, kind: RegionKind, name: str) -> None:
        """End the capture, if there is one, and replay the graph between all streams' work."""
        if kind != "graph":
            return
        first, *others = self._streams.values()
        if self._capturing is not None:
            self._order(others, first)
            with torch.cuda.stream(first):
                self._capturing.capture_end()
            self._capturing = None
        else:
            self._order(others, first)
        self.replaying = False
        with torch.cuda.stream(first):
            self._graphs[name].replay()
        self._order([first], *others)

    @property
    def has_graph(self) -> bool:
        """Whether a graph is kept for replay."""
        return bool(self._graphs)

    def finish(
        self, what: str, *, timing: bool = False, meanwhile: Callable[[], None] = lambda: None
    ) -> list[torch.cuda.Event]:
        """Wait for all streams with the deadline; an event a stream, recorded at its end. What is done
        `meanwhile` delays no end."""
        ends = []
        for stream in self._streams.values():
            ends.append(torch.cuda.Event(enable_timing=timing))
            ends[-1].record(stream)
        meanwhile()
        for name, event in zip(self._streams, ends, strict=True):
            self.wait_for(event, f"{what}, stream {name}")
        return ends

    def _order(self, before: list[torch.cuda.Stream], *after: torch.cuda.Stream) -> None:
        for earlier in before:
            event = torch.cuda.Event()
            event.record(earlier)
            for later in after:
                later.wait_event(event)


@contextmanager
def nvtx(name: str) -> Iterator[None]:
    """An NVTX range and, under torch's profiler, a range of the same name."""
    torch.cuda.nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        torch.cuda.nvtx.range_pop()


def device_facts() -> Mapping[str, Any]:
    """What a measurement must name: GPU, SMs, driver and library versions."""
    if not torch.cuda.is_available():
        raise ExecutorError("no CUDA device to describe")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "num_sms": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus_visible": torch.cuda.device_count(),
    }
