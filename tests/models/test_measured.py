"""Measured points: what is held out, the file they live in, and times read between them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.counts import elementwise, gemm, grouped_gemm
from models.errors import InputError
from models.machine import Cost, Footprint
from models.measured import MeasuredPoint, is_held, point_key, read_points, write_points
from models.point_costs import PointCosts
from models.work import Grid, Work

STATIC = Grid(kind="static")
GRIDS = {"gemm": STATIC, "norm": Grid(), "grouped_gemm_masked": STATIC}


class Plain:
    """Costs of 1 ns per thousand operations, or per byte, on every SM alike."""

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        ns = work.total_flops / 1e6 / sms if work.flops else work.hbm_bytes / 1e3
        return Cost(max(1, round(ns * 100)), "roofline", 0.3)

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        return Footprint(grid.enforced_budget or 132)


def point(m: int, sms: int, factor: float, held: bool = False) -> MeasuredPoint:
    work = gemm(m, 7168, 2048, "fp8_block")
    ns = Plain().alone(work, STATIC, sms).ns * factor
    return MeasuredPoint(work, sms, ns, 0.02, 1980, 500, held)


def costs(*points: MeasuredPoint) -> PointCosts:
    return PointCosts(Plain(), points, GRIDS, {"gemm": 0.04})


def test_a_point_is_returned_as_it_was_measured() -> None:
    measured = point(256, 132, 1.7)
    cost = costs(measured, point(512, 132, 1.1)).alone(measured.work, STATIC, 132)
    assert (cost.ns, cost.label) == (round(measured.ns), "measured")
    assert cost.rel_error == pytest.approx(0.01)


@given(st.integers(257, 1023), st.integers(67, 131))
def test_between_points_the_ratio_is_linear_in_the_logs(m: int, sms: int) -> None:
    def ratio(m: float, sms: float) -> float:
        return math.exp(0.3 * math.log(m / 256) - 0.2 * math.log(sms / 66))

    table = costs(*(point(m, s, ratio(m, s)) for m in (256, 1024) for s in (66, 132)))
    work = gemm(m, 7168, 2048, "fp8_block")
    cost = table.alone(work, STATIC, sms)
    expected = Plain().alone(work, STATIC, sms).ns * ratio(m, sms)
    assert cost.ns == pytest.approx(expected, rel=2e-3)
    assert (cost.label, cost.rel_error) == ("interpolated", 0.04)


def test_beyond_the_points_the_nearest_ratio_holds_and_says_so() -> None:
    table = costs(point(256, 132, 2.0), point(512, 132, 3.0))
    far = gemm(4096, 7168, 2048, "fp8_block")
    cost = table.alone(far, STATIC, 132)
    assert cost.ns == pytest.approx(3 * Plain().alone(far, STATIC, 132).ns, rel=1e-3)
    assert (cost.label, cost.rel_error) == ("fitted", 0.08)
    fewer = table.alone(gemm(256, 7168, 2048, "fp8_block"), STATIC, 66)
    assert fewer.label == "fitted"


def test_what_has_no_series_is_answered_below() -> None:
    table = costs(point(256, 132, 2.0))
    for work in (gemm(256, 4096, 4096, "fp8_block"), elementwise("norm", 64, 7168, 64, 64)):
        assert table.alone(work, STATIC, 132) == Plain().alone(work, STATIC, 132)


def test_grouped_gemms_are_read_by_active_experts_and_rows() -> None:
    def grouped(active: int, rows: int) -> Work:
        counts = (rows // active,) * active + (0,) * (32 - active)
        return grouped_gemm("grouped_gemm_masked", counts, 4096, 7168, "fp8_block", 1)

    points = [
        MeasuredPoint(grouped(a, r), 132, 1.5 * Plain().alone(grouped(a, r), STATIC, 132).ns)
        for a in (8, 32)
        for r in (256, 1024)
    ]
    table = PointCosts(Plain(), points, GRIDS, {})
    inner = grouped(16, 512)
    cost = table.alone(inner, STATIC, 132)
    assert cost.ns == pytest.approx(1.5 * Plain().alone(inner, STATIC, 132).ns, rel=1e-3)
    assert cost.label == "interpolated"


def test_points_survive_their_file(tmp_path: Path) -> None:
    points = (point(256, 132, 1.5), point(256, 108, 1.6, held=True))
    file = tmp_path / "points.csv"
    file.write_text(write_points(points, ["one line", "another"]))
    read = read_points(file)
    assert {p.key: (p.work, p.sms, p.held, p.mhz, p.watts) for p in read} == {
        p.key: (p.work, p.sms, p.held, p.mhz, p.watts) for p in points
    }
    assert all(a.ns == pytest.approx(b.ns, rel=1e-4) for a, b in zip(read, sorted_points(points)))


def test_launches_survive_their_file_and_older_files_have_none(tmp_path: Path) -> None:
    given = replace(point(256, 132, 1.5), launches=3, ctas=128, tile=(64, 112))
    file = tmp_path / "points.csv"
    text = write_points([given])
    file.write_text(text)
    (read,) = read_points(file)
    assert (read.launches, read.ctas, read.tile) == (3, 128, (64, 112))
    file.write_text("\n".join(line.rsplit(",", 4)[0] for line in text.splitlines()) + "\n")
    (read,) = read_points(file)
    assert (read.launches, read.ctas, read.tile, read.sms) == (0, 0, (0, 0), 132)


def test_norms_of_one_size_and_other_bytes_are_kernels_of_their_own() -> None:
    plain = elementwise("norm", 512, 7168, 10_000_000, 10_000_000)
    adding = elementwise("norm", 512, 7168, 20_000_000, 20_000_000)
    points = [MeasuredPoint(plain, 132, 5000.0), MeasuredPoint(adding, 132, 9000.0)]
    assert points[0].key != points[1].key
    table = PointCosts(Plain(), points, GRIDS, {})
    assert [table.alone(work, Grid(), 132).ns for work in (plain, adding)] == [5000, 9000]


def sorted_points(points: tuple[MeasuredPoint, ...]) -> list[MeasuredPoint]:
    return sorted(points, key=lambda p: p.key)


@pytest.mark.parametrize(
    ("before", "after", "column", "line"),
    [
        ("gemm", "gamm", "kind", 3),
        ("m=256", "m=many", "dims", 3),
        ("m=256", "rows=256", "dims", 3),
        ("m=256;", "", "dims", 3),
        ("m=256;", "m=256;m=128;", "dims", 3),
        (",132,", ",0,", "ns", 3),
        ("kind,", "sort,", "header", 2),
        ("fp8=", "fp8=x", "flops", 3),
        ("fp8=", "pf8=", "flops", 3),
    ],
)
def test_a_point_edited_by_hand_is_refused_by_line_and_column(
    tmp_path: Path, before: str, after: str, column: str, line: int
) -> None:
    file = tmp_path / "points.csv"
    file.write_text(write_points([point(256, 132, 1.5)], ["heading"]).replace(before, after))
    with pytest.raises(InputError) as caught:
        read_points(file)
    assert (caught.value.key, caught.value.line) == (column, line)


def test_a_misspelt_size_is_named_beside_those_that_the_kind_has(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text(write_points([point(256, 132, 1.5)]).replace("m=256", "mm=256"))
    with pytest.raises(InputError) as caught:
        read_points(file)
    said = "dims: 'k=2048;mm=256;n=7168' is not usable; allowed: 'mm' is none of them; gemm has k=;m=;n="
    assert str(caught.value) == f"{file}:2: {said}"


def test_no_points_are_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text(write_points([]))
    with pytest.raises(InputError, match="at least one point"):
        read_points(file)


def test_more_sms_than_ctas_are_one_place() -> None:
    """A grid of at most 132 CTAs: two caps above that are the same launch."""
    table = costs(point(256, 132, 1.0), point(256, 200, math.exp(0.2)))
    work = gemm(256, 7168, 2048, "fp8_block")
    ratio = table.alone(work, STATIC, 132).ns / Plain().alone(work, STATIC, 132).ns
    assert ratio == pytest.approx(math.exp(0.1), rel=1e-3)


def test_a_fifth_is_held_out_whatever_the_times() -> None:
    keys = [point_key(gemm(m, n, 128, "bf16"), 132) for m in range(1, 51) for n in range(1, 41)]
    held = {key for key in keys if is_held(key, seed=3)}
    assert 0.17 < len(held) / len(keys) < 0.23
    assert held == {key for key in keys if is_held(key, seed=3)}
    assert held != {key for key in keys if is_held(key, seed=4)}
    slower = replace(point(256, 132, 1.0), ns=5.0)
    assert slower.key == point(256, 132, 1.0).key
