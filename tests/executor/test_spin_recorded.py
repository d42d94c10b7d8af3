"""The engine against what an H200 did with spin programs (docs/measurements/spin-oracle.md).

`tests/fixtures/spin-h200*.json.gz` hold the programs of two runs that five repeats on the hardware
started within 15 µs of each other, the median start of every span from its rank's gate, the measured
gaps, and which front end each stream had. The third run's programs were drawn after the rules were made.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.spin_oracle import machine, predicted, starts, waits
from models.machine import Gaps, Machine
from schedules.json_form import program_from_json

FIXTURES = Path(__file__).parents[1] / "fixtures"


def errors_ns(entry: dict[str, Any], on: Machine) -> list[int]:
    """Start errors of the spans that waited, by the engine."""
    expected = starts(predicted(program_from_json(entry["program"]), on))
    return [
        abs(entry["starts_ns"][f"{rank}/{op}"] - span.start_ns)
        for (rank, op), span in expected.items()
        if waits(span)
    ]


def all_errors_ns(run: str, ranks: str) -> list[list[int]]:
    """The same for every program with one that waited."""
    recorded = json.loads(gzip.decompress((FIXTURES / run).read_bytes()))[ranks]
    on = machine(Gaps(**recorded["gaps_ns"]), recorded.get("front_ends", (0, 1)))
    found = [errors_ns(entry, on) for entry in recorded["programs"].values()]
    return [errors for errors in found if errors]


@pytest.mark.parametrize(
    ("run", "ranks", "programs"),
    [
        ("spin-h200.json.gz", "1 GPU", 20),
        ("spin-h200.json.gz", "2 GPUs", 15),
        ("spin-h200-third.json.gz", "1 GPU", 30),
        ("spin-h200-third.json.gz", "2 GPUs", 30),
    ],
)
def test_starts_are_within_two_microseconds_of_the_hardware(
    run: str, ranks: str, programs: int
) -> None:
    waited = all_errors_ns(run, ranks)
    assert len(waited) >= programs
    assert median(median(errors) for errors in waited) < 2000
    spans = sorted(error for errors in waited for error in errors)
    assert spans[int(0.9 * len(spans))] < 10_000


def test_nearly_all_new_programs_are_within_three_microseconds() -> None:
    for ranks in ("1 GPU", "2 GPUs"):
        programs = all_errors_ns("spin-h200-third.json.gz", ranks)
        spans = sorted(error for errors in programs for error in errors)
        assert spans[int(0.95 * len(spans))] < 3000
