"""How much communication ran beside compute, from the kernels of a profiler trace.

A kernel is communication when it is one of DeepEP's or one of our exchanges', their layout (which sends
nothing) apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from executor.calibrate.kernel_times import Run, kernel_runs

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
class Hidden:
    """ns on one rank: communication, and that of it during which compute ran too."""

    communication_ns: float
    hidden_ns: float


def hidden(events: Collection[Mapping[str, Any]], runs: int = 1) -> Hidden:
    """Of all kernels in a trace of `runs` runs, a run."""
    intervals: tuple[list[Interval], list[Interval]] = ([], [])
    for kernel in kernel_runs(events):
        intervals[is_communication(kernel.name)].append((kernel.start_ns, kernel.end_ns))
    compute, communication = (union(found) for found in intervals)
    both = sum(shared(one, compute) for one in communication)
    return Hidden(sum(end - start for start, end in communication) / runs, both / runs)


def last_run(kernels: Sequence[Run]) -> list[Run]:
    """Of kernels in the order of their starts what follows the last gate, timed from its end; of a trace without a gate everything, from the
    first kernel on."""
    gates = [kernel for kernel in kernels if kernel.name.startswith(GATE)]
    origin = gates[-1].end_ns if gates else kernels[0].start_ns
    return [
        replace(k, start_ns=k.start_ns - origin, end_ns=k.end_ns - origin)
        for k in kernels
        if k.start_ns >= origin
    ]


def compact(sides: Sequence[Mapping[str, Sequence[Run]]]) -> dict[str, Any]:
    """Kernels of each schedule on each rank as JSON: `names`, cut short, and `kernels` by schedule
    [rank][kernel] as [name's index, stream, start µs, µs, CTAs], times to 0.1 µs."""
    names: dict[str, int] = {}

    def row(kernel: Run) -> list[float]:
        index = names.setdefault(kernel.name[:NAME_CHARACTERS], len(names))
        start_us, us = (round(ns / 1e3, 1) for ns in (kernel.start_ns, kernel.ns))
        return [index, kernel.stream, start_us, us, kernel.ctas]

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
