"""Bounds: times that no timeline of a program on a machine can beat.

* compute: on each rank, all kernels that are not part of an exchange need SM-time; over all SMs that
  takes at least so long. Each kernel counts at the number of SMs at which it needs least, and a CTA
  counts with the share of an SM's threads, registers, memory or slots that it takes.
* communication: through each port of each rank go at least so many bytes, at the port's bandwidth or
  at the best rate that one transfer of the program alone reaches, whichever is more.
* chain: the longest chain of ops that wait for each other, each at its fastest within its budget,
  without gaps or host time.

Folded programs are judged by the first rank of each class, as they are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from models.machine import Machine
from models.work import EXCHANGE_KINDS
from schedules.graph import OWN, Graph, build_graph
from schedules.merit.fastest import Fastest
from schedules.merit.ports import communication_ns, flight_shares
from schedules.program import Op, Program


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of the makespan in ns; `chain` lists the ops of the longest chain in order."""

    compute_ns: int
    communication_ns: int
    chain_ns: int
    chain: tuple[str, ...] = ()

    @property
    def largest_ns(self) -> int:
        """The bound that binds."""
        return max(self.compute_ns, self.communication_ns, self.chain_ns)


def bounds(program: Program, machine: Machine, fastest: Fastest | None = None) -> Bounds:
    """The three bounds; `fastest` is what is already known of launches on this machine. ValueError when
    the program has a cycle."""
    fastest = fastest or Fastest(machine)
    chain_ns, chain = _chain(program, fastest)
    compute = max((_compute(cls.ops, fastest) for cls in program.classes), default=0.0)
    return Bounds(int(compute), int(communication_ns(program, machine)), chain_ns, chain)


def _compute(ops: tuple[Op, ...], fastest: Fastest) -> float:
    sums = [0.0, 0.0, 0.0, 0.0]
    for op in ops:
        if op.exchange is None and op.work.kind not in EXCHANGE_KINDS:
            for resource, ns in enumerate(fastest.sm_ns(op.work, op.grid)):
                sums[resource] += ns
    return max(sums)


def _chain(program: Program, fastest: Fastest) -> tuple[int, tuple[str, ...]]:
    graph = build_graph(program)
    shares = flight_shares(program)
    flights = {
        exchange.name: fastest.flight_ns(exchange.flight)
        for exchange in program.exchanges
        if exchange.flight is not None
    }

    def weight(earlier: int, later: int, reason: str) -> int:
        node, before = graph.nodes[later], graph.nodes[earlier]
        if node.op is None or not (reason == OWN or before.exchange is not None):
            return 0
        own = fastest.ns(node.op.work, node.op.grid)
        if before.what == "flight" and before.exchange is not None:
            share = shares.get((before.exchange, node.cls), 0.0)
            return own + int(flights.get(before.exchange, 0) * share)
        return own

    length, path = graph.longest(weight)
    return length, tuple(_ops(graph, path))


def _ops(graph: Graph, path: list[int]) -> Iterator[str]:
    """Names along the path, each op once."""
    last = ""
    for number in path:
        node = graph.nodes[number]
        name = node.op.name if node.op is not None else ""
        if name and name != last:
            last = name
            yield name
