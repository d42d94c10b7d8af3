"""The production kernel set: DeepEP, DeepGEMM, torch's attention and small kernels on CUDA streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from executor.clocks import ClockLog
from executor.cuda import CudaQueues, StreamPool, device_facts, nvtx
from executor.gate import StartGate
from executor.job import GATE_NS
from executor.kernel_set import MissingKernel, kernel_name
from executor.partition import Partitions
from executor.production_attention import ATTENTION, Launcher
from executor.production_moe import MOE
from executor.production_state import ProductionState
from executor.reference import Call
from schedules.program import Exchange, Op, Program, RegionKind
from schedules.timeline import Span

LAUNCHERS = ATTENTION | MOE
SpanSource = Literal["none", "events"]
FLUSH_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _Ready:
    """What is known of an op before a run: `sms` is what it is held to by other means than its grid."""

    call: Call
    launch: Launcher
    stream: torch.cuda.Stream
    began: str
    sms: int | None


@dataclass
class _Timed:
    op: Op
    start: torch.cuda.Event
    end: torch.cuda.Event


@dataclass
class Production:
    """Runs programs of one rank's `state`; see the module docstring.

    `inputs` are the program's input buffers by name. Each run starts behind `gate`, `sleep_ns` after
    all ranks have come to it, with L2 flushed if `flush`; its origin is the gate's end. `spans`
    "events" brackets every op with CUDA events, which costs a launch gap each; "none" measures the
    makespan only. A wait longer than `deadline_s` ends the run. `annotate` puts every op in an NVTX
    and profiler range. `beat` is told each op;
    `check` raises when something went wrong on the device.
    `launchers` launch an op by its kernel name; `walks_calls` takes the steps inside a library call one
    by one, and `signals` says that ops may raise and poll them. `poison` fills a run's results with NaN
    before the next run, which must not read them. That is for checks: the pause that it makes between
    runs is a rest that no server has, after which a GPU at its power limit is faster.
    """

    state: ProductionState
    inputs: dict[str, torch.Tensor]
    gate: StartGate
    pool: StreamPool
    clocks: ClockLog
    spans: SpanSource = "none"
    annotate: bool = False
    flush: bool = False
    poison: bool = True
    sleep_ns: int = GATE_NS
    deadline_s: float = 15.0
    launchers: Mapping[str, Launcher] = field(default_factory=lambda: LAUNCHERS)
    walks_calls: bool = False
    signals: bool = False
    beat: Callable[[str], None] = lambda what: None
    check: Callable[[], None] = lambda: None
    buffers: dict[str, Any] = field(default_factory=dict)
    makespan_ns: int = 0

    def __post_init__(self) -> None:
        self._queues = CudaQueues(self.pool, deadline_s=self.deadline_s)
        self._ready: dict[str, _Ready] = {}
        self._timed: list[_Timed] = []
        self._in_call = False
        self._partitions = Partitions()
        self._current: torch.cuda.Stream | None = None
        self._program: Program | None = None
        self._streams: list[torch.cuda.Stream] = []
        self._flushed = torch.empty(
            FLUSH_BYTES if self.flush else 0, dtype=torch.int8, device="cuda"
        )

    @property
    def machine(self) -> str:
        """The GPU's name."""
        return str(device_facts()["gpu"])

    @property
    def clock_error_ns(self) -> int:
        """From the comparison of the GPUs' clocks."""
        return self.gate.clock.error_ns

    def prepare(self, program: Program, rank: int) -> None:
        """Check and bind a new program's ops, drop the last run's buffers, and launch the gate."""
        self._queues.prepare(program)
        streams = [self._queues.stream(stream.name) for stream in program.streams]
        torch.cuda.synchronize()
        if program is not self._program or streams != self._streams:
            self._bind(program, rank)
            self._program, self._streams = program, streams
        if not self._queues.has_graph:
            self._drop()
        self._timed.clear()
        self._start(program)

    def _bind(self, program: Program, rank: int) -> None:
        check_kernels(program, self.launchers, signals=self.signals)
        self._queues.forget_graphs()
        exchanges = {exchange.name: exchange for exchange in program.exchanges}
        self._ready = {op.name: self._of(op, exchanges) for op in program.launches(rank)}

    def _drop(self) -> None:
        """Leave nothing but the inputs in the dictionary that the ops were bound to. A graph's memory is
        its own, and results that it replays into are kept."""
        if self.poison:
            kept = self.inputs.keys()
            fill_with_nan(
                [v for k, v in self.buffers.items() if k not in kept and "kv_cache" not in k]
            )
            torch.cuda.synchronize()
        self.buffers.clear()
        self.buffers.update(self.inputs)

    def _of(self, op: Op, exchanges: Mapping[str, Exchange]) -> _Ready:
        exchange = exchanges[op.exchange] if op.exchange else None
        where = f" of exchange {op.exchange}" if op.exchange else ""
        return _Ready(
            Call(op, self.state.rank, self.buffers, self.state, exchange),
            self.launchers[kernel_name(op)],
            self._queues.stream(op.stream),
            f"op {op.name}{where}",
            op.grid.enforced_budget if op.grid.limited_by == "green_context" else None,
        )

    def _start(self, program: Program) -> None:
        self.beat(f"the start of {program.name}")
        first = self._queues.stream(program.streams[0].name)
        with torch.cuda.stream(first):
            self._flushed.zero_()
        self.gate.launch(first, self.sleep_ns)
        self._origin = torch.cuda.Event(enable_timing=True)
        self._origin.record(first)
        for stream in program.streams[1:]:
            self._queues.stream(stream.name).wait_event(self._origin)

    def launch(self, op: Op) -> None:
        """Launch on the op's stream; an op of a library call that another op makes does nothing."""
        if self._queues.replaying:
            return
        ready = self._ready[op.name]
        self.beat(ready.began)
        if ready.stream is not self._current:
            torch.cuda.set_stream(ready.stream)
            self._current = ready.stream
        if ready.sms is None and not self.annotate:
            self._run(ready)
            return
        limit = nullcontext() if ready.sms is None else self._partitions.limited(ready.sms)
        with nvtx(op.name) if self.annotate else nullcontext(), limit:
            self._run(ready)

    def _run(self, ready: _Ready) -> None:
        timed = self._opened(ready.call.op, ready.stream)
        ready.launch(ready.call)
        if timed is not None:
            timed.end.record(ready.stream)

    def _opened(self, op: Op, stream: torch.cuda.Stream) -> _Timed | None:
        if self.spans == "none":
            return None
        timed = _Timed(
            op, torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        )
        timed.start.record(stream)
        self._timed.append(timed)
        return timed

    def record(self, event: str, stream: str) -> None:
        """Record on a CUDA stream."""
        self._queues.record(event, stream)

    def wait(self, event: str, stream: str) -> None:
        """Wait on a CUDA stream."""
        self._queues.wait(event, stream)

    def host_wait(self, event: str) -> None:
        """Block the host; inside a library call the call itself does."""
        if not self._in_call:
            self._queues.host_wait(event, f"rank {self.state.rank}: the host's wait for {event!r}")

    def host_work(self, kind: str) -> None:
        """The host's own work is what this set's Python takes."""

    def begin(self, kind: RegionKind, name: str) -> None:
        """Calls are made by their last op; graphs are captured once and replayed."""
        self._in_call = self._in_call or (kind == "call" and not self.walks_calls)
        self._current = None
        self._queues.begin(kind, name)

    def end(self, kind: RegionKind, name: str) -> None:
        """See `begin`."""
        self._in_call = self._in_call and kind != "call"
        self._current = None
        self._queues.end(kind, name)

    def finish(self) -> tuple[Span, ...]:
        """Wait for all streams; spans from the gate's end on."""
        self.beat("the end of the program")
        torch.cuda.set_stream(torch.cuda.default_stream())
        self._current = None
        what = f"rank {self.state.rank}: the program"
        ends = self._queues.finish(what, timing=True, meanwhile=self.clocks.sample)
        self.check()
        self.makespan_ns = max(round(self._origin.elapsed_time(end) * 1e6) for end in ends)
        return tuple(self._span(timed) for timed in self._timed)

    def _span(self, timed: _Timed) -> Span:
        op = timed.op
        start = max(0, round(self._origin.elapsed_time(timed.start) * 1e6))
        end = max(start, round(self._origin.elapsed_time(timed.end) * 1e6))
        return Span(
            op=op.name,
            rank=self.state.rank,
            lane=op.stream,
            ready_ns=start,
            start_ns=start,
            end_ns=end,
            kind=op.work.kind,
            layer=op.layer,
            child=op.child,
            sms=op.grid.enforced_budget or 0,
            label="measured",
        )


def check_kernels(program: Program, launchers: Mapping[str, Launcher], *, signals: bool) -> None:
    """MissingKernel for an op of any rank that these launchers cannot run as the program means it."""
    for cls in program.classes:
        for op in cls.ops:
            name = kernel_name(op)
            if name not in launchers:
                raise MissingKernel(f"this set has no kernel {name!r} (op {op.name})")
            if not signals and (op.raises is not None or op.polls is not None):
                raise MissingKernel(
                    f"op {op.name} signals by blocks; this DeepGEMM and DeepEP cannot"
                )


def fill_with_nan(value: Any) -> None:
    """Fill every tensor in nested containers with NaN (integers with a value no index has)."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.element_size() > 1:
            value.fill_(float("nan"))
        elif value.dtype == torch.uint8 or value.element_size() == 1:
            value.view(torch.uint8).fill_(0x7F)
    elif isinstance(value, dict):
        for item in value.values():
            fill_with_nan(item)
    elif isinstance(value, list | tuple):
        for item in value:
            fill_with_nan(item)
