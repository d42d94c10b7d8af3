"""Step functions of time that the pictures show under the lanes: SMs, HBM and links of each rank."""

from __future__ import annotations

from collections.abc import Sequence

from schedules.timeline import Counter
from simulator.device import Device
from simulator.links import NIC_IN, NIC_OUT, NVLINK_IN, NVLINK_OUT, Links

NAMES = ("sms_resident", "sms_spinning", "hbm_gbps", "nvlink_gbps", "nic_gbps")
Values = tuple[int, int, float, float, float]


class Counters:
    """Values of all counters of every rank, kept where any of them changes; of a link the busier way."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._points: dict[int, list[tuple[int, Values]]] = {}

    def note(self, now: int, device: Device) -> None:
        """Take all counters of one rank at `now` ns."""
        rank = device.rank
        spinning = 0
        for kernel in device.running:
            if not kernel.works():
                spinning += kernel.sms
        nvlink = nic = 0.0
        if self._links.busy:
            gbps = self._links.gbps
            nvlink = max(gbps((rank, NVLINK_OUT)), gbps((rank, NVLINK_IN)))
            nic = max(gbps((rank, NIC_OUT)), gbps((rank, NIC_IN)))
        values = (device.room.resident_sms, spinning, device.hbm_gbps, nvlink, nic)
        points = self._points.get(rank)
        if points is None:
            self._points[rank] = [(now, values)]
        elif points[-1][0] == now:
            points[-1] = (now, values)
        elif points[-1][1] != values:
            points.append((now, values))

    def result(self) -> tuple[Counter, ...]:
        """All counters by rank and name; those that stay 0 are left out."""
        counters: list[Counter] = []
        for rank, points in sorted(self._points.items()):
            times, values = zip(*points, strict=True)
            columns = zip(NAMES, zip(*values, strict=True), strict=True)
            counters += [Counter(name, rank, _steps(times, c)) for name, c in columns if any(c)]
        return tuple(counters)


def _steps(times: Sequence[int], values: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """One counter's points, only where it changes; bytes per ns to three decimals."""
    steps: list[tuple[int, float]] = []
    last: float | None = None
    for now, value in zip(times, values, strict=True):
        if value != last:
            last = value
            steps.append((now, value if isinstance(value, int) else round(value, 3)))
    return tuple(steps)
