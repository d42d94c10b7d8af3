"""How much communication ran beside compute, from the kernels of a profiler trace.

A kernel is communication when it is one of DeepEP's or one of our exchanges', their layout (which sends
nothing) apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
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
