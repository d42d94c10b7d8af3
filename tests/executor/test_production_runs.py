"""A production set that runs programs again and again, on a device that does everything at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from executor.cuda import StreamPool
from executor.execute import execute
from executor.production import Production
from executor.reference import POISON, Call
from models.work import work
from schedules.program import (
    Begin,
    End,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Step,
    Stream,
    Wait,
)

pytestmark = pytest.mark.torch


class Device:
    """Streams, events and graphs that order nothing, since every launch is done when it returns;
    `noted` is what happened to events and clocks."""

    def __init__(self) -> None:
        self.current: object = None
        self.noted: list[str] = []
        device = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.timed = enable_timing

            def record(self, stream: object) -> None:
                device.noted.append("timed event" if self.timed else "event")

            def query(self) -> bool:
                return True

            def elapsed_time(self, end: object) -> float:
                return 0.0

        class CudaStream:
            def __init__(self, priority: int = 0) -> None:
                self.priority = priority

            def wait_event(self, event: object) -> None:
                pass

        class Graph:
            def capture_begin(self, capture_error_mode: str) -> None:
                pass

            def capture_end(self) -> None:
                pass

            def replay(self) -> None:
                pass

        self.cuda = SimpleNamespace(
            Event=Event,
            Stream=CudaStream,
            CUDAGraph=Graph,
            stream=self._within,
            set_stream=self._set,
            default_stream=lambda: None,
            synchronize=lambda: None,
        )

    def _set(self, stream: object) -> None:
        self.current = stream

    @contextmanager
    def _within(self, stream: object) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def sample(self) -> None:
        self.noted.append("clocks")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    fake = SimpleNamespace(
        cuda=made.cuda,
        Tensor=torch.Tensor,
        int8=torch.int8,
        uint8=torch.uint8,
        empty=lambda size, dtype, device: torch.empty(size, dtype=dtype),
    )
    for module in ("executor.production", "executor.cuda"):
        monkeypatch.setattr(f"{module}.torch", fake)
    monkeypatch.setattr("executor.production.device_facts", lambda: {"gpu": "none"})
    return made


def double(call: Call) -> None:
    call.write(call.op.writes[0], 2 * call.read(call.op.reads[0]))


def total(call: Call) -> None:
    call.write(call.op.writes[0], sum(call.read(name) for name in call.op.reads))


TABLE: dict[str, Callable[[Call], None]] = {"double": double, "sum": total}


def kernels_on(
    device: Device,
    launchers: Mapping[str, Callable[[Call], None]] = TABLE,
    *,
    poison: bool = True,
) -> Production:
    state: Any = SimpleNamespace(rank=0)
    gate: Any = SimpleNamespace(
        launch=lambda stream, sleep_ns: None, clock=SimpleNamespace(error_ns=0)
    )
    clocks: Any = device
    inputs = {"in": torch.tensor(1.0), "other": torch.tensor(10.0)}
    return Production(state, inputs, gate, StreamPool(), clocks, launchers=launchers, poison=poison)


def op(name: str, stream: str, reads: str, writes: str) -> Op:
    return Op(name, stream, work("add"), reads=tuple(reads.split()), writes=(writes,))


def forked(*, graph: bool = False, first: str = "in") -> Program:
    """main doubles, comm doubles that, main adds both: 6 times what it `first` reads."""
    steps: list[Step] = [
        Launch(op("double", "main", first, "a")),
        Record("E0", "main"),
        Wait("E0", "comm"),
        Launch(op("L0.double", "comm", "a", "b")),
        Record("E1", "comm"),
        Wait("E1", "main"),
        Launch(op("sum", "main", "a b", "out")),
    ]
    if graph:
        steps = [Begin("graph", "G"), *steps, End("graph", "G")]
    streams = (Stream("main"), Stream("comm", -1))
    return Program("forked", streams, (RankClass((0,), tuple(steps)),))


@pytest.mark.parametrize("poison", [True, False])
def test_every_run_makes_its_results_anew_and_keeps_its_inputs(
    device: Device, poison: bool
) -> None:
    kernels, made = kernels_on(device, poison=poison), forked()
    held = []
    for _ in range(3):
        execute(made, kernels)
        held.append(kernels.buffers["out"])
        assert float(held[-1]) == 6.0
    assert [bool(out.isnan()) for out in held] == [poison, poison, False]
    assert float(kernels.inputs["in"]) == 1.0


@pytest.mark.parametrize("poison", [True, False])
def test_results_of_a_run_go_before_the_next(device: Device, poison: bool) -> None:
    seen: list[object] = []

    def look(call: Call) -> None:
        seen.append(call.read("out"))
        double(call)

    kernels, made = kernels_on(device, TABLE | {"double": look}, poison=poison), forked()
    execute(made, kernels)
    gone = weakref.ref(kernels.buffers["out"])
    execute(made, kernels)
    assert gone() is None
    assert seen == [POISON] * 4


@pytest.mark.parametrize("poison", [True, False])
def test_a_graph_keeps_what_it_replays_into(device: Device, poison: bool) -> None:
    kernels, made = kernels_on(device, poison=poison), forked(graph=True)
    execute(made, kernels)
    out = kernels.buffers["out"]
    execute(made, kernels)
    assert kernels.buffers["out"] is out and float(out) == 6.0
    # Another program on the same set: the graph goes, and its results with it.
    execute(forked(), kernels)
    assert kernels.buffers["out"] is not out and bool(out.isnan()) == poison


def test_ops_of_one_name_are_those_of_the_program_that_runs(device: Device) -> None:
    kernels, one, two = kernels_on(device), forked(), forked(first="other")
    found = []
    for made in (one, two, two, one):
        execute(made, kernels)
        found.append(float(kernels.buffers["out"]))
    assert found == [6.0, 60.0, 60.0, 6.0]


def test_a_stream_that_a_library_brings_takes_its_ops(device: Device) -> None:
    streams: list[object] = []

    def where(call: Call) -> None:
        streams.append(device.current)
        double(call)

    kernels, made = kernels_on(device, TABLE | {"double": where}), forked()
    execute(made, kernels)
    theirs: Any = device.cuda.Stream()
    kernels.pool.adopt("comm", theirs)
    execute(made, kernels)
    assert streams[2] is streams[0]
    assert streams[3] is theirs and streams[1] is not theirs


def test_clocks_are_read_when_the_ends_of_all_streams_are_noted(device: Device) -> None:
    """Else a reading would count as the last kernel's time, where the host is not ahead."""
    execute(forked(), kernels_on(device))
    assert device.noted[-3:] == ["timed event", "timed event", "clocks"]
