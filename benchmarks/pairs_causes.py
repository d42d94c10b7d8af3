"""What is left of the pairs' errors when times alone are as measured, and when tiles are known.

    python -m benchmarks.pairs_causes benchmarks/data/pairs_h200_2x_8.jsonl --seed 8

Two experiments on the engine, not on its profile: nothing here goes into a prediction.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.pairs import loop_period, makespan_ns, predicted_file, read
from benchmarks.pairs_document import FAMILIES, LOOPS, Outcome, outcomes
from benchmarks.pairs_draw import pairs
from benchmarks.pairs_plan import Pair, call_counts, late_ns, loops, parts_of
from models.machine import Cost, Costs, Footprint, Machine
from models.measured import read_points
from models.point_costs import PointCosts
from models.profile import load_machine
from models.work import EXCHANGE_KINDS, Grid, Work
from moe_overlap.gated import gate_machine
from simulator import simulate

BLOCK = 128
PUBLIC = "h200-2x-nvlink"
PROFILES = Path(__file__).parents[1] / "models" / "library" / "hardware"


@dataclass(frozen=True)
class AsMeasured:
    """Costs whose compute and exchange kernels are each scaled; with `tiles` the footprints of kernels
    that multiply say how many blocks of 128 x 128 they compute."""

    below: Costs
    compute: float
    exchange: float
    tiles: bool

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """See `models.machine.Costs`."""
        cost = self.below.alone(work, grid, sms)
        scale = self.exchange if work.kind in EXCHANGE_KINDS else self.compute
        return cost if work.kind == "spin" else replace(cost, ns=max(1, round(cost.ns * scale)))

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """See `models.machine.Costs`."""
        found = self.below.footprint(work, grid)
        count = blocks(work) if self.tiles else 0
        return replace(found, tiles=count) if count > found.ctas else found


def blocks(work: Work) -> int:
    """Blocks of 128 rows and columns of the result; of attention, of 128 queries of one head. 0: none."""
    sizes: Mapping[str, int] = dict(work.dims)
    if work.kind == "attention_prefill":
        return sizes["heads"] * -(-sizes["tokens"] // BLOCK)
    if work.kind not in ("gemm", "grouped_gemm_contiguous", "grouped_gemm_masked"):
        return 0
    rows = sizes.get("m", sizes.get("padded", 0))
    return -(-rows // BLOCK) * -(-sizes["n"] // BLOCK)


def again(pair: Pair, outcome: Outcome, machine: Machine, tiles: bool) -> tuple[float, ...]:
    """Relative errors of both loops' calls and of the makespan, with times alone as measured."""
    parts = parts_of(pair, machine)
    counts, late = call_counts(pair, parts, machine), late_ns(pair, parts, machine)
    scales = [outcome.measured[loop].alone_ns / outcome.predicted[loop].alone_ns for loop in LOOPS]
    costs = AsMeasured(machine.costs, scales[0], scales[1], tiles)
    timed = gate_machine(replace(machine, costs=costs))
    timeline = simulate(loops(pair, parts, counts, late), timed, fold=False, counters=False)
    which = "median_ns" if pair.capped else "mean_ns"
    calls = [
        loop_period(pair, timeline, index)[which] / outcome.measured[loop].beside_ns - 1
        for index, loop in enumerate(LOOPS)
    ]
    return (*calls, makespan_ns(timeline) / median(outcome.makespans_ns) - 1)


@dataclass(frozen=True)
class Flat:
    """One time for everything: over it, measured points are joined by straight lines in logs."""

    below: Costs

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """See `models.machine.Costs`."""
        return Cost(1_000_000, "fitted")

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """See `models.machine.Costs`."""
        return self.below.footprint(work, grid)


def joined(machine: Machine) -> PointCosts:
    """The profile's points without the shape of the tables below them."""
    points = read_points(PROFILES / f"{machine.name}.points.csv")
    return PointCosts(Flat(machine.costs), points, dict(machine.grids), {})


def straight(wanted: Sequence[Pair], found: Mapping[str, Outcome], machine: Machine) -> list[str]:
    """Errors of GEMMs' times alone, read between points as the profile does, and along straight lines."""
    costs, lines = joined(machine), []
    for family in ("dense", "grouped", "weights"):
        chosen = [p for p in wanted if p.compute.family == family and p.name in found]
        errors: tuple[list[float], list[float]] = ([], [])
        for pair in chosen:
            op, outcome = parts_of(pair, machine).compute, found[pair.name]
            ns = costs.alone(op.work, op.grid, op.grid.enforced_budget or machine.num_sms).ns
            errors[0].append(abs(outcome.off_alone("compute")))
            errors[1].append(abs(ns / outcome.measured["compute"].alone_ns - 1))
        cells = [f"{median(way):.1%}, {max(way):.1%}" for way in errors]
        lines.append(f"| {FAMILIES[family]} | {' | '.join(cells)} |")
    return lines


def left_out(machine: Machine) -> list[str]:
    """The same two ways on the calibration's own GEMM points, each read from the others."""
    points = read_points(PROFILES / f"{machine.name}.points.csv")
    below = load_machine(PUBLIC).costs
    ways = [PointCosts(b, points, dict(machine.grids), {}) for b in (below, Flat(below))]
    lines = []
    for kind in ("gemm", "grouped_gemm_contiguous", "grouped_gemm_masked"):
        cells = []
        for way in ways:
            read_again = [way.left_out(point) for point in points if point.work.kind == kind]
            errors = [error for error in read_again if error is not None]
            cells.append(f"{median(errors):.1%} ({len(errors)})")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def rows(
    wanted: Sequence[Pair], found: Mapping[str, Outcome], machine: Machine, *, capped: bool
) -> list[str]:
    """A row a class: median error of compute calls, exchange calls and makespan, in three ways."""
    lines = []
    for family, title in FAMILIES.items():
        chosen = [p for p in wanted if p.compute.family == family and p.capped is capped]
        chosen = [p for p in chosen if p.name in found]
        if not chosen:
            continue
        ways: list[Sequence[tuple[float, ...]]] = [
            [
                (
                    *(found[p.name].off(loop) for loop in LOOPS),
                    found[p.name].makespan_ns / median(found[p.name].makespans_ns) - 1,
                )
                for p in chosen
            ],
            *(
                [again(p, found[p.name], machine, tiles) for p in chosen]
                for tiles in (False, True)[: 1 if capped else 2]
            ),
        ]
        cells = [
            ", ".join(f"{median(abs(error[i]) for error in way):.1%}" for i in range(3))
            for way in ways
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Parse, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("measured", type=Path)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--profile", default="h200-2x-nvlink-measured")
    arguments = parser.parse_args()
    machine, wanted = load_machine(arguments.profile), tuple(pairs(arguments.seed))
    predicted = read(predicted_file(arguments.seed))
    found = {o.name: o for o in outcomes(predicted, read(arguments.measured))}
    print(
        "times alone: median, worst\n\n| class | as predicted | straight lines |\n|" + " --- |" * 3
    )
    print("\n".join(straight(wanted, found, machine)))
    print("\nleft out of the calibration: median (points)\n")
    print("| kind | as predicted | straight lines |\n|" + " --- |" * 3)
    print("\n".join(left_out(machine)))
    for capped in (True, False):
        heads = ["class", "as predicted", "times alone as measured", "and tiles known"]
        heads = heads[: 3 if capped else 4]
        print(f"\n{'capped' if capped else 'uncapped'}: compute call, exchange call, makespan\n")
        print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
        print("\n".join(rows(wanted, found, machine, capped=capped)))


if __name__ == "__main__":
    main()
