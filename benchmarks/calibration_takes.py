"""Kernels that a calibration timed in layers of different load, and how far its power law brings them together.

python -m benchmarks.calibration_takes benchmarks/data/calibration_h200_2x.records.jsonl.gz
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Mapping
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

from models.calibrated_power import Take, at_rest
from models.calibration_records import machine_of, sorted_out
from models.costs import sheet_of
from models.power_law import PowerLaw
from models.profile import load_profile

BASE = "h200-2x-nvlink"


def records(path: Path) -> list[dict[str, Any]]:
    """All records of finished tasks, each with its task."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        entries = [json.loads(line) for line in file]
    return [{**r, "task": e["task"]} for e in entries for r in e.get("records", ())]


def several(takes: Iterable[Take], law: PowerLaw) -> dict[str, list[Take]]:
    """Takes of one kernel in layers of different load, of kinds that the law has a gain for."""
    found: dict[str, list[Take]] = {}
    for take in takes:
        if take.load is not None and law.gain(take.point.work) is not None:
            found.setdefault(take.point.key, []).append(take)
    return {key: same for key, same in found.items() if len(same) > 1}


def apart(groups: Iterable[list[Take]], law: PowerLaw | None) -> float:
    """Root mean square of the logs of times over their mean, as taken or, with a law, at rest."""
    squares: list[float] = []
    for same in groups:
        logs = [log(at_rest(take, law).ns) for take in same]
        squares += [(value - fmean(logs)) ** 2 for value in logs]
    return float(fmean(squares) ** 0.5)


def lines(given: list[Mapping[str, Any]]) -> list[str]:
    """The takes by kernel, load and us; then by kind what the law leaves."""
    found = sorted_out(given, 0, "records", sheet_of(load_profile(BASE)[0]))
    law = found.power
    if law is None:
        return ["no law"]
    groups = several(found.takes, law)
    told = []
    for key, same in sorted(groups.items()):
        told.append(key)
        told += [
            f"  load {t.load:.3f}  {t.point.ns / 1e3:9.1f} us" for t in sorted(same, key=_load)
        ]
    for kind, gain in law.by_kind:
        own = [same for key, same in groups.items() if key.startswith(f"{kind}|")]
        told.append(
            f"{kind}: share {gain.share:.2f}, at most {gain.ns / 1e3:.0f} us, most {law.most}: "
            f"{sum(map(len, own))} takes, {apart(own, None):.1%} apart, at rest {apart(own, law):.1%}"
        )
    return told


def _load(take: Take) -> float:
    return take.load or 0.0


def main() -> None:
    """Print."""
    given = records(Path(sys.argv[1]))
    print(machine_of(given).get("gpu"))
    print("\n".join(lines(list(given))))


if __name__ == "__main__":
    main()
