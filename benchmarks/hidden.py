"""How much communication ran beside compute, from the kernels of a profiler trace.

A kernel is communication when it is one of DeepEP's or one of our exchanges', their layout (which sends
nothing) apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

Interval = tuple[float, float]
OURS = tuple(
    f"{name}_kernel"
    for name in (
        "dispatch_send", "dispatch_recv", "combine_send", "combine_recv", "notify", "transfer",
        "combine",
    )
)  # fmt: skip
# A case counts as overlapped by measurement when this share of its makespan is communication beside
# compute. Where less is hidden, adding everything up is off by less than the error that is aimed at.
LEAST_SHARE = 0.05
# The kernel that holds every run's streams until all ranks have come (`executor/gate.py`).
GATE = "spin("
NAME_CHARACTERS = 80


@dataclass(frozen=True)
class Kernel:
    """A kernel of a trace: times in µs, its CTAs."""

    name: str
    stream: int
    start_us: float
    us: float
    ctas: int


@dataclass(frozen=True)
class Hidden:
    """ns on one rank: communication, and that of it during which compute ran too."""

    communication_ns: float
    hidden_ns: float


def hidden(events: Iterable[Mapping[str, Any]], runs: int = 1) -> Hidden:
    """Of all kernels in a trace of `runs` runs, a run."""
    intervals: tuple[list[Interval], list[Interval]] = ([], [])
    for event in events:
        if event.get("cat") == "kernel":
            start = float(event["ts"]) * 1e3
            own = (start, start + float(event["dur"]) * 1e3)
            intervals[is_communication(str(event["name"]))].append(own)
    compute, communication = (union(found) for found in intervals)
    both = sum(shared(one, compute) for one in communication)
    return Hidden(sum(end - start for start, end in communication) / runs, both / runs)


def kernels_of(events: Iterable[Mapping[str, Any]]) -> list[Kernel]:
    """All kernels of a trace in the order of their starts."""
    found = []
    for event in events:
        if event.get("cat") == "kernel":
            args = event.get("args", {})
            ctas = prod(int(size) for size in args.get("grid", (0,)))
            times = (float(event["ts"]), float(event["dur"]))
            found.append(Kernel(str(event["name"]), int(args.get("stream", -1)), *times, ctas))
    return sorted(found, key=lambda kernel: (kernel.start_us, kernel.stream, kernel.name))


def last_run(kernels: Sequence[Kernel]) -> list[Kernel]:
    """What follows the last gate, timed from its end; of a trace without a gate everything, from the
    first kernel on."""
    gates = [kernel for kernel in kernels if kernel.name.startswith(GATE)]
    origin = gates[-1].start_us + gates[-1].us if gates else min(k.start_us for k in kernels)
    return [
        Kernel(k.name, k.stream, k.start_us - origin, k.us, k.ctas)
        for k in kernels
        if k.start_us >= origin
    ]


def compact(sides: Sequence[Mapping[str, Sequence[Kernel]]]) -> dict[str, Any]:
    """Kernels of each schedule on each rank as JSON: `names`, cut short, and `kernels` by schedule
    [rank][kernel] as [name's index, stream, start µs, µs, CTAs], times to 0.1 µs."""
    names: dict[str, int] = {}

    def row(kernel: Kernel) -> list[float]:
        index = names.setdefault(kernel.name[:NAME_CHARACTERS], len(names))
        return [index, kernel.stream, round(kernel.start_us, 1), round(kernel.us, 1), kernel.ctas]

    kernels = {
        name: [[row(kernel) for kernel in side[name]] for side in sides] for name in sides[0]
    }
    return {"names": list(names), "kernels": kernels}


def is_communication(name: str) -> bool:
    """Whether the kernel of this name is one of DeepEP's or of ours that exchange."""
    return name in OURS or ("deep_ep" in name and "layout" not in name)


def union(intervals: Collection[Interval]) -> list[Interval]:
    """The same time, each moment once, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def shared(one: Interval, others: Iterable[Interval]) -> float:
    """Time of `one` that lies in any of `others`, which do not meet each other."""
    return sum(max(0.0, min(one[1], end) - max(one[0], start)) for start, end in others)
