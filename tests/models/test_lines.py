"""Times along straight lines and by tiles: what is read between measured points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.attention_counts import plain_attention
from models.counts import elementwise, gemm, grouped_gemm
from models.deep_gemm import deep_gemm_tile
from models.kernel_names import NO_TILE
from models.lines import Lines
from models.measured import MeasuredPoint, read_points
from models.point_costs import PointCosts, series_of
from models.profile import load_machine
from models.sequences import SequenceSums
from models.tile_times import TileTimes
from models.tiling import Tilings, rounds
from models.work import Grid, Work, work

LIBRARY = Path(__file__).parents[2] / "models" / "library" / "hardware"


def transfer(copies: int) -> Work:
    return work("dispatch", copies=copies, ep_size=2, nodes=1, payload=7488, combine=0)


def line_of(times: dict[tuple[int, int], float]) -> tuple[Lines, tuple[object, ...]]:
    family = series_of(transfer(1)).family
    return Lines({family: [(transfer(c), sms, ns) for (c, sms), ns in times.items()]}), family


def test_a_transfers_start_link_and_sms_are_recovered() -> None:
    def ns(copies: int, sms: int) -> float:
        return 5000 + copies * (4.0 + 600.0 / sms)

    lines, family = line_of({(c, s): ns(c, s) for c in (1500, 6000) for s in (8, 16, 32)})
    for copies, sms in ((3000, 12), (24000, 24), (100, 20)):
        assert lines.ns(family, transfer(copies), sms) == pytest.approx(ns(copies, sms), rel=1e-6)


def test_a_line_never_falls_with_what_it_counts() -> None:
    """Times that shrink with more copies: the best line is flat, and positive everywhere."""
    lines, family = line_of({(c, 8): 9000 - c for c in (1000, 2000, 3000, 4000)})
    few, many = (lines.ns(family, transfer(c), 8) for c in (1, 10**6))
    assert few is not None and many is not None
    assert 0 < few <= many


def test_too_few_points_make_no_line() -> None:
    lines, family = line_of({(1500, 8): 1.0e5, (3000, 8): 2.0e5, (6000, 8): 4.0e5})
    assert lines.ns(family, transfer(2000), 8) is None
    norm = elementwise("norm", 8, 7168, 8, 8)
    assert lines.ns(series_of(norm).family, norm, 132) is None


def attention(sequences: int, length: int) -> Work:
    tokens, pairs = sequences * length, sequences * length * (length + 1) // 2
    return plain_attention(SequenceSums(sequences, tokens, tokens, pairs), 128, 192, 128)


def test_short_sequences_have_more_tokens_for_each_pair() -> None:
    """150 ns a token and 0.1 a pair, known from long sequences alone."""

    def ns(of: Work) -> float:
        sizes = dict(of.dims)
        return 150.0 * sizes["tokens"] + 0.1 * sizes["pairs"]

    known = [attention(s, n) for s, n in ((1, 768), (1, 1536), (2, 1536), (3, 2048), (6, 2048))]
    points = [MeasuredPoint(of, 132, ns(of)) for of in known]
    grid = Grid(kind="dynamic")
    base = load_machine("h200-2x-nvlink").costs
    costs = PointCosts(base, points, {"attention_prefill": grid}, {})
    for wanted in (attention(13, 704), attention(4, 1280)):
        assert costs.alone(wanted, grid, 132).ns == pytest.approx(ns(wanted), rel=0.01)
        longer = base.alone(wanted, grid, 66).ns / base.alone(wanted, grid, 132).ns
        assert costs.alone(wanted, grid, 66).ns == pytest.approx(longer * ns(wanted), rel=0.01)
        assert longer > 1.5


@pytest.mark.parametrize("profile", ["h200-2x-nvlink-measured", "h200-1x-measured"])
def test_the_rule_gives_every_tile_that_was_seen(profile: str) -> None:
    points = [p for p in read_points(LIBRARY / f"{profile}.points.csv") if p.tile != NO_TILE]
    gemms = [p for p in points if not p.work.kind.startswith("attention")]
    assert len(gemms) > 100
    assert all(deep_gemm_tile(point.work, point.sms) == point.tile for point in gemms)
    assert deep_gemm_tile(gemm(64, 256, 7168, "bf16", kind="gate"), 132) == NO_TILE


def timed(m: int, sms: int, tile_ns: float) -> MeasuredPoint:
    """A point of a GEMM whose every tile takes `tile_ns`."""
    given = gemm(m, 4096, 7168, "fp8_block")
    tile = deep_gemm_tile(given, sms)
    return MeasuredPoint(given, sms, rounds(given, tile, sms) * tile_ns, tile=tile)


def is_read(times: TileTimes, wanted: Work, ns: float, where: str) -> bool:
    found = times.ns(wanted, 132)
    return found is not None and found[0] == pytest.approx(ns) and found[1] == where


def test_a_size_between_points_takes_its_own_rounds_of_their_tile() -> None:
    """Sizes at which 132 SMs get tiles of 256 x 128."""
    points = [timed(m, 132, 42e3) for m in (3072, 12288)]
    assert {point.tile for point in points} == {(256, 128)}
    times = TileTimes(Tilings(points), points)
    wanted = gemm(8192, 4096, 7168, "fp8_block")
    assert deep_gemm_tile(wanted, 132) == (256, 128)
    assert is_read(times, wanted, 8 * 42e3, "inside")
    wider = gemm(6144, 8192, 7168, "fp8_block")
    assert is_read(times, wider, 12 * 42e3, "inside")


def test_another_tile_is_read_by_its_area_and_said_to_be_beyond_the_points() -> None:
    points = [timed(m, 132, 42e3) for m in (3072, 12288)]
    times = TileTimes(Tilings(points), points)
    small = gemm(128, 4096, 7168, "fp8_block")
    rows, columns = deep_gemm_tile(small, 132)
    assert (rows, columns) != (256, 128)
    expected = rounds(small, (rows, columns), 132) * 42e3 * rows * columns / (256 * 128)
    assert is_read(times, small, expected, "outside")
    assert times.ns(gemm(4096, 4096, 2048, "fp8_block"), 132) is None
    again = times.ns(points[0].work, 132, without=points[0].key)
    assert again is not None and again[0] == pytest.approx(points[0].ns)


def by_parts(m: int, sms: int, n: int = 4096, k: int = 7168) -> MeasuredPoint:
    """A point that takes the longer of 4 us and a ns for each 3000 bytes that it reads, and of 4 us and for
    each round of tiles 1 us, 0.1 ns for each 1024 elements and 7 ns for each 1024 of rows and columns, at
    each step of the depth."""
    given = gemm(m, n, k, "fp8_block")
    tile = deep_gemm_tile(given, sms)
    rows, columns = max(64, tile[0]), tile[1]
    each = 1000.0 + k / 1024 * (0.1 * rows * columns + 7.0 * (rows + columns))
    ns = 4000.0 + max(given.read_bytes / 3000.0, rounds(given, tile, sms) * each)
    return MeasuredPoint(given, sms, ns, tile=tile)


def points_by_parts(k: int, n: int) -> list[MeasuredPoint]:
    rows = (8, 24, 48, 96, 768, 1536, 3072, 6144)
    return [by_parts(m, sms, n, k) for m in rows for sms in (108, 116, 132)]


def test_a_tile_that_nobody_measured_is_read_along_a_line() -> None:
    """86 rows on 100 SMs get a tile that no other size here has."""
    wanted = by_parts(86, 100)
    points = points_by_parts(7168, 4096)
    assert wanted.tile not in {point.tile for point in points}
    found = TileTimes(Tilings(points), points).ns(wanted.work, 100)
    assert found is not None
    assert found[0] == pytest.approx(wanted.ns, rel=0.02) and found[1] == "outside"


def test_further_rounds_do_not_wait_for_the_weights_again() -> None:
    """96 rows of 24576 x 1536 wait for their weights in one round of tiles of 128 x 192; 600 take five of
    these, and as long as the tiles compute."""
    points = points_by_parts(1536, 24576)
    waits, wanted = by_parts(96, 132, 24576, 1536), by_parts(600, 132, 24576, 1536)
    assert waits.tile == wanted.tile == (128, 192)
    assert waits.ns == pytest.approx(4000.0 + waits.work.read_bytes / 3000.0)
    found = TileTimes(Tilings(points), points).ns(wanted.work, 132)
    assert found is not None
    assert found[0] == pytest.approx(wanted.ns, rel=0.02)
    assert found[0] < 3.5 * waits.ns


@pytest.mark.parametrize("profile", ["h200-2x-nvlink-measured", "h200-1x-measured"])
def test_whole_tiles_left_out_are_met(profile: str) -> None:
    """Each tile of a measured profile from all others: half within 8 %, nine in ten within 25 %."""
    found = [p for p in read_points(LIBRARY / f"{profile}.points.csv") if p.work.kind == "gemm"]
    tilings, errors = Tilings(found), []
    for tile in {point.tile for point in found} - {NO_TILE}:
        times = TileTimes(tilings, [point for point in found if point.tile != tile])
        for point in (point for point in found if point.tile == tile):
            read = times.ns(point.work, point.sms)
            if read is not None:
                errors.append(abs(read[0] / point.ns - 1))
    errors.sort()
    assert len(errors) > 50
    assert errors[len(errors) // 2] < 0.08 and errors[len(errors) * 9 // 10] < 0.25


def test_sizes_that_differ_by_a_draw_are_one_size() -> None:
    """A round of a tile takes 26 us on 66 SMs and 34 on 116 or more; 14,336 rows are known on 66 only,
    14,208 on 116 and 132. What lies between them and twice as many is read on 116."""

    def point(rows: int, sms: int) -> MeasuredPoint:
        made = grouped(rows)
        tile = deep_gemm_tile(made, sms)
        each = 26e3 if sms == 66 else 34e3
        return MeasuredPoint(made, sms, rounds(made, tile, sms) * each, tile=tile)

    given = ((14336, 66), (14208, 116), (14208, 132), (28160, 116), (28160, 132))
    points = [point(*at) for at in given]
    base = load_machine("h200-2x-nvlink").costs
    costs = PointCosts(base, points, {"grouped_gemm_contiguous": Grid(kind="static")}, {})
    wanted = point(16384, 116)
    found = costs.alone(wanted.work, Grid(kind="static", sm_budget=116), 116)
    assert found.ns == pytest.approx(wanted.ns, rel=0.01) and found.label == "interpolated"


def test_a_size_that_is_known_on_other_sms_only_is_no_neighbour() -> None:
    """A send takes a third as long on 32 SMs as on 8. 960 copies are known on 8 only, 400 and 2000 on both:
    1000 copies on 32 lie between these."""

    def send(copies: int) -> Work:
        return work(
            "combine_send", copies=copies, ep_size=2, nodes=1, payload=14336, combine=1, experts=64
        )

    def ns(copies: int, sms: int) -> float:
        return copies * (300.0 if sms == 8 else 100.0)

    sizes = [(copies, sms) for copies in (400, 2000) for sms in (8, 32)]
    points = [MeasuredPoint(send(c), s, ns(c, s)) for c, s in [*sizes, (960, 8)]]
    grid = Grid(kind="wave")
    base = load_machine("h200-2x-nvlink").costs
    costs = PointCosts(base, points, {"combine_send": grid}, {})
    for sms in (8, 32):
        found = costs.alone(send(1000), grid, sms)
        assert found.ns == pytest.approx(ns(1000, sms), rel=0.05), sms


def test_sizes_with_as_many_ctas_as_rows_are_read_by_their_rows() -> None:
    """Norms of few rows hold as many SMs as they have rows, large ones all: on 122 SMs, as many as 120 rows
    hold, 9000 rows take what larger ones do, four times the time by the row of few."""

    def norm(rows: int) -> Work:
        return elementwise("norm", rows, 7168, rows * 14336, rows * 14336)

    points = [MeasuredPoint(norm(rows), min(rows, 132), 25.0 * rows) for rows in (24, 120)]
    points += [MeasuredPoint(norm(rows), 132, 100.0 * rows) for rows in (6000, 12000)]
    base = load_machine("h200-2x-nvlink").costs
    costs = PointCosts(base, points, {"norm": Grid()}, {})
    ratio = base.alone(norm(9000), Grid(), 122).ns / base.alone(norm(9000), Grid(), 132).ns
    found = costs.alone(norm(9000), Grid(), 122)
    assert found.ns == pytest.approx(ratio * 100.0 * 9000, rel=0.2)


def grouped(rows: int) -> Work:
    """32 experts that have as many rows each as 128 divides."""
    each = [rows // 32 // 128 * 128] * 32
    for index in range((rows - sum(each)) // 128):
        each[index] += 128
    return grouped_gemm("grouped_gemm_contiguous", tuple(each), 4096, 7168, "fp8_block", 1)


def test_a_launch_that_computes_is_not_read_from_one_that_waits_for_its_weights() -> None:
    """Both have the tile of 256 x 128; one was held up to three times as long by what it reads."""
    points = points_by_parts(7168, 4096)
    near = by_parts(2944, 132)
    held_up = replace(by_parts(3072, 132), ns=3.0 * near.ns)
    assert near.tile == held_up.tile == (256, 128)
    bytes_up = replace(held_up.work, read_bytes=round(3000 * (held_up.ns - 4000.0)))
    times = TileTimes(Tilings(points), [*points, replace(held_up, work=bytes_up)])
    assert is_read(times, near.work, near.ns, "inside")
