"""Decode attention whose CTAs come in waves: between batches that fill the GPU once and twice."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from models.machine import Machine
from models.measured import MeasuredPoint, read_points
from models.profile import load_machine
from models.wave_times import WAVE, WaveTimes
from models.work import Work, work

LIBRARY = Path(__file__).parents[2] / "models" / "library" / "hardware"
OURS, PRODUCTION = "h200-2x-nvlink-triton-measured", "h200-2x-nvlink-measured"
SMS = 132


def points_of(profile: str) -> list[MeasuredPoint]:
    every = read_points(LIBRARY / f"{profile}.points.csv")
    return [point for point in every if point.work.kind == "attention_decode"]


def attention(sequences: int, keys: int) -> Work:
    """As in the points: 128 heads over latents."""
    pairs = sequences * keys
    return work(
        "attention_decode",
        flops={"bf16": 278_528 * pairs},
        heads=128, kv_tokens=pairs, pairs=pairs, qk_dim=576, sequences=sequences, tokens=sequences,
        v_dim=512,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ours() -> Machine:
    return load_machine(OURS)


def test_ctas_are_those_that_were_seen(ours: Machine) -> None:
    for point in points_of(OURS):
        assert ours.costs.footprint(point.work, WAVE).ctas == point.ctas


# `python -m benchmarks.triton_attention` on one H200, kernels by themselves: not of the calibration.
@pytest.mark.parametrize(("sequences", "us"), [(8, 36.0), (32, 93.8), (64, 168.1), (128, 336.1)])
def test_batches_beside_the_grid_take_what_they_take_by_themselves(
    ours: Machine, sequences: int, us: float
) -> None:
    cost = ours.costs.alone(attention(sequences, 4096), ours.grid("attention_decode"), SMS)
    assert cost.ns / 1e3 == pytest.approx(us, rel=0.06)


def test_a_start_and_a_time_for_each_key_are_recovered_and_waves_are_whole(ours: Machine) -> None:
    def ns(sequences: int, keys: int) -> float:
        """Two programs a sequence from 33 sequences on: none of these is cut."""
        return ceil(2 * sequences / SMS) * (9000 + 40.0 * keys)

    sizes = [(48, 1024), (48, 4096), (96, 1024), (120, 4096)]
    timed = [MeasuredPoint(attention(*size), SMS, ns(*size), ctas=2 * size[0]) for size in sizes]
    waves = WaveTimes(ours.costs, timed)
    for size in ((40, 2000), (66, 4096), (67, 4096), (132, 512), (133, 512)):
        assert waves.ns(attention(*size), SMS) == pytest.approx(ns(*size), rel=1e-6)
    assert waves.ns(attention(66, 4096), 66) == pytest.approx(2 * ns(66, 4096), rel=1e-6)


def test_kernels_that_launch_otherwise_have_no_waves(ours: Machine) -> None:
    """The production set's attention has as many CTAs as SMs whatever the batch; nor is there a line
    where nothing fills the GPU twice."""
    production = load_machine(PRODUCTION)
    work_ = attention(64, 4096)
    assert WaveTimes(production.costs, points_of(PRODUCTION)).ns(work_, SMS) is None
    assert WaveTimes(ours.costs, points_of(PRODUCTION)).ns(work_, SMS) is None
    once = [point for point in points_of(OURS) if point.ctas <= SMS]
    assert len(once) >= 4
    assert WaveTimes(ours.costs, once).ns(work_, SMS) is None
    assert WaveTimes(ours.costs, [replace(p, ctas=0) for p in once]).ns(work_, SMS) is None
