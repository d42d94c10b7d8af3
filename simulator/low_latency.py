"""Low-latency exchanges: send, flight, receive (rule 6).

A send kernel waits for nobody, and writes once all its CTAs are placed. The flight holds no SMs; it
starts once every rank's send writes, and ends no earlier than the last send and a latency. A receive
kernel holds its SMs until its rank's flight is over, and only then does its own work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import simpy

from models.machine import Cost
from simulator.clock import Clock
from simulator.fluid import Fluid
from simulator.held import Held
from simulator.links import Links, Port


@dataclass(frozen=True, slots=True)
class Arrival:
    """The part of a flight that ends on one rank: its share of the longest part (0 to 1), and the ns
    between the last send and its last byte."""

    share: float
    latency_ns: int


@dataclass(frozen=True, slots=True)
class Flown:
    """A flight to one rank as it went; `send` is that rank's own send kernel, `lost_ns` went to links."""

    rank: int
    start: int
    landed: int
    end: int
    alone_ns: int
    label: str
    lost_ns: int
    send: Held
    last_send: Held


class _Sending:
    """A send that copies in line: it crosses the links itself."""

    def __init__(self, kernel: Held, ports: Mapping[Port, int]) -> None:
        self.kernel = kernel
        self.ports = ports

    def pace(self) -> float:
        return self.kernel.pace()

    def move(self, now: int, share: float) -> None:
        self.kernel.move(now, share)


class Relay:
    """One low-latency exchange. `flight` is None when the sends copy in line, and then `send_ports`
    says what each rank's send takes of the links."""

    def __init__(
        self,
        clock: Clock,
        links: Links,
        flight: Cost | None,
        arrivals: Mapping[int, Arrival],
        ports: Mapping[Port, int],
        send_ports: Mapping[int, Mapping[Port, int]],
        on_flown: Callable[[Flown], None],
    ) -> None:
        self.ports = ports
        self._clock = clock
        self._links = links
        self._flight = flight
        self._arrivals = arrivals
        self._send_ports = send_ports
        self._on_flown = on_flown
        self._sends: dict[int, tuple[int, Held]] = {}
        self._sending: dict[int, _Sending] = {}
        self._unsent = len(arrivals)
        self._start = 0
        self._flights: dict[int, Fluid] = {}
        self._landed: dict[int, int] = {}
        self._arrived: set[int] = set()
        self._receives: dict[int, tuple[int, Held]] = {}
        self._share = 1.0
        self._shared_since = 0
        self._lost_ns = 0.0

    def placed(self, kernel: Held, begin: int) -> None:
        rank = kernel.device.rank
        if kernel.op.role == "recv":
            self._receives[rank] = (begin, kernel)
            self._receive(rank)
            return
        self._sends[rank] = (begin, kernel)
        kernel.open(begin)
        if self._flight is None:
            self._sending[rank] = _Sending(kernel, self._send_ports[rank])
            self._links.add(self._sending[rank])
        elif len(self._sends) == len(self._arrivals):
            self._depart(self._flight)

    def on_links(self, kernel: Held) -> bool:
        if kernel.device.rank in self._sending and kernel.op.role == "send":
            self._links.touch()
            return True
        return False

    def ended(self, kernel: Held) -> None:
        if kernel.op.role == "recv":
            return
        self._unsent -= 1
        if self._flight is None:
            self._links.remove(self._sending.pop(kernel.device.rank))
        if not self._unsent:
            for rank in self._arrivals:
                self._expect(rank)

    def missing(self, kernel: Held) -> list[tuple[int, str]]:
        if kernel.op.role == "send":
            return []
        return [
            (rank, "send")
            for rank in self._arrivals
            if rank not in self._sends or self._sends[rank][1].end < 0
        ]

    def _depart(self, flight: Cost) -> None:
        self._start = self._shared_since = max(begin for begin, _ in self._sends.values())
        for rank, arrival in self._arrivals.items():
            self._flights[rank] = Fluid(
                self._clock, arrival.share, self._start, partial(self._land, rank)
            )
        self._links.add(self)
        for _, send in self._sends.values():
            send.device.touch()

    def pace(self) -> float:
        assert self._flight is not None
        return 1.0 / max(self._flight.ns, 1e-6)

    def move(self, now: int, share: float) -> None:
        self._lose(now)
        self._share = share
        rate = self.pace() * share
        for flight in self._flights.values():
            flight.flow(now, rate)

    def _lose(self, now: int) -> None:
        if now > self._shared_since:
            self._lost_ns += (now - self._shared_since) * (1.0 - self._share)
            self._shared_since = now

    def _land(self, rank: int, _: Fluid) -> None:
        self._lose(self._clock.ns)
        self._landed[rank] = self._clock.ns
        del self._flights[rank]
        if not self._flights:
            self._links.remove(self)
        self._sends[rank][1].device.touch()
        self._expect(rank)

    def _expect(self, rank: int) -> None:
        """The last byte comes when both the flight and the last send, with its latency, are over."""
        if self._unsent or (self._flight is not None and rank not in self._landed):
            return
        now = self._clock.ns
        last = max(kernel.end for _, kernel in self._sends.values())
        wait = max(0, last + self._arrivals[rank].latency_ns - now)
        self._clock.ring(wait, partial(self._arrive, rank))

    def _arrive(self, rank: int, _: simpy.Event) -> None:
        self._arrived.add(rank)
        if self._flight is not None:
            share = self._arrivals[rank].share
            flown = Flown(
                rank,
                self._start,
                self._landed[rank],
                self._clock.ns,
                round(self._flight.ns * share),
                self._flight.label,
                round(self._lost_ns),
                self._sends[rank][1],
                self._last(1),
            )
            self._on_flown(flown)
        self._receive(rank)

    def _last(self, which: int) -> Held:
        """The send that began last (0) or ended last (1)."""
        sends = self._sends.values()
        return max(sends, key=lambda send: (send[0], send[1].end)[which])[1]

    def _receive(self, rank: int) -> None:
        """The receive kernel works once it is placed and everything has come."""
        if rank not in self._receives or rank not in self._arrived:
            return
        begin, kernel = self._receives[rank]
        now = max(begin, self._clock.ns)
        sending = max(send for send, _ in self._sends.values())
        if sending > begin:
            kernel.stalls += (("peer_wait", sending - begin, self._last(0)),)
        if now > max(begin, sending):
            kernel.stalls += (("dependency", now - max(begin, sending), self._last(1)),)
        kernel.open(now)
