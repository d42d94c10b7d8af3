"""Experiments on one GPU: what their tables say of hand-made files, and prices against what one measured."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import gemm_between, power_gains, slow_host
from benchmarks.validation_cases import groups
from benchmarks.validation_files import read
from benchmarks.validation_predictors import by_engine
from models.errors import InputError
from models.measured import percentile
from models.profile import load_machine

DATA = Path(gemm_between.__file__).parent / "data"


def test_gemms_between_measured_sizes_are_priced_as_one_gpu_measured_them() -> None:
    """96 sizes that no calibration has; of the law before the 90th percentile was 45 %."""
    known = {tuple(r["size"]): r["ns"] for r in gemm_between.predicted("h200-2x-nvlink-measured")}
    found = read(DATA / "gemm_between_h200.jsonl")
    errors = [abs(known[tuple(r["size"])] / r["ns"] - 1.0) for r in found]
    assert len(errors) == 96
    assert median(errors) < 0.1
    assert percentile(errors, 0.9) < 0.2


def test_a_gemm_that_was_not_predicted_is_named() -> None:
    with pytest.raises(InputError, match=r"\[1, 2, 3, 0\]"):
        gemm_between.compared([], [{"size": [1, 2, 3, 0], "ns": 1.0}])


def gains(load: float, us: float, turns: int = 1) -> dict[str, Any]:
    times = [dict.fromkeys(power_gains.TURN, us)] * turns
    return {
        "gpu": "a", "rest": "sleep", "turns": turns, "load": load, "us": times, "mhz": 1500, "watts": 690,
    }  # fmt: skip


def test_what_rest_is_worth_is_over_full_load_and_ends_where_the_clock_is_highest() -> None:
    """100 us under full load, less 0.6 of it for each unit of rest up to 0.3; rests eight turns apart
    take no part."""
    rows = [gains(1 - rest, 100 * (1 - 0.6 * min(rest, 0.3))) for rest in (0.1, 0.2, 0.3, 0.4)]
    rows = [gains(1.0, 100.0), *rows, gains(0.7, 99.0, turns=8), gains(1.0, 100.0)]
    share, most = power_gains.gained([row for row in rows if row["turns"] == 1], "dense")
    assert share == pytest.approx(0.6)
    assert most == pytest.approx(0.3)
    told = power_gains.table(rows)
    assert "0.880" in told[3]
    assert "attention 0.60 (to 0.30)" in told[-1]


def test_a_probe_of_the_profiles_own_host_predicts_as_the_profile_does() -> None:
    machine = load_machine("h200-1x-measured")
    group = next(groups(slow_host.CASES))
    ns = by_engine(group, "sequential", machine)[0].ns
    probe = dict(machine.host.by_class)
    kinds = ("gemm", "norm", "quantise", "attention_decode")
    entry = {
        "group": group.name,
        "makespans_ns": {"sequential": [ns, 2 * ns, ns // 2]},
        "probe": [{kind: probe[kind] for kind in kinds}] * 3,
    }
    (row,) = slow_host.rows([entry, {"group": group.name, "hidden": {}}], machine)
    assert (row.host, row.own, row.probed, row.held) == (1.0, 0.0, 0.0, True)
    assert "0.0% with the probed one" in "\n".join(slow_host.told("run", [row]))
