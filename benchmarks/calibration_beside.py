"""The calibration's own loops beside each other, as its law tells them and as the engine plays them.

    python -m benchmarks.calibration_beside benchmarks/data/calibration_h200_2x.records.jsonl.gz

The law of interference is fitted to these slowdowns, so that what the engine is off by beyond it comes of
how the engine applies it. Attention was calibrated without joining its keys, which the engine's has.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.calibration_takes import records
from benchmarks.pairs import predict
from benchmarks.pairs_document import LOOPS
from benchmarks.pairs_plan import GATE_UP, O_PROJ, Compute, Pair
from executor.calibrate.plan import DENSE_ROWS, GROUPED_ROWS, THIN_ROWS, WEIGHT_ROWS
from models.machine import Machine, slowdown_beside
from models.profile import load_machine

# The calibration's neighbours (`executor/calibrate/subjects.py`); its 65536 rows of 4096 columns are as many
# bytes as twice as many rows of 2048.
COMPUTES = {
    "dense": Compute("dense", O_PROJ, DENSE_ROWS),
    "grouped": Compute("grouped", GATE_UP, GROUPED_ROWS),
    "thin": Compute("weights", GATE_UP, THIN_ROWS),
    "weights": Compute("weights", GATE_UP, WEIGHT_ROWS),
    "attention": Compute("attention", "attn", 1536, 2),
    "elementwise": Compute("elementwise", "act", 131072),
    "norm": Compute("elementwise", "norm1", 32768),
}


@dataclass(frozen=True)
class Told:
    """One slowdown of a `loop` beside the neighbour: as measured, by the law, by the engine."""

    neighbour: str
    loop: str
    measured: float
    law: float
    engine: float


def pairs_of(given: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """By task the records of both loops of an exchange in normal mode beside a kernel of a layer."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in given:
        task = record.get("task", "")
        if record["what"] == "beside" and task.startswith("pairs ") and "_ll " not in task:
            loop = LOOPS[bool(record["family"])]
            found.setdefault(task, {})[loop] = record
    return found


def told(task: str, both: Mapping[str, Mapping[str, Any]], machine: Machine) -> Iterator[Told]:
    """The slowdowns of a task's loops."""
    sizes = dict(part.split("=", 1) for part in task.split()[1:])
    sms, tokens = int(sizes["num_sms"]), int(sizes["tokens"])
    made = predict(Pair(COMPUTES[sizes["compute"]], sizes["exchange"], sms, tokens), machine)
    rules = machine.interference
    for loop, record in both.items():
        if record["family"]:
            c0, c1 = rules.coefficients(record["family"], sizes["exchange"], sms, tokens)
        else:
            c0, c1 = rules.compute_coefficients(record["kinds"][0])
        rho = record["gbps"] / rules.achievable_hbm_gbps
        law = slowdown_beside(c0, c1, record["busy"], rho, rules.rho_cap)
        engine = made["beside"][loop]["median_ns"] / made["alone"][loop]["median_ns"]
        yield Told(sizes["compute"], loop, record["slowdown"], law, engine)


def rows(found: Iterable[Told]) -> list[str]:
    """A row a neighbour and loop: how far law and engine are off, median."""
    groups: dict[tuple[str, str], list[Told]] = {}
    for one in found:
        groups.setdefault((one.loop, one.neighbour), []).append(one)
    lines = ["| loop | beside, or of | pairs | measured | law off by | engine off by |"]
    lines.append("|" + " --- |" * 6)
    for (loop, neighbour), own in sorted(groups.items()):
        measured = f"x{min(t.measured for t in own):.2f} to x{max(t.measured for t in own):.2f}"
        off = [median(w / t.measured - 1 for w, t in zip(way, own, strict=True)) for way in (
            [t.law for t in own], [t.engine for t in own],
        )]  # fmt: skip
        lines.append(
            f"| {loop} | {neighbour} | {len(own)} | {measured} | {off[0]:+.1%} | {off[1]:+.1%} |"
        )
    return lines


def main() -> None:
    """Parse, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("records", type=Path)
    parser.add_argument("--profile", default="h200-2x-nvlink-measured")
    arguments = parser.parse_args()
    machine = load_machine(arguments.profile)
    both = pairs_of(records(arguments.records))
    print("\n".join(rows(one for task in both for one in told(task, both[task], machine))))


if __name__ == "__main__":
    main()
