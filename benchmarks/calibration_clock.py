"""Does what a calibration read of the clock carry a model of it?

    python -m benchmarks.calibration_clock records.jsonl benchmarks/data/validation_h200_2x.jsonl

Three questions to a calibration's records and to the clocks of whole programs. Does the same kernel, timed
in layers of different clocks, take its time by the clock? Can a layer's clock be told from the works that
it runs, where the layer took no part in the fit? And is the clock that the driver tells the one that the
SMs count? Nothing here goes into a profile.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import fmean, linear_regression, median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.validation_files import read
from models.calibration_records import work_of
from models.measured import point_key

Vector = npt.NDArray[np.float64]
# Layers whose median clocks are closer than this do not tell.
APART = 1.02
FOLDS = 5
# Data sheet of the H200 (SXM): its power limit and highest clock.
LIMIT_W, HIGHEST_MHZ = 700.0, 1980.0
# Smaller layers are over before the driver's power, a mean over about a second, has settled.
SETTLED_TOKENS = 3000
# TFLOPS, TFLOPS of attention, and TB/s are of this size in a layer.
UNITS = (1e6, 1e5, 1e3)
STARTS = ((500, 500, 300), (1000, 100, 100), (100, 1400, 100), (100, 100, 700))


@dataclass(frozen=True)
class Moved:
    """Points of one kind that were timed at different clocks: how many, how far their times are apart
    (median of largest over smallest - 1), how far clock x time is, and the power of the clock that the
    times follow (-1: cycles are kept)."""

    kind: str
    count: int
    times: float
    cycles: float
    power: float


def moved(records: Iterable[Mapping[str, Any]]) -> list[Moved]:
    """A row a kind."""
    takes: dict[str, list[tuple[int, float]]] = {}
    kinds: dict[str, str] = {}
    for record in records:
        if record["what"] == "alone" and record.get("mhz"):
            work = work_of(record["work"])
            key = f"{point_key(work, record['sms'])}|{work.hbm_bytes}"
            takes.setdefault(key, []).append((record["mhz"], record["ns"]))
            kinds[key] = work.kind
    told: dict[str, list[tuple[float, float, float]]] = {}
    for key, taken in takes.items():
        mhz, ns = zip(*taken, strict=True)
        if max(mhz) >= APART * min(mhz):
            cycles = [clock * time for clock, time in taken]
            slope = linear_regression([log(m) for m in mhz], [log(t) for t in ns]).slope
            apart = (max(ns) / min(ns) - 1, max(cycles) / min(cycles) - 1, slope)
            told.setdefault(kinds[key], []).append(apart)
    return [
        Moved(kind, len(rows), *(median(column) for column in zip(*rows, strict=True)))
        for kind, rows in sorted(told.items())
    ]


@dataclass(frozen=True)
class Layer:
    """One `layers` task: the rates of its works over its time in `UNITS`, its median clock and power."""

    name: str
    rates: tuple[float, float, float]
    mhz: int
    watts: int

    @property
    def fold(self) -> int:
        """Which fifth it is in."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % FOLDS


def layers_of(records: Sequence[Mapping[str, Any]]) -> list[Layer]:
    """Large prefill layers. Needs torch, to build the programs that were measured."""
    from executor.calibrate.cases import DEFAULT_SCENARIOS, case_of
    from executor.calibrate.plan import plan

    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_task.setdefault(record["task"], []).append(record)
    wanted = [t for t in plan() if t.kind == "layers" and t.text("phase") == "prefill"]
    return [
        _layer(task.name, by_task[task.name], case_of(task, DEFAULT_SCENARIOS, 2).program)
        for task in wanted
        if task.number("tokens") > SETTLED_TOKENS and task.name in by_task
    ]


def _layer(name: str, records: Sequence[Mapping[str, Any]], program: Any) -> Layer:
    from executor.calibrate.layer_points import held_sms

    alone = [r for r in records if r["what"] == "alone"]
    times = {point_key(work_of(r["work"]), r["sms"]): r["ns"] for r in alone}
    gap = next(r["ns"] for r in records if r["what"] == "trace_gap")
    ns, amounts = 0.0, [0.0, 0.0, 0.0]
    for op in program.launches(0):
        ns += times[point_key(op.work, held_sms(op, 132))] + gap
        amounts[op.work.kind.startswith("attention")] += sum(count for _, count in op.work.flops)
        amounts[2] += op.work.hbm_bytes
    rates = tuple(a / ns / unit for a, unit in zip(amounts, UNITS, strict=True))
    return Layer(name, (rates[0], rates[1], rates[2]), alone[0]["mhz"], alone[0]["watts"])


def clock_and_power(law: Vector, rates: Vector) -> tuple[Vector, Vector]:
    """MHz and watts: `law` is idle watts, watts for each rate at the highest clock, and the power of the
    clock that they follow; where the limit is met, the clock is what keeps it."""
    wanted = rates @ law[1:4]
    kept = np.minimum(1.0, (LIMIT_W - law[0]) / np.maximum(wanted, 1e-9))
    return HIGHEST_MHZ * kept ** (1 / law[4]), law[0] + wanted * kept


def fitted(layers: Sequence[Layer]) -> Vector:
    """The law with the least error in clocks (2 % each) and powers (3 %)."""
    from scipy.optimize import least_squares

    rates = np.array([layer.rates for layer in layers])
    mhz = np.array([layer.mhz for layer in layers], dtype=float)
    watts = np.array([layer.watts for layer in layers], dtype=float)

    def errors(law: Vector) -> Vector:
        clock, power = clock_and_power(law, rates)
        return np.concatenate([(clock / mhz - 1) / 0.02, (power / watts - 1) / 0.03])

    bounds = ([50, 0, 0, 0, 1], [250, 5000, 5000, 5000, 6])
    tried = [
        least_squares(errors, [100, *start, power], bounds=bounds)
        for start in STARTS
        for power in (1.2, 2, 3)
    ]
    best: Vector = min(tried, key=lambda one: one.cost).x
    return best


def left_out(layers: Sequence[Layer]) -> list[tuple[Layer, float, float]]:
    """Each layer with the clock that a fit of the other fifths gives, and their mean."""
    found = []
    for fold in sorted({layer.fold for layer in layers}):
        others = [layer for layer in layers if layer.fold != fold]
        law, mean = fitted(others), fmean(layer.mhz for layer in others)
        for layer in layers:
            if layer.fold == fold:
                clock, _ = clock_and_power(law, np.array([layer.rates]))
                found.append((layer, float(clock[0]), mean))
    return found


def driver_over_counted(entries: Iterable[Mapping[str, Any]]) -> list[tuple[str, float, float]]:
    """Each sequential case's clock by the driver and by the SMs' counters (medians), in MHz."""
    return [
        (
            entry["group"],
            median(sample[0] for rank in entry["clocks"]["sequential"] for sample in rank),
            median(mhz for rank in entry["sm_mhz"]["sequential"] for mhz in rank),
        )
        for entry in entries
        if "sm_mhz" in entry
    ]


def main() -> None:
    """Print three tables."""
    from executor.calibrate.store import Store

    records = Store(Path(sys.argv[1])).records()
    print(f"{'kind':<26}{'points':>7}{'times':>8}{'cycles':>8}{'power':>8}")
    for row in moved(records):
        print(f"{row.kind:<26}{row.count:>7}{row.times:>8.1%}{row.cycles:>8.1%}{row.power:>+8.2f}")
    layers = layers_of(records)
    print(f"\n{'layer left out':<54}{'MHz':>6}{'law':>8}{'mean':>8}")
    told = left_out(layers)
    for layer, clock, other in told:
        errors = f"{clock / layer.mhz - 1:>+8.1%}{other / layer.mhz - 1:>+8.1%}"
        print(f"{layer.name:<54}{layer.mhz:>6}{errors}")
    for title, limited in (("all", told), ("limited", [t for t in told if t[0].mhz < 1960])):
        law = [abs(clock / layer.mhz - 1) for layer, clock, _ in limited]
        mean = [abs(other / layer.mhz - 1) for layer, _, other in limited]
        print(f"{title:<54}{'median':>6}{median(law):>8.1%}{median(mean):>8.1%}")
        print(f"{'':<54}{'worst':>6}{max(law):>8.1%}{max(mean):>8.1%}")
    print("law of all:", ", ".join(f"{value:.4g}" for value in fitted(layers)))
    print(f"\n{'sequential':<38}{'driver':>8}{'counted':>8}{'ratio':>7}")
    for name, driver, counted in driver_over_counted(read(Path(sys.argv[2]))):
        print(f"{name:<38}{driver:>8.0f}{counted:>8.0f}{driver / counted:>7.2f}")


if __name__ == "__main__":
    main()
