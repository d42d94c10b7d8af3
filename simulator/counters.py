"""Step functions of time that the pictures show under the lanes: SMs, HBM and links of each rank."""

from __future__ import annotations

from schedules.timeline import Counter
from simulator.device import Device
from simulator.kernels import Held
from simulator.links import NIC_IN, NIC_OUT, NVLINK_IN, NVLINK_OUT, Links

NAMES = ("sms_resident", "sms_spinning", "hbm_gbps", "nvlink_gbps", "nic_gbps")


class Counters:
    """Values of every counter of every rank, kept where they change. Links count the busier way."""

    def __init__(self) -> None:
        self._points: dict[tuple[int, str], list[tuple[int, float]]] = {}

    def note(self, now: int, device: Device, links: Links) -> None:
        """Take all counters of one rank at `now` ns."""
        rank = device.rank
        spinning = [k for k in device.running if isinstance(k, Held) and not k.works()]
        nvlink = max(links.gbps((rank, NVLINK_OUT)), links.gbps((rank, NVLINK_IN)))
        nic = max(links.gbps((rank, NIC_OUT)), links.gbps((rank, NIC_IN)))
        values = (
            float(device.room.resident_sms),
            float(sum(kernel.sms for kernel in spinning)),
            round(device.hbm_gbps, 3),
            round(nvlink, 3),
            round(nic, 3),
        )
        for name, value in zip(NAMES, values, strict=True):
            points = self._points.setdefault((rank, name), [])
            if points and points[-1][0] == now:
                points.pop()
            if not points or points[-1][1] != value:
                points.append((now, value))

    def result(self) -> tuple[Counter, ...]:
        """All counters by rank and name; those that stayed 0 are left out."""
        return tuple(
            Counter(name, rank, tuple(points))
            for (rank, name), points in sorted(self._points.items())
            if any(value for _, value in points)
        )
