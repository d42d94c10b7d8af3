"""The script for many GPUs: what it asks for, in which order; exchanges beside a library's tables."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.exchange_tables import document, rows
from benchmarks.validation_cases import groups
from executor.calibrate.cases import DEFAULT_SCENARIOS, case_of
from executor.calibrate.plan import task
from models.machine import Machine
from models.measured import MeasuredPoint
from models.profile import load_machine

SCRIPT = Path("benchmarks/many_gpus.sh")
RECORDER = """#!/bin/sh
echo "$@" >> "$COMMANDS"
while [ $# -gt 1 ]; do
    case $1 in -o|--out) echo measured > "$2" ;; esac
    shift
done
"""


def commands(tmp_path: Path, gpus: int, limit_s: int = 590) -> list[str]:
    recorder, told = tmp_path / "python", tmp_path / "commands"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    told.touch()
    done = subprocess.run(
        ["bash", str(SCRIPT), str(gpus), str(tmp_path / "out")],
        env=os.environ
        | {"PYTHON": str(recorder), "COMMANDS": str(told), "LIMIT_S": str(limit_s)}
        | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if gpus > 1 else 3), done.stderr
    return told.read_text().splitlines()


def test_every_number_of_ranks_is_calibrated_and_cases_run_where_they_are_new(
    tmp_path: Path,
) -> None:
    told = commands(tmp_path, 4)
    calibrated = [line.split() for line in told if " calibrate " in line]
    asked = [(words[5], words[7]) for words in calibrated]
    assert asked == [("4", "production"), ("2", "production"), ("4", "triton"), ("2", "triton")]
    measured = [line.split() for line in told if "validation_run" in line]
    assert [words[3] for words in measured] == ["4", "4"]
    signals = [any("signals" in word for word in words) for words in measured]
    assert signals == [False, True]  # production kernels raise none
    assert sum("exchange_tables" in line for line in told) == 4
    assert sum("validation_others" in line for line in told) == 2


def test_two_gpus_try_the_whole_script_and_one_is_too_few(tmp_path: Path) -> None:
    assert sum("validation_run" in line for line in commands(tmp_path, 2)) == 2
    (tmp_path / "alone").mkdir()
    assert commands(tmp_path / "alone", 1) == []


def test_nothing_begins_without_time_left(tmp_path: Path) -> None:
    assert commands(tmp_path, 8, limit_s=10) == []


@pytest.mark.parametrize("ranks", [4, 8])
def test_the_cases_are_of_so_many_ranks(ranks: int) -> None:
    for name in ("many", "signals"):
        found = [g for g in groups(Path(f"benchmarks/validation_{name}.yaml")) if g.ranks == ranks]
        assert found
        for group in found:
            assert len(group.batch.tokens) == ranks
            assert group.on(load_machine("h200-8x-ib")).program("sequential").ranks == tuple(
                range(ranks)
            )


def points(machine: Machine, slower: float) -> list[MeasuredPoint]:
    found = []
    for asked in (
        task("layers", phase="prefill", tokens=1536, num_sms=24, cap=0),
        task("layers", phase="decode", tokens=24, kv=64, cap=0),
    ):
        for op in case_of(asked, DEFAULT_SCENARIOS, 8, "h200-8x-ib").ops(0).values():
            if op.layer == 0:
                sms = op.grid.enforced_budget or machine.num_sms
                ns = slower * machine.costs.alone(op.work, op.grid, sms).ns
                found.append(MeasuredPoint(op.work, sms, ns))
    return found


def test_an_exchange_is_told_beside_its_table() -> None:
    machine = load_machine("h200-8x-ib")
    found = list(rows(points(machine, 1.2), machine))
    names = [row.name for row in found]
    assert sorted(names) == [
        "combine",
        "combine, low latency",
        "dispatch",
        "dispatch, low latency",
    ]
    assert all(row.ratio == pytest.approx(1.2) and row.ranks == 8 for row in found)
    assert {row.sms for row in found if "low" not in row.name} == {24}
    whole = document(found)
    assert whole.count("| 1.20 |") == 4
    assert document([replace(found[0], measured_us=0.0)]).count("| 0.00 |") == 1
