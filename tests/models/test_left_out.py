"""Points left out of the tables, predicted from the rest: the errors that the profiles state."""

from __future__ import annotations

import pytest

from models.costs import ProfileCosts
from models.profile import load_profile
from models.table_works import point_work
from models.tables import Point
from models.work import Grid, work

DYNAMIC = Grid(kind="dynamic")
TABLES = ("gemm.bf16", "gemm.fp8", "bmm.bf16", "attention_decode.mla")


def left_out(points: tuple[Point, ...]) -> tuple[list[Point], list[Point]]:
    """(kept, held): every third point along each series is held, its ends never."""
    held = []
    for key in sorted({point.key for point in points}):
        series = sorted((p for p in points if p.key == key), key=lambda p: p.x)
        held += series[1:-1:3]
    return [point for point in points if point not in held], held


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("machine", ["h100-8x-ib", "h200-8x-ib"])
def test_points_left_out_are_met_within_the_stated_error(machine: str, name: str) -> None:
    profile, points = load_profile(machine)
    kept, held = left_out(points[name])
    costs = ProfileCosts(profile, {**points, name: tuple(kept)})
    errors = []
    for point in held:
        cost = costs.alone(point_work(name, point.key, point.x), DYNAMIC, profile.gpu.sms)
        assert cost.label == "interpolated"
        errors.append(abs(cost.ns / 1e3 / point.us - 1))
    # The stated error is of one point left out at a time; neighbours are missing here.
    section = profile.tables[name]
    assert sum(errors) / len(errors) <= 1.5 * max(section.error, section.measured)


@pytest.mark.parametrize("machine", ["h100-8x-ib", "h200-8x-ib"])
def test_interpolation_beats_the_form_alone(machine: str) -> None:
    profile, _ = load_profile(machine)
    for name in TABLES:
        assert profile.tables[name].error < profile.forms[name].error


def test_exchange_points_left_out_are_met() -> None:
    """Whole low-latency exchanges over ranks: 32 ranks from 16 and 64."""
    profile, points = load_profile("h100-8x-ib")
    for name, exchange in (("dispatch_ll", 0), ("combine_ll", 1)):
        kept = tuple(point for point in points[name] if point.key != (32.0,))
        costs = ProfileCosts(profile, {**points, name: kept})
        for point in points[name]:
            if point.key == (32.0,):
                assert _whole_us(costs, point, exchange) == pytest.approx(point.us, rel=0.15)


def _whole_us(costs: ProfileCosts, point: Point, combine: int) -> float:
    payload = 14336 if combine else 7408
    parts = [
        work(
            kind,
            copies=8 * round(point.x),
            sent=8 * round(point.x),
            received=8 * round(point.x),
            payload=payload,
            ep_size=round(point.key[0]),
            nodes=4,
            combine=combine,
        )
        for kind in ("flight", "combine_recv")
    ]
    return sum(costs.alone(part, Grid(), 132).ns for part in parts) / 1e3
