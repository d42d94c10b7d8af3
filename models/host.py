"""The speed of a host: what launches take as it was measured beside a case, in place of the profile's.

Launches on one machine take half or twice as long from one minute to the next. Like a clock that is a
condition of the measurement, not a property of the GPU that a profile describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt
from statistics import median

from models.machine import HostCosts, Machine
from models.measured import spread_of


@dataclass(frozen=True, slots=True)
class HostProbe:
    """A few runs of a fixed program: ns of a launch by kind of work, the mean of a run and the median of the
    runs, `event` included, and where a library makes whole calls `dispatch_call`. `spread` is half the range
    from the 10th to the 90th percentile of the runs' speeds, relative; `rank` is whose host it is. ValueError
    for less than 0."""

    ns: tuple[tuple[str, int], ...]
    spread: float = 0.0
    rank: int = 0

    def __post_init__(self) -> None:
        if self.spread < 0.0 or self.rank < 0 or any(ns < 0 for _, ns in self.ns):
            raise ValueError("a host's times, their spread and its rank are at least 0")


def probed(runs: Sequence[Mapping[str, int]]) -> HostProbe:
    """From the mean ns by kind of each run; a run's speed is the median over the kinds of its time over
    that of all runs. ValueError without a run."""
    if not runs:
        raise ValueError("a host is probed by one run or more")
    ns = _medians(runs)
    speeds = [_ratio(run, ns) for run in runs if run]
    return HostProbe(tuple(ns.items()), round(spread_of(speeds) / 2, 4) if speeds else 0.0)


def slowest(ranks: Sequence[HostProbe]) -> HostProbe:
    """Of the probes of all ranks at one moment that of the slowest host: the one with the greatest median
    over the kinds of its time over the median rank's. The first of equals. The ranks meet in every
    exchange, so that this host decides how long a step takes."""
    ns = middle_of(ranks)
    return max(ranks, key=lambda probe: _ratio(dict(probe.ns), ns))


def middle_of(probes: Iterable[HostProbe]) -> dict[str, int]:
    """Median ns of each kind over the probes that have it."""
    return _medians(dict(probe.ns) for probe in probes)


def _medians(runs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    times: dict[str, list[int]] = {}
    for run in runs:
        for kind, ns in run.items():
            times.setdefault(kind, []).append(ns)
    return {kind: round(median(times[kind])) for kind in sorted(times)}


def _ratio(run: Mapping[str, int], ns: Mapping[str, int]) -> float:
    """The run's time over `ns`, median over its kinds; 0 without any."""
    return median(run[kind] / max(1, ns[kind]) for kind in run) if run else 0.0


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
    """The host by the median of the probes beside a case, in the order in which they were made, and its
    ratio to the profile's.

    How far other hosts are from the profile's is no part of it. What is left open is how
    much this one moved, and how much it does so from run to run; they are independent. One probe does not
    tell the first, nor do probes that share no kind of launch: then the profile's error stays. Empty ones
    do not count.
    """
    probes = [probe for probe in probes if probe.ns]
    host, ratio = with_host(profile, middle_of(probes))
    if ratio is None or len(probes) < 2 or not _shared(probes):
        return host, ratio
    return replace(host, error=hypot(moved(probes), max(p.spread for p in probes))), ratio


def moved(probes: Sequence[HostProbe]) -> float:
    """How far the median host is from that of the runs between the probes: two, before and after,
    leave half of their difference, over their mean; of n it is half the range from the 10th to the 90th
    percentile of their speeds over the root of n - 1. Only kinds that all probes have tell."""
    ns, shared = middle_of(probes), _shared(probes)
    speeds = [_ratio({k: dict(probe.ns)[k] for k in shared}, ns) for probe in probes]
    return spread_of(speeds) / 2 / sqrt(len(probes) - 1)


def _shared(probes: Iterable[HostProbe]) -> list[str]:
    """Kinds that all of them have, in order."""
    return sorted(set.intersection(*({kind for kind, _ in probe.ns} for probe in probes)))


def on_host(machine: Machine, probes: Sequence[HostProbe]) -> tuple[Machine, float | None]:
    """The machine with the probed host in place of its profile's, and the ratio of both; the machine as
    it is, and None, without a probe."""
    host, ratio = beside(machine.host, probes)
    return replace(machine, host=host), ratio
