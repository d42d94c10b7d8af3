"""The power limit: what arithmetic gains from the rests that a schedule gives it.

A GPU at its power limit lowers its clock. While an exchange or the host keeps the tensor cores waiting it
draws less, and the kernels that follow run at a higher clock for some time: attention of 8192 tokens takes
1.99 ms on an H200 in layers that rest for a quarter of the time, 2.18 in those that rest for a tenth. A
schedule that hides its exchanges takes these rests away.

    t = T - min(share * T, ns) * min(rest, most)

with T the time under full load; `rest` is what is missing from a load of 1, the share of the time in which
kernels run that are bound by arithmetic, those on fewer SMs by the square root of their share (of no
weight, the share itself and its root, the root makes the takes of an H200's calibration agree best: 1.4 %
instead of 3.1 and 1.7 for attention). Beyond `most` the clock is at its highest.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.work import Work

ROOT = 0.5


@dataclass(frozen=True, slots=True)
class Sheet:
    """Figures of the data sheet: FLOP per ns by dtype, HBM bytes per ns, SMs."""

    flops_per_ns: tuple[tuple[str, float], ...]
    hbm_gbps: float
    num_sms: int

    def bound(self, work: Work) -> bool:
        """Whether the work is bound by arithmetic: at these rates its operations take longer than its
        bytes."""
        known = dict(self.flops_per_ns)
        ns = sum(flops / known[dtype] for dtype, flops in work.flops if dtype in known)
        return ns > work.hbm_bytes / self.hbm_gbps

    def weight(self, work: Work, sms: int) -> float:
        """What a kernel on so many SMs (0: all) adds to the load for each unit of its time."""
        if not self.bound(work):
            return 0.0
        return float(min(1.0, (sms or self.num_sms) / self.num_sms) ** ROOT)


@dataclass(frozen=True, slots=True)
class Gain:
    """What kernels of one kind save for each unit of rest: a `share` of their time, at most `ns`."""

    share: float
    ns: float

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
    `sheet`: the data sheet."""

    most: float
    by_kind: tuple[tuple[str, Gain], ...]
    sheet: Sheet

    def gain(self, work: Work) -> Gain | None:
        """The gain of a work; None where it has none."""
        found = next((gain for kind, gain in self.by_kind if kind == work.kind), None)
        return found if found is not None and self.sheet.bound(work) else None

    def rest(self, load: float) -> float:
        """The rest that counts, of a schedule that is busy with arithmetic for this share of its time."""
        return min(self.most, max(0.0, 1.0 - load))

    def under(self, work: Work, full_ns: float, load: float) -> float:
        """Time of a work in a schedule of this load."""
        gain = self.gain(work)
        return full_ns if gain is None else gain.faster(full_ns, self.rest(load))

    def full(self, work: Work, ns: float, load: float) -> float:
        """Time of a work under full load that took `ns` in a schedule of this load."""
        gain = self.gain(work)
        return ns if gain is None else gain.full(ns, self.rest(load))
