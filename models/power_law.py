"""The power limit: what arithmetic, and SMs that copy, gain from the rests that a schedule gives them.

A GPU at its power limit lowers its clock. While an exchange or the host keeps the tensor cores waiting it
draws less, and the kernels that follow run at a higher clock for some time: attention of 12288 tokens takes
2.24 ms on an H200 in layers of load 0.61, 2.66 in those of 0.75 (`benchmarks/calibration_takes.py`). A
schedule that hides its exchanges takes these rests away.

    t = T - min(share * T, ns) * min(rest, most)

with T the time under full load; `rest` is what is missing from a load of 1, the share of the GPU's SM-time
that goes to kernels bound by arithmetic. Beyond `most` the clock is at its highest, and times are those *at
rest*, which profiles state.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.work import Work

# Arithmetic has to take more than this share of the time that a kernel's bytes take. Attention of 448 tokens,
# which mixes both, is above it, GEMMs of few rows are below.
BOUND_SHARE = 0.5
# Exchanges whose SMs copy rows, each as fast as its clock lets it.
COPIES = ("dispatch", "combine")


@dataclass(frozen=True, slots=True)
class Sheet:
    """Figures of the data sheet: FLOP per ns by dtype, HBM bytes per ns, SMs."""

    flops_per_ns: tuple[tuple[str, float], ...]
    hbm_gbps: float
    num_sms: int

    def bound(self, work: Work) -> bool:
        """Whether the work counts as bound by arithmetic: at these rates its operations take more than
        `BOUND_SHARE` of the time of its bytes."""
        known = dict(self.flops_per_ns)
        ns = sum(flops / known[dtype] for dtype, flops in work.flops if dtype in known)
        return ns > BOUND_SHARE * work.hbm_bytes / self.hbm_gbps

    def follows(self, work: Work) -> bool:
        """Whether a kernel's time goes with the SMs' clock: bound by arithmetic, or SMs that copy."""
        return work.kind in COPIES or self.bound(work)

    def weight(self, work: Work, sms: int) -> float:
        """What a kernel on so many SMs (0: all) adds to the load for each unit of its time."""
        if not self.bound(work):
            return 0.0
        return min(1.0, (sms or self.num_sms) / self.num_sms)


@dataclass(frozen=True, slots=True)
class Gain:
    """What kernels of one kind save for each unit of rest: a `share` of their time, at most `ns`; `error`
    is the relative uncertainty of that."""

    share: float
    ns: float
    error: float = 0.0

    def faster(self, full_ns: float, rest: float) -> float:
        """Time in a schedule with this rest, from that under full load."""
        return full_ns - min(self.share * full_ns, self.ns) * rest

    def full(self, ns: float, rest: float) -> float:
        """Time under full load, from that in a schedule with this rest."""
        by_share = ns / (1.0 - self.share * rest)
        return min(by_share, ns + self.ns * rest)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """`by_kind`: the gain of each kind of work that has one; `most`: the largest rest that counts;
    `sheet`: the data sheet; `measured`: the load of the layers in which times were taken, median."""

    most: float
    by_kind: tuple[tuple[str, Gain], ...]
    sheet: Sheet
    measured: float = 0.0

    def gain(self, work: Work) -> Gain | None:
        """The gain of a work; None where it has none."""
        found = next((gain for kind, gain in self.by_kind if kind == work.kind), None)
        return found if found is not None and self.sheet.follows(work) else None

    def under(self, work: Work, ns: float, load: float) -> float:
        """Time of a work in a schedule of this load, from that at rest."""
        gain = self.gain(work)
        if gain is None:
            return ns
        return gain.faster(gain.full(ns, self.most), self._rest(load))

    def at_rest(self, work: Work, ns: float, load: float) -> float:
        """Time of a work at rest that took `ns` in a schedule of this load."""
        gain = self.gain(work)
        if gain is None:
            return ns
        return gain.faster(gain.full(ns, self._rest(load)), self.most)

    def doubt(self, work: Work, ns: float, load: float) -> float:
        """Relative uncertainty of a work's time in a schedule of this load, from that at rest: what the law
        makes of the way from the load in which times were taken, as uncertain as its gain is."""
        gain = self.gain(work)
        if gain is None:
            return 0.0
        taken, here = self.under(work, ns, self.measured), self.under(work, ns, load)
        return gain.error * abs(here - taken) / here

    def slower(self, work: Work, ns: float) -> float:
        """By how much a work of this time at rest is slower under full load, relative; 0 without a gain."""
        return self.under(work, ns, 1.0) / ns - 1.0

    def _rest(self, load: float) -> float:
        return min(self.most, max(0.0, 1.0 - load))
