"""Times of the all-to-all's kernels alone: DeepEP's tables, read at the load of each rank's ports.

A table times uniform routing. A rank whose ports carry more copies than uniform routing sends takes as
long as uniform routing of more tokens: the bandwidth part follows the busier direction, the floor does
not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from models.exchanges import LL_HEADER_BYTES, TOPK_ENTRY_BYTES
from models.machine import Cost, CostLabel
from models.profile_schema import ProfileFile, TableSection
from models.tables import LogTable, Point, Reading
from models.work import Work

# What the tables' source timed: 256 experts, top-8, hidden size 7168.
_EXPERTS, _TOP_K = 256, 8
_PAYLOAD = {
    "dispatch": 7168 + 4 * 56 + TOPK_ENTRY_BYTES * _TOP_K,
    "combine": 2 * 7168,
    "dispatch_ll": 7168 + 4 * 56 + LL_HEADER_BYTES,
    "combine_ll": 2 * 7168,
}
LABELS: Mapping[str, CostLabel] = {
    "point": "measured",
    "inside": "interpolated",
    "outside": "fitted",
}


def expected_places(places: int, experts: int = _EXPERTS, top_k: int = _TOP_K) -> float:
    """Distinct ranks (or nodes), of `places` that hold equal shares of the experts, that a token with
    `top_k` distinct random experts needs."""
    elsewhere = experts - experts // places
    missed = math.comb(elsewhere, top_k) / math.comb(experts, top_k)
    return places * (1.0 - missed)


class ExchangeCosts:
    """Prices the kinds layout, notify, dispatch, combine, their low-latency halves, and flights."""

    def __init__(self, profile: ProfileFile, points: Mapping[str, Sequence[Point]]) -> None:
        self._normal = profile.normal_exchange
        self._low = profile.low_latency_exchange
        self._sections = profile.tables
        self._tables: dict[tuple[str, int], LogTable] = {}
        for name in ("dispatch", "combine"):
            self._add_normal(name, points.get(name, ()))
        for name in ("dispatch_ll", "combine_ll"):
            self._add_low_latency(name, points.get(name, ()))
        self._notify = _notify_tables(points.get("notify", ()))

    def alone(self, work: Work, sms: int) -> Cost:
        """Time of one kernel of an exchange (or of a flight) on `sms` SMs."""
        if work.kind in ("dispatch", "combine"):
            return self._transfer(work, sms)
        if work.kind == "notify":
            return self._notified(work)
        if work.kind == "layout":
            return _cost(self._normal.layout_us, "roofline", self._normal.error)
        return self._low_latency(work, sms)

    def _add_normal(self, name: str, points: Sequence[Point]) -> None:
        by_nodes: dict[int, dict[tuple[tuple[float, ...], float], float]] = {}
        for point in points:
            nodes, sms = round(point.key[0]), point.key[1]
            expected = self._normal_us(name, nodes, sms, point.x)
            ratio = math.log(point.us / expected)
            by_nodes.setdefault(nodes, {})[((sms,), point.x)] = ratio
        for nodes, values in by_nodes.items():
            self._tables[name, nodes] = LogTable(values)

    def _normal_us(self, name: str, nodes: int, sms: float, tokens: float) -> float:
        """The fitted form: a floor and the bytes of every copy over what the SMs can move."""
        copies = expected_places(self._normal.table_ranks * nodes)
        floor = self._normal.dispatch_us if name == "dispatch" else self._normal.combine_us
        gbps = min(self._normal.gbps_per_sm * sms, self._normal.cap_gbps)
        return floor + tokens * copies * _PAYLOAD[name] / gbps / 1e3

    def _transfer(self, work: Work, sms: int) -> Cost:
        name, nodes = work.kind, work.dim("nodes")
        table_nodes = _nearest([n for kind, n in self._tables if kind == name], nodes)
        tokens = self._uniform_tokens(work, table_nodes or nodes, name)
        expected = self._normal_us(name, table_nodes or nodes, sms, tokens)
        if table_nodes is None:
            return _cost(expected, "fitted", self._normal.error)
        reading = self._tables[name, table_nodes].at((float(sms),), tokens)
        us = expected * math.exp(reading.value)
        same = table_nodes == nodes and work.dim("payload") == _PAYLOAD[name]
        return self._labelled(us, reading, name, same)

    def _uniform_tokens(self, work: Work, table_nodes: int, name: str) -> float:
        """Tokens whose uniform routing loads the bottleneck as this rank's busier direction: NVLink
        copies within a node, NIC copies across nodes."""
        scale = work.dim("payload") / _PAYLOAD[name]
        if work.dim("nodes") == 1:
            copies = expected_places(self._normal.table_ranks)
            return max(1.0, scale * work.dim("copies") / copies)
        remote = expected_places(table_nodes) * (1.0 - 1.0 / table_nodes)
        return max(1.0, scale * work.dim("nic_copies") / remote)

    def _labelled(self, us: float, reading: Reading, name: str, same: bool) -> Cost:
        label = LABELS[reading.where] if same else "fitted"
        service = self._low.error if name.endswith("_ll") else self._normal.error
        return _cost(us, label, max(service, table_error(self._sections[name], label)))

    def _notified(self, work: Work) -> Cost:
        """Barrier kernels: the table across nodes, one figure within a node."""
        nodes, combine = work.dim("nodes"), work.dim("combine")
        known = [n for n, part in self._notify if part == combine and n > 1]
        table_nodes = _nearest(known, nodes)
        if nodes == 1 or table_nodes is None:
            return _cost(self._normal.notify_us, "fitted", self._normal.error)
        reading = self._notify[table_nodes, combine].at((1.0,), max(1, work.dim("tokens")))
        return self._labelled(math.exp(reading.value), reading, "notify", table_nodes == nodes)

    def _add_low_latency(self, name: str, points: Sequence[Point]) -> None:
        values = {}
        for point in points:
            across = point.key[0] > self._normal.table_ranks
            expected = self._low_us(name, across, point.x)
            values[point.key, point.x] = math.log(point.us / expected)
        if values:
            self._tables[name, 0] = LogTable(values)

    def _low_us(self, name: str, across: bool, tokens: float) -> float:
        low = self._low
        floor, gbps = (low.across_floor_us, low.across_gbps) if across else (low.floor_us, low.gbps)
        return floor + tokens * _TOP_K * _PAYLOAD[name] / gbps / 1e3

    def _low_latency(self, work: Work, sms: int) -> Cost:
        """A half of a low-latency exchange, or its flight: a part of the table's whole, which no table
        divides, hence *fitted*."""
        name = "combine_ll" if work.dim("combine") else "dispatch_ll"
        across = work.dim("nodes") > 1
        moved = work.dim("copies") * work.dim("payload")
        tokens = max(moved / (_TOP_K * _PAYLOAD[name]), 0.5)
        us = self._low_us(name, across, tokens)
        cost = _cost(us, "fitted", self._low.error)
        if (name, 0) in self._tables:
            reading = self._tables[name, 0].at((float(work.dim("ep_size")),), tokens)
            cost = self._labelled(us * math.exp(reading.value), reading, name, same=True)
        whole = cost.ns / 1e3
        recv = min(self._resident(work, "recv") if across else self._low.recv_us, whole / 2)
        if work.kind.endswith("recv"):
            part = recv
        elif work.kind == "flight":
            part = whole - recv
        else:
            send = min(self._resident(work, "send"), whole - recv) if across else whole - recv
            part = max(send, moved / (self._normal.gbps_per_sm * sms) / 1e3)
        return _cost(part, "fitted", cost.rel_error)

    def _resident(self, work: Work, half: Literal["send", "recv"]) -> float:
        """Microseconds for which a kernel across nodes holds SMs when nothing keeps it waiting."""
        parts = self._low.resident
        if work.dim("combine"):
            part = parts.combine_send if half == "send" else parts.combine_recv
        else:
            part = parts.dispatch_send if half == "send" else parts.dispatch_recv
        copies = work.dim("sent" if half == "send" else "received")
        return part.floor_us + copies * work.dim("payload") / part.gbps / 1e3


def table_error(section: TableSection, label: CostLabel) -> float:
    """Relative error of a time read from a table under this label."""
    if label == "measured":
        return section.measured
    return max(section.measured, section.error if label == "interpolated" else section.outside)


def _notify_tables(points: Sequence[Point]) -> dict[tuple[int, int], LogTable]:
    """Tables by (nodes, combine) over tokens."""
    by_key: dict[tuple[int, int], dict[tuple[tuple[float, ...], float], float]] = {}
    for point in points:
        key = (round(point.key[0]), round(point.key[1]))
        by_key.setdefault(key, {})[(1.0,), point.x] = math.log(point.us)
    return {key: LogTable(values) for key, values in by_key.items()}


def _nearest(known: Sequence[int], wanted: int) -> int | None:
    """The known node count closest in ratio; one node is like no other count."""
    same_side = [nodes for nodes in known if (nodes == 1) == (wanted == 1)]
    return min(same_side, key=lambda nodes: abs(math.log(nodes / wanted)), default=None)


def _cost(us: float, label: CostLabel, rel_error: float) -> Cost:
    return Cost(max(1, round(us * 1e3)), label, rel_error)
