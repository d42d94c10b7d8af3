"""One schedule of one group, predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import median
from typing import Any

from benchmarks.hidden import LEAST_SHARE
from models.host import HostProbe
from moe_overlap.uncertain import Prediction

PUBLIC_NAME = "public profile"


@dataclass(frozen=True)
class Case:
    """ns of all layers, measured [repeat] and predicted; `others` are the plain predictors and the
    engine on the public profile. `noise_ns` is the predicted uncertainty of the difference to the
    group's first schedule. `hidden_share` is the communication that ran beside compute over the
    makespan, by the profiler; None where it was not measured. `mhz` is the SM clock [repeat]. `host` is
    the probed host's time over the profile's, None where the prediction is with the profile's own."""

    group: str
    schedule: str
    layers: int
    overlapped: bool
    times_ns: tuple[int, ...]
    first_times_ns: tuple[int, ...]
    predicted: Prediction
    first_ns: float
    noise_ns: float
    others: Mapping[str, float]
    first_others: Mapping[str, float]
    ranks: int = 2
    unseen: bool = False
    hidden_share: float | None = None
    mhz: tuple[float, ...] = ()
    host: float | None = None

    @property
    def kind(self) -> str:
        """What limits it: prefill, decode in a CUDA graph, or decode launched op by op."""
        if "prefill" in self.group:
            return "prefill"
        return "decode, eager" if "eager" in self.group else "decode, graph"

    @property
    def measured_ns(self) -> float:
        """The median."""
        return median(self.times_ns)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.ns / self.measured_ns - 1

    @property
    def gain(self) -> float:
        """Measured gain over the first schedule."""
        return median(self.first_times_ns) / self.measured_ns - 1

    @property
    def predicted_gain(self) -> float:
        """Predicted gain over the first schedule."""
        return self.first_ns / self.predicted.ns - 1

    @property
    def apart(self) -> bool:
        """Whether the repeats of both schedules do not overlap."""
        first = self.first_times_ns
        return max(self.times_ns) < min(first) or min(self.times_ns) > max(first)

    @property
    def right(self) -> bool:
        """Whether the predicted gain has the measured one's sign."""
        return (self.predicted_gain > 0) == (self.gain > 0)

    @property
    def tie(self) -> bool:
        """Whether the predicted difference is inside its uncertainty."""
        return abs(self.first_ns - self.predicted.ns) <= self.noise_ns

    @property
    def in_band(self) -> bool:
        """Whether the band holds the measured median."""
        low, high = self.predicted.band_ns
        return low <= self.measured_ns <= high

    @property
    def hides(self) -> bool:
        """Whether communication was hidden by measurement; see `benchmarks.hidden.LEAST_SHARE`."""
        return self.hidden_share is not None and self.hidden_share >= LEAST_SHARE

    def by(self, predictor: str) -> tuple[float, float]:
        """ns of this case and of its first schedule by another predictor."""
        return self.others[predictor], self.first_others[predictor]


def cases(
    predicted: Iterable[Mapping[str, Any]], measured: Iterable[Mapping[str, Any]]
) -> list[Case]:
    """Every case that was both predicted and measured, in the order of the predictions."""
    times: dict[str, Mapping[str, Any]] = {}
    shares: dict[str, Mapping[str, Sequence[float]]] = {}
    for entry in measured:
        if "makespans_ns" in entry:
            times[entry["group"]] = entry
        if "hidden" in entry:
            shares[entry["group"]] = entry["hidden"]
    records = list(predicted)
    firsts = {r["group"]: r for r in reversed(records)}
    return [
        _case(r, firsts[r["group"]], times[r["group"]], shares.get(r["group"], {}))
        for r in records
        if r["group"] in times
    ]


def _case(
    record: Mapping[str, Any],
    first: Mapping[str, Any],
    entry: Mapping[str, Any],
    shares: Mapping[str, Sequence[float]],
) -> Case:
    name = record["schedule"]
    makespans = entry["makespans_ns"]
    own = _prediction(record)
    hidden = shares[name][1] / median(makespans[name]) if name in shares else None
    return Case(
        record["group"],
        name,
        record["layers"],
        record["overlapped"],
        tuple(makespans[name]),
        tuple(makespans[first["schedule"]]),
        own,
        first["ns"],
        own.noise_against(_prediction(first)),
        record["others"],
        first["others"],
        record["ranks"],
        record["unseen"],
        hidden,
        clocks(entry, name),
        record.get("host"),
    )


def probes_of(entry: Mapping[str, Any]) -> tuple[HostProbe, ...]:
    """The probes of the host beside a group's repeats, of rank 0's where a file does not say whose; () in
    files of before there were any."""
    found = entry.get("probe", ())
    spreads = entry.get("probe_spread", (0.0,) * len(found))
    ranks = entry.get("probe_rank", (0,) * len(found))
    return tuple(
        HostProbe(tuple(sorted(ns.items())), spread, rank)
        for ns, spread, rank in zip(found, spreads, ranks, strict=True)
    )


def clocks(entry: Mapping[str, Any], schedule: str) -> tuple[float, ...]:
    """SM clock of each repeat as the driver told it at the end of launching, on the slowest rank; of rank
    0 in older files; empty where it was not kept."""
    told = entry.get("clocks", {}).get(schedule, ())
    if not told or not told[0]:
        return ()
    ranks = [told] if isinstance(told[0][0], int) else told
    known = (repeat for repeat in zip(*ranks, strict=True) if all(repeat))
    return tuple(float(min(sample[0] for sample in repeat)) for repeat in known)


def _prediction(record: Mapping[str, Any]) -> Prediction:
    """Older files do not state the phase: it is what their band has beyond its noise."""
    ns, doubts = record["ns"], record["doubt_ns"]
    if "phase" in record:
        low, high = record["phase"]
        return Prediction(ns, doubts, (low, high))
    noise = hypot(*doubts.values())
    return Prediction(
        ns, doubts, ((record["low_ns"] + noise) / ns, (record["high_ns"] - noise) / ns)
    )
