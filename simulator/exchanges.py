"""Exchanges whose ranks meet: kernels that hold their SMs while they wait for their peers (rule 6).

In each role of a normal exchange or collective (notify, whole) the kernels of all ranks progress
together, from the moment when the last of them is placed, at the pace of the slowest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from simulator.clock import Clock
from simulator.fluid import Fluid
from simulator.held import Held
from simulator.links import Links, Port


class Gate(Protocol):
    """What a kernel of an exchange goes through between its placement and its work."""

    def placed(self, kernel: Held, begin: int) -> None:
        """The kernel holds all its SMs from `begin` on."""
        ...

    def on_links(self, kernel: Held) -> bool:
        """Whether its progress is set by the links (and not by the kernel alone)."""
        ...

    def ended(self, kernel: Held) -> None:
        """The kernel has ended."""
        ...

    def missing(self, kernel: Held) -> list[tuple[int, str]]:
        """(rank, role) of the kernels that it waits for, for the report of a deadlock."""
        ...


class Meeting:
    """One role of a normal exchange: the kernels of all ranks, which progress as one."""

    def __init__(
        self,
        clock: Clock,
        links: Links,
        role: str,
        ranks: Sequence[int],
        ports: Mapping[Port, int],
    ) -> None:
        self.ports = ports
        self._clock = clock
        self._links = links
        self._role = role
        self._ranks = ranks
        self._kernels: list[tuple[int, Held]] = []
        self._fluid = Fluid(clock, 1.0, 0, lambda _: self._end())
        self._share = 1.0
        self._shared_since = 0
        self._lost_ns = 0.0

    def placed(self, kernel: Held, begin: int) -> None:
        self._kernels.append((begin, kernel))
        if len(self._kernels) == len(self._ranks):
            self._open()

    def _open(self) -> None:
        start, last = max(self._kernels, key=lambda item: item[0])
        for begin, kernel in self._kernels:
            if start > begin:
                kernel.stalls += (("peer_wait", start - begin, last),)
            kernel.open(start)
        self._fluid.since = self._shared_since = start
        self._links.add(self)

    def on_links(self, kernel: Held) -> bool:
        self._links.touch()
        return True

    def pace(self) -> float:
        return min(kernel.pace() for _, kernel in self._kernels)

    def move(self, now: int, share: float) -> None:
        self._lose(now)
        self._share = share
        self._fluid.flow(now, self.pace() * share)

    def _lose(self, now: int) -> None:
        if now > self._shared_since:
            self._lost_ns += (now - self._shared_since) * (1.0 - self._share)
            self._shared_since = now

    def _end(self) -> None:
        self._lose(self._clock.ns)
        self._links.remove(self)
        for _, kernel in self._kernels:
            if self._lost_ns >= 0.5:
                kernel.stalls += (("link_wait", round(self._lost_ns), None),)
            kernel.device.finish(kernel)

    def ended(self, kernel: Held) -> None:
        """Nothing more: `_end` has ended them all."""

    def missing(self, kernel: Held) -> list[tuple[int, str]]:
        here = {peer.device.rank for _, peer in self._kernels}
        return [(rank, self._role) for rank in self._ranks if rank not in here]
