"""The exchanges of a program among the simulated ranks: built when first used, shared by all members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.machine import Machine
from models.work import Grid
from schedules.program import Exchange, Program, RankClass, Traffic
from simulator.clock import Clock
from simulator.exchanges import Gate, Meeting
from simulator.links import Links, Port, port_bytes
from simulator.low_latency import Arrival, Flown, Relay
from simulator.prices import Prices


class Exchanges:
    """Gates by exchange and role.

    `simulated` maps each simulated rank to the class it stands for: itself alone when unfolded.
    """

    def __init__(
        self,
        clock: Clock,
        program: Program,
        machine: Machine,
        prices: Prices,
        links: Links,
        simulated: dict[int, RankClass],
        on_flown: Callable[[str, Flown], None],
    ) -> None:
        self._clock = clock
        self._machine = machine
        self._prices = prices
        self._links = links
        self._simulated = simulated
        self._on_flown = on_flown
        self._by_name = {exchange.name: exchange for exchange in program.exchanges}
        self._gates: dict[tuple[str, str], Gate] = {}
        self._members: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._ports: dict[tuple[int, tuple[int, ...], int | None], dict[Port, int]] = {}
        self._into: dict[int, list[int]] = {}

    def named(self, name: str) -> Exchange:
        """The exchange called `name`; ValueError when the program has none."""
        exchange = self._by_name.get(name)
        if exchange is None:
            known = ", ".join(self._by_name) or "none"
            raise ValueError(f"an op names exchange {name!r}; the program has {known}")
        return exchange

    def gate(self, name: str, role: str, rank: int) -> Gate:
        """The gate of one role; ValueError when `rank` is not in the exchange."""
        exchange = self.named(name)
        if rank not in exchange.ranks:
            raise ValueError(
                f"rank {rank} launches a kernel of exchange {name!r}, whose ranks are {exchange.ranks}"
            )
        key = (name, "relay" if role in ("send", "recv") else role)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = (
                self._relay(exchange) if key[1] == "relay" else self._meeting(exchange, role)
            )
        return gate

    def _meeting(self, exchange: Exchange, role: str) -> Meeting:
        ports = self._port_bytes(exchange) if role == "whole" else {}
        return Meeting(self._clock, self._links, role, self._ranks(exchange), ports)

    def _relay(self, exchange: Exchange) -> Relay:
        ranks = self._ranks(exchange)
        flight = None
        if exchange.flight is not None:
            flight = self._prices.alone(exchange.flight, Grid(), self._machine.num_sms)
        name = exchange.name
        return Relay(
            self._clock,
            self._links,
            flight,
            self._arrivals(exchange, ranks),
            self._port_bytes(exchange),
            {rank: self._port_bytes(exchange, rank) for rank in ranks} if flight is None else {},
            lambda flown: self._on_flown(name, flown),
        )

    def _ranks(self, exchange: Exchange) -> tuple[int, ...]:
        """Simulated ranks that take part."""
        members = self._members.get(exchange.ranks)
        if members is None:
            inside = set(exchange.ranks)
            members = tuple(rank for rank in self._simulated if rank in inside)
            self._members[exchange.ranks] = members
        return members

    def _port_bytes(self, exchange: Exchange, sender: int | None = None) -> dict[Port, int]:
        """Bytes by port of the simulated ranks; of one sender's class, or of all ranks."""
        key = (id(exchange.bytes), exchange.ranks, sender)
        ports = self._ports.get(key)
        if ports is None:
            senders = exchange.ranks if sender is None else self._simulated[sender].ranks
            ports = self._ports[key] = port_bytes(
                exchange.bytes,
                exchange.ranks,
                senders,
                tuple(self._simulated),
                self._machine.fabric,
            )
        return ports

    def _arrivals(self, exchange: Exchange, ranks: Sequence[int]) -> dict[int, Arrival]:
        """Each simulated rank's share of the longest flight, by bytes that come from other ranks."""
        into = self._into.get(id(exchange.bytes))
        if into is None:
            into = self._into[id(exchange.bytes)] = _bytes_in(exchange.bytes)
        longest = max(into, default=0)
        fabric = self._machine.fabric
        nodes = {fabric.node(rank) for rank in exchange.ranks}
        arrivals = {}
        for rank in ranks:
            latency = 0
            if len(exchange.ranks) > 1:
                latency = fabric.flight_latency_ns
            if nodes != {fabric.node(rank)}:
                latency = fabric.internode_latency_ns
            share = into[exchange.ranks.index(rank)] / longest if longest else 0.0
            arrivals[rank] = Arrival(share, latency)
        return arrivals


def _bytes_in(matrix: Traffic) -> list[int]:
    """Bytes that each position receives from others."""
    columns = zip(*matrix, strict=True)
    return [sum(column) - column[target] for target, column in enumerate(columns)]
