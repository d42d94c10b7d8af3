"""Launch gaps, achievable HBM bandwidth and what this machine is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from statistics import median

import torch

from executor.calibrate.plan import Task
from executor.calibrate.store import Record
from executor.cuda import device_facts
from executor.job import GpuSet
from executor.spin import Spin
from executor.spin_gaps import measure_figures

COPY_BYTES = 4 * 2**30
COPIES = 8
LIBRARIES = ("triton", "tokenspeed_deepep", "deep_ep", "tokenspeed_deepgemm", "deep_gemm")


@dataclass
class GapBench:
    """Measures the `gaps` task on this rank."""

    rank: int
    ranks: int
    kernels: GpuSet = "production"

    def measure(self, task: Task) -> Sequence[Record]:
        """Gaps by spin kernels, the bandwidth of a large copy, versions."""
        spin = Spin(self.rank, self.ranks)
        figures = measure_figures(spin, self.rank)
        gaps = asdict(figures.gaps)
        gaps.pop("graph_launch")
        gaps.pop("turn")  # which front ends the libraries' own streams share is not known
        machine = dict(device_facts()) | {"ranks": self.ranks, "libraries": library_versions()}
        machine |= {"kernels": self.kernels, "clock_error_ns": spin.clock_error_ns}
        spin.close()
        return [
            {"what": "machine", **machine},
            {"what": "gaps", "ns": gaps},
            {"what": "hbm", "gbps": round(copy_gbps(), 1), "by": "copy"},
        ]


def library_versions() -> dict[str, str]:
    """Versions of the kernel libraries that are installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def copy_gbps() -> float:
    """Bytes read plus written per ns of a large copy, the median of a few."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(COPIES + 1)]
    marks[0].record()
    for mark in marks[1:]:
        target.copy_(source)
        mark.record()
    torch.cuda.synchronize()
    times = [float(a.elapsed_time(b)) * 1e6 for a, b in pairwise(marks)]
    return 2 * COPY_BYTES / median(times[1:])
