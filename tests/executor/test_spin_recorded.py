"""The engine against what an H200 did with spin programs (docs/measurements/spin-oracle.md).

`tests/fixtures/spin-h200.json.gz` holds the programs that five repeats on the hardware started within
15 µs of each other, the median start of every span from its rank's gate, and the measured gaps.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.spin_oracle import machine, predicted, starts, waits
from models.machine import Gaps
from schedules.json_form import program_from_json

RECORDED = Path(__file__).parents[1] / "fixtures" / "spin-h200.json.gz"


def errors_ns(entry: dict[str, Any], gaps: Gaps) -> list[int]:
    """Start errors of the spans that waited, by the engine."""
    expected = starts(predicted(program_from_json(entry["program"]), machine(gaps)))
    return [
        abs(entry["starts_ns"][f"{rank}/{op}"] - span.start_ns)
        for (rank, op), span in expected.items()
        if waits(span)
    ]


@pytest.mark.parametrize(("ranks", "programs"), [("1 GPU", 20), ("2 GPUs", 15)])
def test_starts_are_within_two_microseconds_of_the_hardware(ranks: str, programs: int) -> None:
    recorded = json.loads(gzip.decompress(RECORDED.read_bytes()))[ranks]
    gaps = Gaps(**recorded["gaps_ns"])
    found = [errors_ns(entry, gaps) for entry in recorded["programs"].values()]
    waited = [errors for errors in found if errors]
    assert len(waited) >= programs
    assert median(median(errors) for errors in waited) < 2000
    spans = sorted(error for errors in waited for error in errors)
    assert spans[int(0.9 * len(spans))] < 10_000
