"""Bytes through the ports of each rank (NVLink out and in, NIC out and in), for the communication bound."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from models.machine import Machine
from schedules.program import Exchange, Program


def communication_ns(program: Program, machine: Machine) -> float:
    """ns of the port that needs longest at its rate, over the first rank of every class."""
    ranks = [cls.ranks[0] for cls in program.classes if cls.ranks]
    if not ranks:
        return 0.0
    fabric = machine.fabric
    gbps = np.array([fabric.nvlink_gbps] * 2 + [fabric.nic_gbps] * 2)
    whole = np.zeros((len(ranks), 4))
    known: dict[tuple[int, tuple[int, ...]], NDArray[np.float64]] = {}
    for exchange in program.exchanges:
        key = (id(exchange.bytes), exchange.ranks)
        if key not in known:
            known[key] = _port_bytes(exchange, machine)
        place = {rank: position for position, rank in enumerate(exchange.ranks)}
        rows = [place.get(rank, -1) for rank in ranks]
        whole += np.where(np.array(rows)[:, None] >= 0, known[key][rows], 0.0)
    return float((whole / gbps).max(initial=0.0))


def _port_bytes(exchange: Exchange, machine: Machine) -> NDArray[np.float64]:
    """Bytes of one exchange by (position, port); loopback crosses no port. int counts as float64."""
    matrix = np.array(exchange.bytes, dtype=np.float64).reshape(len(exchange.ranks), -1)
    np.fill_diagonal(matrix, 0.0)
    node = np.array([machine.fabric.node(rank) for rank in exchange.ranks])
    near = np.where(node[:, None] == node[None, :], matrix, 0.0)
    far = matrix - near
    return np.stack([near.sum(1), near.sum(0), far.sum(1), far.sum(0)], axis=1)


def flight_shares(program: Program) -> dict[tuple[str, int], float]:
    """For each exchange and class the least share of the longest flight among the class's ranks, by
    the bytes that come from other ranks."""
    found: dict[tuple[str, int], float] = {}
    known: dict[int, NDArray[np.float64]] = {}
    for exchange in program.exchanges:
        if exchange.flight is None:
            continue
        if id(exchange.bytes) not in known:
            matrix = np.array(exchange.bytes, dtype=np.float64).reshape(len(exchange.ranks), -1)
            np.fill_diagonal(matrix, 0.0)
            into = matrix.sum(0)
            known[id(exchange.bytes)] = into / max(into.max(initial=0.0), 1.0)
        place = {rank: position for position, rank in enumerate(exchange.ranks)}
        for number, cls in enumerate(program.classes):
            shares = [known[id(exchange.bytes)][place[r]] for r in cls.ranks if r in place]
            found[exchange.name, number] = float(min(shares, default=0.0))
    return found
