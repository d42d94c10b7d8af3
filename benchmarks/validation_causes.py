"""What is left of the validation's errors at the clock and with the host's times that were measured.

    python -m benchmarks.validation_causes benchmarks/data/validation_h200_2x.jsonl

Experiments on the engine, not on its profile: nothing here goes into a prediction. Kernels that are bound
by arithmetic are slowed by the clock that their nearest point was taken at over the clock of the
measured case. The host is that of the machine that measured, where the profile's is that of the machine
that was calibrated: medians by kind of launch over the sequential schedules of all cases, timed apart from
their repeats; what was not timed is scaled as the rest is.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import dist, log
from pathlib import Path
from statistics import correlation, fmean, linear_regression, median
from typing import Any

from benchmarks.validation import PREDICTED, PROFILES, read
from benchmarks.validation_cases import CASES, UNSEEN, Group, groups
from benchmarks.validation_document import percentile, summary
from benchmarks.validation_outcome import Case, cases
from benchmarks.validation_predictors import BF16_TFLOPS, FP8_TFLOPS, HBM_GBPS, by_engine
from models.machine import Cost, Costs, Footprint, HostCosts, Machine
from models.measured import MeasuredPoint, read_points
from models.point_costs import series_of
from models.profile import load_machine
from models.work import Grid, Work
from moe_overlap.gated import makespan_ns, predicted

LIBRARY = Path(__file__).parents[1] / "models" / "library" / "hardware"


@dataclass(frozen=True)
class PointClocks:
    """The clock at which each kernel's nearest point was taken, by series."""

    by_family: Mapping[tuple[object, ...], Sequence[tuple[tuple[float, ...], int]]]

    def mhz(self, work: Work, sms: int) -> int:
        """Of the point whose sizes and SMs are nearest; 0 where the kernel has no point."""
        series = series_of(work)
        at, found = (*series.at, log(sms)), self.by_family.get(series.family, ())
        return min(found, key=lambda item: dist(item[0], at))[1] if found else 0


def point_clocks(points: Iterable[MeasuredPoint]) -> PointClocks:
    """From a profile's points; those whose clock was not read are left out."""
    found: dict[tuple[object, ...], list[tuple[tuple[float, ...], int]]] = {}
    for point in points:
        if point.mhz:
            series = series_of(point.work)
            at = (*series.at, log(point.sms))
            found.setdefault(series.family, []).append((at, point.mhz))
    return PointClocks(found)


def bound_by_arithmetic(work: Work) -> bool:
    """Whether the operations take longer than the bytes, by the data sheet."""
    flops = sum(
        count / (FP8_TFLOPS if dtype == "fp8" else BF16_TFLOPS) / 1e3 for dtype, count in work.flops
    )
    return flops > work.hbm_bytes / HBM_GBPS


@dataclass(frozen=True)
class AtClock:
    """A machine's costs with kernels that are bound by arithmetic at another clock than their points'."""

    below: Costs
    clocks: PointClocks
    mhz: float

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """See `models.machine.Costs`."""
        cost = self.below.alone(work, grid, sms)
        own = self.clocks.mhz(work, sms) if bound_by_arithmetic(work) else 0
        return replace(cost, ns=max(1, round(cost.ns * own / self.mhz))) if own else cost

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """See `models.machine.Costs`."""
        return self.below.footprint(work, grid)


@dataclass(frozen=True)
class Explained:
    """One case: relative error at the measured clock, with the measured host, and with both. `clock` is
    the clock of its points over the measured one, None where no kernel is bound by arithmetic or no
    clock was read; `host` the measured host's time over the profile's, None where it was not timed."""

    case: Case
    clock: float | None
    host: float | None
    at_clock: float
    at_host: float
    at_both: float


def explain(case: Case, group: Group, machine: Machine, host: Mapping[str, int]) -> Explained:
    """Run the case again in three ways."""
    clocks = point_clocks(read_points(LIBRARY / f"{machine.name}.points.csv"))
    ratio, at = None, machine
    if case.mhz:
        mhz = median(case.mhz)
        at = replace(machine, costs=AtClock(machine.costs, clocks, mhz))
        ratio = _clock_ratio(group, case.schedule, machine, clocks, mhz)
    hosted, slower = with_host(machine.host, host)
    ways = (at, replace(machine, host=hosted), replace(at, host=hosted))
    return Explained(case, ratio, slower, *(_error(case, group, way) for way in ways))


def on_machine(
    found: Sequence[Case], known: Mapping[str, Group], machines: Mapping[int, Machine]
) -> list[Case]:
    """The cases predicted again, bands and first schedules included, on the machines of their ranks."""
    made = {
        (c.group, c.schedule): by_engine(known[c.group], c.schedule, machines[c.ranks])[0]
        for c in found
    }
    return [
        replace(
            c,
            predicted=made[c.group, c.schedule],
            first_ns=made[c.group, "sequential"].ns,
            noise_ns=made[c.group, c.schedule].noise_against(made[c.group, "sequential"]),
        )
        for c in found
    ]


def with_host(profile: HostCosts, measured: Mapping[str, int]) -> tuple[HostCosts, float | None]:
    """The profile's host with the times that were measured, the others scaled by the median ratio; and
    that ratio, None where nothing was measured."""
    known = dict(profile.by_class)
    ratios = [measured[kind] / known[kind] for kind in measured if known.get(kind)]
    if not ratios:
        return profile, None
    ratio = median(ratios)
    scaled = {kind: round(ns * ratio) for kind, ns in known.items()}
    return HostCosts(tuple({**scaled, **measured}.items()), profile.error), ratio


def _error(case: Case, group: Group, machine: Machine) -> float:
    program = group.on(machine).program(case.schedule)
    return makespan_ns(predicted(program, machine)) / case.measured_ns - 1


def _clock_ratio(
    group: Group, schedule: str, machine: Machine, clocks: PointClocks, mhz: float
) -> float | None:
    """Points' clock over `mhz`, mean over the kernels bound by arithmetic, weighted by their time."""
    weights, values = [], []
    for op in group.on(machine).program(schedule).launches(0):
        sms = op.grid.enforced_budget or machine.num_sms
        own = clocks.mhz(op.work, sms) if bound_by_arithmetic(op.work) else 0
        if own:
            weights.append(machine.costs.alone(op.work, op.grid, sms).ns)
            values.append(own)
    return fmean(values, weights) / mhz if values else None


def kinds(found: Iterable[Explained]) -> list[tuple[str, list[Explained]]]:
    """The cases by what limits them."""
    whole = list(found)
    names = sorted({one.case.kind for one in whole}, reverse=True)
    return [(name, [one for one in whole if one.case.kind == name]) for name in names]


def correlation_line(found: Sequence[Explained]) -> str:
    """How the error of prefill cases goes with the clock."""
    known = [(log(one.clock), log(1 + one.case.error)) for one in found if one.clock]
    if len(known) < 3:
        return "fewer than three cases whose clock is known"
    clock, error = zip(*known, strict=True)
    slope, start = linear_regression(clock, error)
    return (
        f"{len(known)} cases: correlation of error (log of predicted over measured) and clock (log of "
        f"points' over measured): {correlation(clock, error):+.2f}; error = {start:+.1%} "
        f"{slope:+.2f} x clock; points' clock over measured {min(one.clock or 9 for one in found):.3f} to "
        f"{max(one.clock or 0 for one in found):.3f}"
    )


def rows(found: Sequence[Explained]) -> list[str]:
    """A row a kind of case: median and 90th percentile of the errors in four ways."""
    lines = [
        "| cases | how many | as predicted: median, 90 % | at the measured clock "
        "| with the measured host | with both |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, chosen in kinds(found):
        ways = [
            sorted(abs(error) for error in errors)
            for errors in zip(
                *((o.case.error, o.at_clock, o.at_host, o.at_both) for o in chosen), strict=True
            )
        ]
        cells = [f"{median(way):.1%}, {percentile(way, 0.9):.1%}" for way in ways]
        lines.append(f"| {name} | {len(chosen)} | {' | '.join(cells)} |")
    return lines


def each(found: Sequence[Explained]) -> list[str]:
    """A row a case, the largest errors first."""
    lines = [
        "| case | schedule | points' clock over measured | measured host over profile's "
        "| as predicted | at the measured clock | with the measured host | with both |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in sorted(found, key=lambda one: -abs(one.case.error)):
        ratios = " | ".join(f"{r:.3f}" if r else "–" for r in (one.clock, one.host))
        lines.append(
            f"| {one.case.group} | {one.case.schedule} | {ratios} | {one.case.error:+.1%} "
            f"| {one.at_clock:+.1%} | {one.at_host:+.1%} | {one.at_both:+.1%} |"
        )
    return lines


def main() -> None:
    """Parse, run again, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("measured", type=Path)
    parser.add_argument("--predicted", type=Path, default=PREDICTED)
    parser.add_argument("--profile", default=PROFILES[2])
    parser.add_argument("--one", default=PROFILES[1])
    arguments = parser.parse_args()
    entries = read(arguments.measured)
    known = {group.name: group for file in (UNSEEN, CASES) for group in groups(file)}
    hosts = {
        ranks: machine_host(entries, {g.name for g in known.values() if g.ranks == ranks})
        for ranks in PROFILES
    }
    machines = {2: load_machine(arguments.profile), 1: load_machine(arguments.one)}
    told = cases(read(arguments.predicted), entries)
    found = [
        explain(case, known[case.group], machines[case.ranks], hosts[case.ranks]) for case in told
    ]
    hosted = {
        ranks: replace(machine, host=with_host(machine.host, hosts[ranks])[0])
        for ranks, machine in machines.items()
    }
    prefill = [one for name, chosen in kinds(found) if name == "prefill" for one in chosen]
    print("\n".join(["prefill, " + correlation_line(prefill), "", *rows(found), ""]))
    print("with the host of the machine that measured\n")
    print("\n".join([*summary(on_machine(told, known, hosted)), "", *each(found)]))


def machine_host(entries: Iterable[Mapping[str, Any]], names: Collection[str]) -> dict[str, int]:
    """ns by kind of launch on the machine that measured: the median over the sequential schedules of
    these groups."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        if entry["group"] in names and "host" in entry:
            for kind, ns in entry["host"]["sequential"].items():
                found.setdefault(kind, []).append(ns)
    return {kind: round(median(values)) for kind, values in found.items()}


if __name__ == "__main__":
    main()
