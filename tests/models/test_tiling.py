"""Tiles: what a kernel's name says, how many there are, and what a profile makes of them."""

from __future__ import annotations

import pytest

from models.calibrated_kernels import grid_kind, held_tail
from models.counts import gemm, grouped_gemm
from models.fit import fit_tail
from models.kernel_names import NO_TILE, tile_of
from models.machine import Cost, Footprint, Interference, SizeLaw
from models.measured import MeasuredPoint
from models.point_costs import PointCosts
from models.profile import load_profile
from models.tiling import tile_count, tile_ratios
from models.work import Grid, Work, work

STATIC = Grid(kind="static")
DENSE = gemm(1536, 7168, 2048, "fp8_block")
DEEP_GEMM = (
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 7168u, 2048u, 1u, 128u, 112u, "
    "128u, 128u, 128u, 32u, 6u, 0u, 128u, 256u, 2u, true, 132u, (deep_gemm::GemmType)0, "
    "deep_gemm::EpilogueIdentity>(float*, int*, unsigned int, unsigned int, unsigned int)"
)


class Level:
    """Costs of a microsecond for everything, on 132 CTAs."""

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        return Cost(1000, "roofline")

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        return Footprint(grid.enforced_budget or 132, threads=384)


def attention(sequences: int, tokens: int) -> Work:
    return work("attention_prefill", sequences=sequences, tokens=tokens, heads=128, pairs=1)


def test_a_gemms_name_states_rows_and_columns_after_its_groups() -> None:
    assert tile_of(DENSE, DEEP_GEMM, 384) == (128, 112)
    assert tile_of(DENSE, DEEP_GEMM.replace("u,", ","), 384) == (128, 112)
    other = gemm(1536, 4096, 7168, "fp8_block")
    assert tile_of(other, DEEP_GEMM, 384) == NO_TILE
    assert tile_of(DENSE, "nvjet_tst_128x112_64x6_1x2_h_bz_coopB_NTT", 384) == NO_TILE


def test_an_attentions_name_states_queries_and_keys() -> None:
    name = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x192_4x1x1_kernel0_0"
    assert tile_of(attention(2, 3072), name, 384) == (128, 128)


@pytest.mark.parametrize(
    ("given", "tile", "count"),
    [
        (DENSE, (128, 112), 12 * 64),
        (gemm(1537, 7168, 2048, "fp8_block"), (128, 112), 13 * 64),
        (
            grouped_gemm("grouped_gemm_contiguous", (130, 3), 4096, 7168, "fp8_block", 1),
            (128, 128),
            3 * 32,
        ),
        (
            grouped_gemm("grouped_gemm_masked", (65, 65, 0), 4096, 7168, "fp8_block", 1),
            (64, 128),
            2 * 2 * 32,
        ),
        (attention(2, 3000), (128, 128), 128 * 12),
        (DENSE, NO_TILE, 0),
    ],
)
def test_tiles_are_counted_expert_by_expert_and_head_by_head(
    given: Work, tile: tuple[int, int], count: int
) -> None:
    assert tile_count(given, tile) == count


def point(m: int, sms: int, tile: tuple[int, int], ns: float = 1000.0) -> MeasuredPoint:
    return MeasuredPoint(gemm(m, 7168, 2048, "fp8_block"), sms, ns, tile=tile)


def test_a_launch_near_a_point_has_its_tiles_and_no_idle_cta() -> None:
    points = [point(1536, 132, (128, 112)), point(1536, 12, (256, 128)), point(64, 132, (64, 256))]
    costs = PointCosts(Level(), points, {"gemm": STATIC}, {})
    wide = gemm(1600, 7168, 2048, "fp8_block")
    found = costs.footprint(wide, STATIC)
    assert (found.tiles, found.ctas, found.threads) == (13 * 64, 132, 384)
    few = costs.footprint(wide, Grid(sm_budget=16, kind="static"))
    assert (few.tiles, few.ctas) == (7 * 56, 16)
    small = costs.footprint(gemm(60, 7168, 2048, "fp8_block"), STATIC)
    assert (small.tiles, small.ctas) == (28, 28)
    assert costs.footprint(wide, Grid()).tiles == 0


def test_a_tiles_time_falls_with_the_sms_as_it_was_measured() -> None:
    """Of 768 tiles 6 rounds on 132 SMs, 64 on 12; the larger tile counts twice."""
    points = [
        point(1536, 132, (128, 112), 6000.0),
        point(1536, 12, (128, 112), 64 * 700.0),
        point(1536, 24, (256, 112), 16 * 1500.0),
    ]
    ratios = dict(tile_ratios(points)["gemm"])
    assert ratios == pytest.approx({12 / 132: 0.7, 24 / 132: 0.75})


def test_the_tail_laws_coefficient_is_recovered() -> None:
    shares = (0.09, 0.18, 0.5, 0.76, 0.9)
    fit = fit_tail([(share, (0.3 + 0.7 * share**4) ** 0.25) for share in shares])
    assert fit.value("tail") == pytest.approx(0.3, rel=1e-4)


@pytest.mark.parametrize(
    ("ctas", "late", "kind"),
    [
        (132, 0.15, "dynamic"),
        (132, 0.9, "static"),
        (132, 1.4, "static"),
        (400, 0.15, "wave"),
        (132, 0.3, None),
        (132, 0.02, None),
        (104, 0.15, None),
    ],
)
def test_kernels_that_share_out_tiles_are_told_by_how_late_they_end(
    ctas: int, late: float, kind: str | None
) -> None:
    profile, _ = load_profile("h200-2x-nvlink")
    holds = [[ns, 400e3 + late * ns] for ns in (100e3, 200e3, 300e3)]
    hold = {"ctas": ctas, "threads": 384, "registers": 64512, "smem_bytes": 200_000, "held_sms": 24}
    assert grid_kind(hold | {"alone_ns": 400e3, "holds": holds}, profile) == kind


def test_a_dynamic_kernels_tail_law_is_told_by_how_late_it_ends() -> None:
    """24 of 132 SMs held: the others work as the law with 0.3 says."""
    share = 108 / 132
    late = 1 - share / (0.3 + 0.7 * share**4) ** 0.25
    holds = [[ns, 400e3 + late * ns] for ns in (100e3, 200e3)]
    hold = {"held_sms": 24, "alone_ns": 400e3, "holds": holds}
    assert held_tail(hold, 132) == pytest.approx(0.3)
    never = hold | {"holds": [[100e3, 400e3 + 24 / 132 * 100e3]]}
    assert held_tail(never, 132) == pytest.approx(1.0)


def test_a_slowdowns_coefficients_follow_direction_and_sms() -> None:
    rules = Interference(
        4000.0,
        by_family=(("normal", 0.1, 0.2), ("low_latency", 0.3, 0.4)),
        by_exchange=(
            ("normal", "combine", 8, 0.2, 1.0),
            ("normal", "combine", 32, 0.4, 0.5),
            ("normal", "dispatch", 24, 0.0, 0.3),
        ),
    )
    assert rules.coefficients("normal", "combine", 16) == pytest.approx((0.3, 0.75))
    assert rules.coefficients("normal", "combine", 4) == pytest.approx((0.2, 1.0))
    assert rules.coefficients("normal", "combine", 64) == pytest.approx((0.4, 0.5))
    assert rules.coefficients("normal", "dispatch", 8) == pytest.approx((0.0, 0.3))
    assert rules.coefficients("normal", "notify", 1) == (0.1, 0.2)
    assert rules.coefficients("low_latency", "combine_send", 64) == (0.3, 0.4)


def test_a_larger_exchange_slows_less_by_its_neighbours_sms() -> None:
    """c0 falls with the root of the size, from a quarter to four times the size it is stated of."""
    law = SizeLaw(tokens=2000, power=-0.5, least=500, most=8000)
    rules = Interference(
        4000.0,
        by_exchange=(("normal", "combine", 24, 0.2, 1.0),),
        by_size=(("normal", "combine", law),),
    )
    for tokens, c0 in ((0, 0.2), (2000, 0.2), (8000, 0.1), (500, 0.4), (10, 0.4), (90000, 0.1)):
        assert rules.coefficients("normal", "combine", 24, tokens) == pytest.approx((c0, 1.0))
    assert rules.coefficients("normal", "dispatch", 24, 8000) == (0.0, 0.0)
