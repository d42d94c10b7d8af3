"""Ports shared by whole exchanges against every flow by itself."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from models.machine import Fabric
from schedules.program import Traffic
from simulator.links import NIC_IN, NIC_OUT, NVLINK_IN, NVLINK_OUT, Port, max_min_shares, port_bytes

CAPACITY = 100.0
RANKS = 6
MATRICES = st.lists(
    st.lists(st.integers(0, 50), min_size=RANKS, max_size=RANKS), min_size=RANKS, max_size=RANKS
)


def fair_rates(
    flows: list[tuple[float, tuple[Port, ...]]], capacity: float = CAPACITY
) -> list[float]:
    """The reference: max-min fair rates of single flows (demand, ports), raised together bit by bit
    until a flow's demand or one of its ports stops it."""
    rates = [0.0] * len(flows)
    open_ = {i for i, (demand, _) in enumerate(flows) if demand > 0}
    while open_:
        used: dict[Port, float] = {}
        users: dict[Port, int] = {}
        for i, (_, ports) in enumerate(flows):
            for port in ports:
                used[port] = used.get(port, 0.0) + rates[i]
                users[port] = users.get(port, 0) + (i in open_)
        rooms = [(capacity - used[port]) / users[port] for port in used if users[port]]
        step = min([flows[i][0] - rates[i] for i in open_] + rooms)
        for i in open_:
            rates[i] += step
        full = {
            port
            for port in used
            if used[port] + step * users[port] >= capacity - 1e-9 and users[port]
        }
        open_ = {
            i for i in open_ if rates[i] < flows[i][0] - 1e-9 and not full.intersection(flows[i][1])
        }
    return rates


def demands_of(matrix: Traffic) -> dict[Port, float]:
    """Bytes by port of one exchange, all on one node."""
    fabric = Fabric(RANKS, CAPACITY, CAPACITY)
    ranks = tuple(range(RANKS))
    return {p: float(b) for p, b in port_bytes(matrix, ranks, ranks, ranks, fabric).items()}


def flows_of(matrix: Traffic) -> list[tuple[float, tuple[Port, ...]]]:
    """Every (source, target) flow of one exchange."""
    return [
        (float(nbytes), ((source, NVLINK_OUT), (target, NVLINK_IN)))
        for source, row in enumerate(matrix)
        for target, nbytes in enumerate(row)
        if source != target and nbytes
    ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.tuples(*[st.integers(1, 60)] * 3))
def test_uniform_exchanges_get_what_their_flows_get(each: tuple[int, ...]) -> None:
    matrices = [tuple(tuple([nbytes] * RANKS) for _ in range(RANKS)) for nbytes in each]
    demands = [demands_of(matrix) for matrix in matrices]
    shares = max_min_shares(demands, dict.fromkeys(demands[0], CAPACITY))
    flows = [flow for matrix in matrices for flow in flows_of(matrix)]
    rates = fair_rates(flows)
    for share, nbytes, rate in zip(shares, each, rates[:: len(rates) // 3], strict=True):
        assert share == pytest.approx(rate / nbytes, rel=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(MATRICES)
def test_one_exchange_alone_goes_at_the_pace_of_its_fullest_port(rows: list[list[int]]) -> None:
    matrix = tuple(tuple(row) for row in rows)
    demands = demands_of(matrix)
    assume(demands)
    (share,) = max_min_shares([demands], dict.fromkeys(demands, CAPACITY))
    fullest = max(demands.values())
    assert share == pytest.approx(min(1.0, CAPACITY / fullest))
    # Its slowest single flow under per-flow fairness is no faster relative to its bytes, since flows
    # of unequal size share a full port equally and not in proportion.
    flows = flows_of(matrix)
    slowest = min(rate / demand for rate, (demand, _) in zip(fair_rates(flows), flows, strict=True))
    assert slowest <= share + 1e-6


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(MATRICES, min_size=2, max_size=4))
def test_no_port_carries_more_than_it_can_and_nobody_could_have_more(
    all_rows: list[list[list[int]]],
) -> None:
    demands = [demands_of(tuple(tuple(row) for row in rows)) for rows in all_rows]
    assume(all(demands))
    ports = {port for demand in demands for port in demand}
    shares = max_min_shares(demands, dict.fromkeys(ports, CAPACITY))
    used = {
        port: sum(d.get(port, 0.0) * s for d, s in zip(demands, shares, strict=True))
        for port in ports
    }
    assert all(gbps <= CAPACITY * (1 + 1e-9) for gbps in used.values())
    for demand, share in zip(demands, shares, strict=True):
        full = [port for port in demand if used[port] >= CAPACITY * (1 - 1e-9)]
        assert share == 1.0 or full


def test_bytes_go_over_nvlink_within_a_node_and_over_nics_between() -> None:
    matrix = ((5, 7, 11), (13, 17, 19), (23, 29, 31))
    ports = port_bytes(matrix, (0, 1, 2), (0, 1, 2), (0, 1, 2), Fabric(2, 400.0, 50.0))
    assert ports[0, NVLINK_OUT] == 7 and ports[0, NVLINK_IN] == 13
    assert ports[0, NIC_OUT] == 11 and ports[0, NIC_IN] == 23
    assert ports[2, NIC_OUT] == 23 + 29 and ports[2, NIC_IN] == 11 + 19
    assert (2, NVLINK_OUT) not in ports
