"""Exchanges that a calibration measured, beside the tables of a library profile.

    python -m benchmarks.exchange_tables h200-8x-nvlink-measured.yaml --tables h200-8x-ib

A low-latency exchange is its send and its receive together, which the tables time as one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from models.machine import Machine
from models.measured import MeasuredPoint, read_points
from models.profile import load_machine, load_profile
from models.work import Work

NORMAL = ("dispatch", "combine")


@dataclass(frozen=True)
class Row:
    """One exchange: us measured and by the tables."""

    name: str
    ranks: int
    sms: int
    tokens: int
    measured_us: float
    table_us: float
    label: str

    @property
    def ratio(self) -> float:
        """Measured over the tables."""
        return self.measured_us / self.table_us


def rows(points: Iterable[MeasuredPoint], tables: Machine) -> Iterator[Row]:
    """Normal exchanges by their SMs; low-latency ones on all SMs."""
    points = tuple(points)
    found = {(point.work, point.sms): point for point in points}
    for point in points:
        work = point.work
        if work.kind in NORMAL:
            yield _row(work.kind, (point,), tables)
        elif work.kind.endswith("_send") and point.sms == tables.num_sms:
            name = work.kind.removesuffix("_send")
            receive = found.get((_receive_of(work, found), point.sms))
            if receive is not None:
                yield _row(f"{name}, low latency", (point, receive), tables)


def _receive_of(send: Work, found: Iterable[tuple[Work, int]]) -> Work:
    """The receive of the same exchange: the same sizes, other bytes."""
    kind = send.kind.replace("_send", "_recv")
    alike = (work for work, _ in found if work.kind == kind and work.dims == send.dims)
    return next(alike, replace(send, kind=kind))


def _row(name: str, parts: tuple[MeasuredPoint, ...], tables: Machine) -> Row:
    work = parts[0].work
    costs = [tables.costs.alone(p.work, tables.grid(p.work.kind), p.sms) for p in parts]
    return Row(
        name,
        work.dim("ep_size"),
        parts[0].sms,
        work.dim("tokens"),
        sum(p.ns for p in parts) / 1e3,
        sum(cost.ns for cost in costs) / 1e3,
        costs[0].label,
    )


def document(found: Iterable[Row]) -> str:
    """A table in Markdown."""
    lines = [
        "| exchange | ranks | SMs | tokens a rank | measured, µs | tables, µs | ratio | tables' label |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in sorted(found, key=lambda r: (r.name, r.ranks, r.sms, r.tokens)):
        lines.append(
            f"| {row.name} | {row.ranks} | {row.sms} | {row.tokens} | {row.measured_us:.1f} "
            f"| {row.table_us:.1f} | {row.ratio:.2f} | {row.label} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("profile", type=Path)
    parser.add_argument("--tables", default="h200-8x-ib")
    arguments = parser.parse_args()
    profile, _ = load_profile(arguments.profile)
    if profile.points is None:
        parser.error(f"{arguments.profile} has no measured points")
    points = read_points(arguments.profile.parent / profile.points.file)
    print(document(rows(points, load_machine(arguments.tables))))


if __name__ == "__main__":
    main()
