"""Dense GEMMs of a few hundred rows, between what a calibration measured of decode and of prefill."""

from __future__ import annotations

from math import log
from pathlib import Path
from statistics import median

import pytest

from models.counts import gemm
from models.deep_gemm import deep_gemm_tile
from models.kernel_names import Tile
from models.measured import percentile, read_points
from models.profile import load_profile
from models.tile_times import TileTimes
from models.tiling import Tilings
from models.work import Work

LIBRARY = Path(__file__).parents[2] / "models" / "library" / "hardware"
SHAPES = ((2112, 7168), (24576, 1536), (32768, 512), (4096, 7168), (7168, 16384), (7168, 2048))
# H200's HBM by its data sheet.
HBM_GBPS = 4800.0


def dense(m: int, n: int, k: int) -> Work:
    return gemm(m, n, k, "fp8_block")


@pytest.fixture(scope="module")
def measured() -> TileTimes:
    points = read_points(LIBRARY / "h200-2x-nvlink-measured.points.csv")
    return TileTimes(Tilings(points), points)


def ns(times: TileTimes, work: Work, sms: int) -> float:
    found = times.ns(work, sms)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("sms", [132, 116, 100])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_more_rows_of_one_tile_take_no_less_time(
    measured: TileTimes, n: int, k: int, sms: int
) -> None:
    """From 129 rows on; DeepGEMM's next tile may well be a faster one."""
    longest: dict[Tile, float] = {}
    for rows in (129, 192, *range(256, 1537, 16)):
        work = dense(rows, n, k)
        tile, taken = deep_gemm_tile(work, sms), ns(measured, work, sms)
        assert taken >= longest.get(tile, 0.0) / 1.03, (rows, tile)
        longest[tile] = max(taken, longest.get(tile, 0.0))


@pytest.mark.parametrize("sms", [132, 100])
def test_weights_are_read_once_and_not_faster_than_hbm_can(measured: TileTimes, sms: int) -> None:
    for n, k in (*SHAPES, (16384, 7168)):
        for rows in (8, 64, 128, 192, 256, 512, 1024):
            work = dense(rows, n, k)
            assert ns(measured, work, sms) > work.read_bytes / HBM_GBPS, (rows, n, k)


def test_tiles_that_were_measured_waiting_only_are_priced_as_they_compute(
    measured: TileTimes,
) -> None:
    """1344 rows on 120 SMs are eleven rounds of a tile that decode alone has; 1536 were measured in 97.9 us on
    116 and 102.2 on 124. 513 rows are five of them on 132 SMs; 768 were measured in 57.9 us."""
    assert 51e3 < ns(measured, dense(1344, 24576, 1536), 120) < 102e3
    assert 16e3 < ns(measured, dense(513, 24576, 1536), 132) < 58e3


def test_a_public_table_of_the_same_gpu_agrees_between_decode_and_prefill(
    measured: TileTimes,
) -> None:
    """Of another version of the library, and all longer by a sixth: nine in ten are within 20 % of one ratio."""
    _, tables = load_profile("h200-2x-nvlink")
    logs = []
    for point in tables["gemm.fp8"]:
        n, k = (round(size) for size in point.key)
        if 128 < point.x <= 700 and n >= 2048 and k in {depth for _, depth in SHAPES}:
            logs.append(log(ns(measured, dense(round(point.x), n, k), 132) / (point.us * 1e3)))
    assert len(logs) > 20
    apart = [abs(value - median(logs)) for value in logs]
    assert median(apart) < 0.10 and percentile(apart, 0.9) < 0.20
