"""Closed forms of a kernel's time, and how it changes with the SMs that it holds.

    t = floor + ((flops / (compute * peak))^p + (bytes / (memory * bandwidth))^p)^(1/p)

with `compute` and `memory` the fractions of the data-sheet peak and bandwidth that the kernel reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import InputError
from models.machine import CostLabel
from models.work import GridKind, Work


@dataclass(frozen=True, slots=True)
class Peaks:
    """Data-sheet figures of a GPU: FLOP per ns by dtype, HBM bytes per ns, SMs, the SMs that saturate
    HBM (fewer get a proportional share of the bandwidth), and the coefficient of the tail law, of static
    kernels and by kind of work."""

    flops_per_ns: tuple[tuple[str, float], ...]
    hbm_gbps: float
    sms: int
    saturating_sms: int
    static_tail: float = 1.0
    tails: tuple[tuple[str, float], ...] = ()

    def rate(self, dtype: str) -> float:
        """FLOP per ns at the peak of `dtype`; InputError names those there are."""
        for name, rate in self.flops_per_ns:
            if name == dtype:
                return rate
        known = ", ".join(name for name, _ in self.flops_per_ns)
        raise InputError("hardware profile", "gpu.peak_tflops", dtype, known)


@dataclass(frozen=True, slots=True)
class Form:
    """Coefficients of one kernel kind; `error` is the relative error that the source states."""

    floor_ns: float
    compute: float
    memory: float
    p: float
    error: float
    label: CostLabel

    def ns(self, work: Work, peaks: Peaks, sms: int, grid: GridKind) -> float:
        """Time of `work` on `sms` SMs."""
        compute_ns = sum(flops / (self.compute * peaks.rate(dtype)) for dtype, flops in work.flops)
        memory_ns = work.hbm_bytes / (self.memory * peaks.hbm_gbps)
        compute_ns *= _compute_slowdown(work, peaks, sms, grid)
        memory_ns *= max(1.0, peaks.saturating_sms / sms)
        return self.floor_ns + p_norm(compute_ns, memory_ns, self.p)


def p_norm(a: float, b: float, p: float) -> float:
    """(a^p + b^p)^(1/p) without overflow; 0 when both are 0."""
    most = max(a, b)
    if most <= 0.0:
        return 0.0
    return float(most * ((a / most) ** p + (b / most) ** p) ** (1.0 / p))


def tiles(work: Work, tile_m: int = 128, tile_n: int = 128) -> int:
    """Output tiles of a (grouped) GEMM; 0 for other kernels."""
    sizes = dict(work.dims)
    if "n" not in sizes:
        return 0
    rows = sizes.get("padded", sizes.get("m", 0))
    return sizes.get("heads", 1) * -(-rows // tile_m) * -(-sizes["n"] // tile_n)


def tail_law(a: float, share: float) -> float:
    """Time of a tile while this share of the SMs computes, over that when all do. `a` is what is left
    of it when hardly any do; 1 is no speed-up."""
    return float((a + (1 - a) * share**4) ** 0.25)


def _compute_slowdown(work: Work, peaks: Peaks, sms: int, grid: GridKind) -> float:
    """Compute time on `sms` SMs over that on all. A static grid takes whole tiles per SM, the others are
    inversely proportional; and each tile takes the less time the fewer SMs compute, by the tail law of
    the kind, or of static kernels where the kind has none."""
    tails, share = dict(peaks.tails), sms / peaks.sms
    count = tiles(work) if grid == "static" else 0
    if not count:
        return tail_law(tails.get(work.kind, 1.0), share) / share
    rounds = -(-count // sms) / -(-count // peaks.sms)
    return rounds * tail_law(tails.get(work.kind, peaks.static_tail), share)
