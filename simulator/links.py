"""Links: what transfers take of each rank's ports, and how ports that are short are shared (rule 7).

Traffic is aggregated per port, so a transfer among thousands of flows costs a handful of numbers.
A transfer moves as fast as its slowest port lets it, and never faster than alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from models.machine import Fabric
from schedules.program import Traffic

NVLINK_OUT, NVLINK_IN, NIC_OUT, NIC_IN = range(4)
Port = tuple[int, int]  # rank, one of the four above
_SATURATED = 1e-12


class Transfer(Protocol):
    """Something on the links: bytes per port over its whole course, and shares of it per ns alone."""

    ports: Mapping[Port, int]

    def pace(self) -> float:
        """Share of the whole per ns if links were free."""
        ...

    def move(self, now: int, share: float) -> None:
        """Go on at `share` (0 to 1) of that pace."""
        ...


def port_bytes(
    matrix: Traffic,
    ranks: Sequence[int],
    senders: Iterable[int],
    watched: Sequence[int],
    fabric: Fabric,
) -> dict[Port, int]:
    """Bytes through each port of the `watched` ranks when `senders` send their rows of `matrix`, whose
    indices are positions in `ranks`. Loopback crosses no port."""
    ports: dict[Port, int] = {}
    watch = set(watched)
    node = [fabric.node(rank) for rank in ranks]
    sending = set(senders)
    sources = [i for i, source in enumerate(ranks) if source in sending]
    for at, rank in enumerate(ranks):
        if rank not in watch:
            continue
        if rank in sending:
            _add(ports, rank, NVLINK_OUT, NIC_OUT, at, node, enumerate(matrix[at]))
        _add(ports, rank, NVLINK_IN, NIC_IN, at, node, ((i, matrix[i][at]) for i in sources))
    return ports


def _add(
    ports: dict[Port, int],
    rank: int,
    inside: int,
    across: int,
    at: int,
    node: Sequence[int],
    peers: Iterable[tuple[int, int]],
) -> None:
    """Bytes between `rank`, at position `at`, and its peers, on the ports inside and across nodes."""
    for peer, nbytes in peers:
        if peer != at and nbytes:
            port = (rank, inside if node[peer] == node[at] else across)
            ports[port] = ports.get(port, 0) + nbytes


class Links:
    """All transfers under way, and the ports that they share."""

    def __init__(self, fabric: Fabric) -> None:
        self._nominal = {
            NVLINK_OUT: fabric.nvlink_gbps,
            NVLINK_IN: fabric.nvlink_gbps,
            NIC_OUT: fabric.nic_gbps,
            NIC_IN: fabric.nic_gbps,
        }
        self._transfers: list[Transfer] = []
        self._now: list[float] = []
        self._changed = False

    def add(self, transfer: Transfer) -> None:
        """A transfer starts."""
        self._transfers.append(transfer)
        self._changed = True

    def remove(self, transfer: Transfer) -> None:
        """A transfer has ended."""
        self._transfers.remove(transfer)
        self._changed = True

    @property
    def busy(self) -> bool:
        """Whether any transfer is under way."""
        return bool(self._transfers)

    def touch(self) -> None:
        """Some transfer's pace may have changed."""
        self._changed = True

    def share(self, now: int) -> None:
        """Give every transfer its share of its pace, if anything has changed."""
        if self._changed:
            self._changed = False
            paces = [transfer.pace() for transfer in self._transfers]
            shares = self._shares(paces)
            self._now = [share * pace for share, pace in zip(shares, paces, strict=True)]
            for transfer, share in zip(self._transfers, shares, strict=True):
                transfer.move(now, share)

    def _shares(self, paces: Sequence[float]) -> list[float]:
        demands = [
            {port: nbytes * pace for port, nbytes in transfer.ports.items()}
            for transfer, pace in zip(self._transfers, paces, strict=True)
        ]
        ports = {port for demand in demands for port in demand}
        return max_min_shares(demands, {port: self._nominal[port[1]] for port in sorted(ports)})

    def gbps(self, port: Port) -> float:
        """Bytes per ns through a port now."""
        moving = zip(self._transfers, self._now, strict=True)
        return sum(transfer.ports.get(port, 0) * rate for transfer, rate in moving)


def max_min_shares(
    demands: Sequence[Mapping[Port, float]], capacities: Mapping[Port, float]
) -> list[float]:
    """Share of its demand (bytes per ns by port) that each transfer gets, max-min fairly.

    Progressive filling: the port that allows its users the least settles their shares; what they use
    elsewhere is then taken off the other ports, and the rest goes on.
    """
    shares = [1.0] * len(demands)
    left = dict(capacities)
    open_ = set(range(len(demands)))
    while open_:
        worst, limited = 1.0 - _SATURATED, {}
        for port, capacity in left.items():
            users = {i: demands[i][port] for i in sorted(open_) if demands[i].get(port)}
            limits = _waterfill(users, capacity)
            if limits and min(limits.values()) < worst:
                worst, limited = min(limits.values()), limits
        if not limited:
            return shares
        for i in [i for i, share in limited.items() if share <= worst + _SATURATED]:
            shares[i] = limited[i]
            open_.remove(i)
            for port, gbps in demands[i].items():
                left[port] = max(0.0, left[port] - gbps * shares[i])
    return shares


def _waterfill(users: Mapping[int, float], capacity: float) -> dict[int, float]:
    """Share of its demand for each user of one port: equal bytes per ns, no more than it asks for."""
    shares: dict[int, float] = {}
    left, waiting = capacity, len(users)
    for i in sorted(users, key=lambda i: (users[i], i)):
        gets = min(users[i], left / waiting)
        shares[i] = gets / users[i]
        left -= gets
        waiting -= 1
    return shares
