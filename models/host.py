"""The speed of a host: what launches take as it was measured beside a case, in place of the profile's.

Launches on one machine take half or twice as long from one minute to the next. Like a clock that is a
condition of the measurement, not a property of the GPU that a profile describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import fmean, median

from models.machine import HostCosts, Machine
from models.measured import spread_of


@dataclass(frozen=True, slots=True)
class HostProbe:
    """A few runs of a fixed program: median ns of a launch by kind of work, `event` included, and where a
    library makes whole calls `dispatch_call`. `spread` is half the range from the 10th to the 90th
    percentile of the runs' speeds, relative; `rank` is whose host it is. ValueError for less than 0."""

    ns: tuple[tuple[str, int], ...]
    spread: float = 0.0
    rank: int = 0

    def __post_init__(self) -> None:
        if self.spread < 0.0 or self.rank < 0 or any(ns < 0 for _, ns in self.ns):
            raise ValueError("a host's times, their spread and its rank are at least 0")


def probed(runs: Sequence[Mapping[str, int]]) -> HostProbe:
    """From the median ns by kind of each run; a run's speed is the median over the kinds of its time over
    that of all runs. ValueError without a run."""
    if not runs:
        raise ValueError("a host is probed by one run or more")
    ns = _medians(runs)
    speeds = [_ratio(run, ns) for run in runs if run]
    return HostProbe(tuple(ns.items()), round(spread_of(speeds) / 2, 4) if speeds else 0.0)


def slowest(ranks: Sequence[Sequence[HostProbe]]) -> int:
    """Which of the ranks has the slowest host, by the probes [rank] before and after a measurement: the
    one with the greatest median over the kinds of its mean time over the median rank's. The first of
    equals. The ranks meet in every exchange, so that this host decides how long a step takes."""
    means = [mean_of(probes) for probes in ranks]
    ns = _medians(means)
    return max(range(len(means)), key=lambda rank: _ratio(means[rank], ns))


def _medians(runs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Median ns of each kind over the runs that have it."""
    times = _by_kind(run.items() for run in runs)
    return {kind: round(median(times[kind])) for kind in sorted(times)}


def _ratio(run: Mapping[str, int], ns: Mapping[str, int]) -> float:
    """The run's time over `ns`, median over its kinds; 0 without any."""
    return median(run[kind] / max(1, ns[kind]) for kind in run) if run else 0.0


def _by_kind(runs: Iterable[Iterable[tuple[str, int]]]) -> dict[str, list[int]]:
    times: dict[str, list[int]] = {}
    for run in runs:
        for kind, ns in run:
            times.setdefault(kind, []).append(ns)
    return times


def shared_out(measured: Mapping[str, int]) -> dict[str, int]:
    """Host costs by kind or class. A whole normal-mode call is shared out over the launches that it
    stands for: a combine is a notify and a transfer; a dispatch is a layout and a transfer more. A set
    that makes no such calls has a cost for each launch."""
    costs = dict(measured)
    call = costs.pop("dispatch_call", 0)
    if "combine" in costs and "notify" not in costs:
        costs["combine"] = costs["notify"] = costs["combine"] // 2
    if call:
        costs["layout"] = costs["dispatch"] = max(0, call - costs.get("notify", 0)) // 2
    return costs


def with_host(profile: HostCosts, measured: Mapping[str, int]) -> tuple[HostCosts, float | None]:
    """The profile's host with the times that were measured (calls shared out), the others scaled by the
    median ratio; and that ratio, None where the profile knows nothing of what was measured."""
    known, own = dict(profile.by_class), shared_out(measured)
    ratios = [own[kind] / known[kind] for kind in own if known.get(kind)]
    if not ratios:
        return profile, None
    ratio = median(ratios)
    scaled = {kind: round(ns * ratio) for kind, ns in known.items()}
    return HostCosts(tuple({**scaled, **own}.items()), profile.error), ratio


def beside(profile: HostCosts, probes: Sequence[HostProbe]) -> tuple[HostCosts, float | None]:
    """The host by the mean of the probes before and after a case, and its ratio to the profile's.

    How far other hosts are from the profile's is no part of it. What is left open is how
    much this one moved, half of the relative difference of the probes, and how much it does so from run
    to run; they are independent. One probe does not tell the first: then the profile's error stays.
    """
    host, ratio = with_host(profile, mean_of(probes))
    if ratio is None or len(probes) < 2:
        return host, ratio
    return replace(host, error=hypot(moved(probes), max(p.spread for p in probes))), ratio


def mean_of(probes: Iterable[HostProbe]) -> dict[str, int]:
    """Mean ns of each kind over the probes that have it."""
    times = _by_kind(probe.ns for probe in probes)
    return {kind: round(fmean(found)) for kind, found in times.items()}


def moved(probes: Sequence[HostProbe]) -> float:
    """Half of the difference of the last probe and the first over their mean, median over the kinds."""
    first, last = dict(probes[0].ns), dict(probes[-1].ns)
    ratios = [last[kind] / first[kind] for kind in first if first[kind] and kind in last]
    ratio = median(ratios) if ratios else 1.0
    return abs(ratio - 1) / (ratio + 1)


def on_host(machine: Machine, probes: Sequence[HostProbe]) -> tuple[Machine, float | None]:
    """The machine with the probed host in place of its profile's, and the ratio of both; the machine as
    it is, and None, without a probe."""
    host, ratio = beside(machine.host, probes)
    return replace(machine, host=host), ratio
