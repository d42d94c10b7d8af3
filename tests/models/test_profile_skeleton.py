"""Profiles of one's own: a skeleton that loads, and merged timings."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.counts import gemm
from models.errors import InputError
from models.profile import load_machine
from models.profile_skeleton import MergedProfile, merged, skeleton
from models.work import Grid

STATIC = Grid(kind="static")


def test_a_skeleton_loads_as_it_stands_and_names_what_to_fill_in(tmp_path: Path) -> None:
    text = skeleton("mine", "h200-8x-ib")
    assert text.count("TODO") > 3
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    mine, base = load_machine(path), load_machine("h200-8x-ib")
    assert mine.name == "mine"
    assert (mine.num_sms, mine.fabric, mine.gaps) == (base.num_sms, base.fabric, base.gaps)
    assert mine.interference == base.interference
    assert "faster ones, and sizes in a table, keep the times" in text
    path.write_text(text.replace("sms: 132", "sms: 100", 1))
    assert load_machine(path).num_sms == 100
    with pytest.raises(InputError, match="did you mean"):
        skeleton("mine", "h200-8x")


def save(folder: Path, name: str, found: MergedProfile) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(found.profile)
    (folder / found.table_name).write_text(found.table)
    return path


def test_own_timings_replace_points_and_add_new_ones(tmp_path: Path) -> None:
    timings = tmp_path / "timings.csv"
    timings.write_text("n,k,m,us\n7168,7168,1024,50\n24576,1536,128,20\n")
    path = save(tmp_path, "mine", merged("mine", "h200-8x-ib", "gemm.fp8", timings))
    mine, base = load_machine(path), load_machine("h200-8x-ib")

    for size, us in (
        (gemm(1024, 7168, 7168, "fp8_block"), 50),
        (gemm(128, 24576, 1536, "fp8_block"), 20),
    ):
        cost = mine.costs.alone(size, STATIC, 132)
        assert cost.label == "measured"
        assert cost.ns / 1e3 == pytest.approx(us, rel=1e-3)
    untouched = gemm(16, 7168, 4096, "fp8_block")
    assert mine.costs.alone(untouched, STATIC, 132) == base.costs.alone(untouched, STATIC, 132)
    again = save(tmp_path, "twice", merged("twice", path, "gemm.fp8", timings))
    assert load_machine(again).name == "twice"


def test_a_table_or_row_that_cannot_be_merged_is_named(tmp_path: Path) -> None:
    timings = tmp_path / "timings.csv"
    timings.write_text("n,k,m,us\n7168,7168,1024,fast\n")
    with pytest.raises(InputError, match=r"timings\.csv:2"):
        merged("mine", "h200-8x-ib", "gemm.fp8", timings)
    with pytest.raises(InputError, match=r"did you mean 'gemm\.fp8'"):
        merged("mine", "h200-8x-ib", "gemm.f8", timings)
