"""GPU kernels of a torch profiler trace, by the annotated range whose host calls launched them."""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.kernel_set import ExecutorError

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class Run:
    """One kernel's run: times in ns on the trace's clock, and its launch's size."""

    name: str
    start_ns: float
    end_ns: float
    stream: int
    ctas: int
    threads: int
    registers: int
    smem_bytes: int

    @property
    def ns(self) -> float:
        """Its duration."""
        return self.end_ns - self.start_ns


Runs = dict[str, list[tuple[Run, ...]]]


def read_trace(path: Path) -> list[Mapping[str, Any]]:
    """The events of a Chrome trace that torch's profiler exported."""
    content = json.loads(path.read_text(encoding="utf-8"))
    events = content["traceEvents"] if isinstance(content, dict) else content
    return [event for event in events if event.get("ph") == "X"]


def traced(run: Callable[[], object], *, host: bool = True) -> list[Mapping[str, Any]]:
    """The events of torch's profiler while `run` runs; without the `host`'s it slows launches less."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CUDA]
    if host:
        activities.append(torch.profiler.ProfilerActivity.CPU)
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_trace(path)


def kernel_runs(events: Collection[Mapping[str, Any]]) -> tuple[Run, ...]:
    """All kernels in the order of their starts."""
    runs = (_run(event) for event in events if event.get("cat") == "kernel")
    return tuple(sorted(runs, key=lambda run: run.start_ns))


def longest_kernel(events: Collection[Mapping[str, Any]]) -> Run:
    """Of all kernels the one that took longest; ExecutorError without one."""
    runs = kernel_runs(events)
    if not runs:
        raise ExecutorError("the profiler's trace holds no kernel")
    return max(runs, key=lambda run: run.ns)


def runs_by_range(events: Collection[Mapping[str, Any]], names: Collection[str]) -> Runs:
    """For each of `names` the kernels of every time that its range was entered, in order.

    A kernel belongs to the range in which the host launched it (same thread, same correlation id).
    ExecutorError when more than a twentieth of the ranges launched nothing: the trace lacks launches.
    """
    wanted = set(names)
    ranges: dict[Any, list[tuple[float, float, str, int]]] = {}
    result: Runs = {name: [] for name in names}
    for event in sorted(events, key=lambda e: float(e["ts"])):
        if event.get("cat") == "user_annotation" and event["name"] in wanted:
            name, start = event["name"], float(event["ts"])
            ranges.setdefault(event["tid"], []).append(
                (start, start + float(event["dur"]), name, len(result[name]))
            )
            result[name].append(())
    if not ranges:
        raise ExecutorError("the profiler's trace holds none of the program's ranges")
    found: dict[tuple[str, int], list[Run]] = {}
    place = _places(events, ranges)
    for event in events:
        if event.get("cat") in _ON_GPU:
            where = place.get(event.get("args", {}).get("correlation"))
            if where is not None:
                found.setdefault(where, []).append(_run(event))
    for (name, index), runs in found.items():
        result[name][index] = tuple(sorted(runs, key=lambda run: run.start_ns))
    return result


def _places(
    events: Collection[Mapping[str, Any]],
    ranges: Mapping[Any, list[tuple[float, float, str, int]]],
) -> dict[int, tuple[str, int]]:
    """The range of each launch, by correlation id."""
    starts = {tid: [start for start, *_ in entries] for tid, entries in ranges.items()}
    place: dict[int, tuple[str, int]] = {}
    for event in events:
        if event.get("cat") not in _LAUNCHES or event.get("tid") not in ranges:
            continue
        at = float(event["ts"])
        i = bisect_right(starts[event["tid"]], at) - 1
        if i >= 0:
            _, end, name, index = ranges[event["tid"]][i]
            if at <= end:
                place[event["args"]["correlation"]] = (name, index)
    return place


def _run(event: Mapping[str, Any]) -> Run:
    args = event.get("args", {})
    start = 1e3 * float(event["ts"])
    grid, block = args.get("grid", (0,)), args.get("block", (0,))
    threads = _product(block)
    return Run(
        event["name"],
        start,
        start + 1e3 * float(event["dur"]),
        int(args.get("stream", -1)),
        _product(grid),
        threads,
        int(args.get("registers per thread", 0)) * threads,
        int(args.get("shared memory", 0)),
    )


def _product(sizes: Collection[int]) -> int:
    result = 1
    for size in sizes:
        result *= int(size)
    return result
