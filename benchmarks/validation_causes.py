"""What is left of the validation's errors with the host's times and at the clock that were measured.

    python -m benchmarks.validation_causes benchmarks/data/validation_h200_2x.jsonl

Experiments on the engine, not on its profile: nothing here goes into a prediction. Kernels that are bound
by arithmetic are slowed by the clock that their nearest point was taken at over the clock of the
measured case. The host's times are those of one more run of the case, by kind of launch, where the
profile's are those of the machine that was calibrated; what was not timed is scaled as the rest is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import dist, log
from pathlib import Path
from statistics import correlation, fmean, linear_regression, median
from typing import Any

from benchmarks.validation import PREDICTED, PROFILES, read
from benchmarks.validation_cases import CASES, UNSEEN, Group, groups
from benchmarks.validation_outcome import Case, cases
from benchmarks.validation_predictors import BF16_TFLOPS, FP8_TFLOPS, HBM_GBPS
from models.host import with_host
from models.machine import Cost, Costs, Footprint, HostCosts, Machine
from models.measured import MeasuredPoint, percentile, read_points
from models.point_costs import series_of
from models.profile import load_machine
from models.work import Grid, Work
from moe_overlap.gated import makespan_ns, predicted

# A case counts as bound by the host when it is predicted this much longer than with a free host.
HOST_BOUND = 1.05
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
    """One case: relative error by the profile and engine of now, at the measured clock, with the measured
    host, and with both. `clock` is the clock of its points over the measured one, None where no kernel
    is bound by arithmetic or no clock was read; `host` the measured host's time over the profile's,
    None where it was not timed; `bound` the predicted time over that of a host that costs nothing."""

    case: Case
    clock: float | None
    host: float | None
    bound: float
    now: float
    at_clock: float
    at_host: float
    at_both: float

    @property
    def kind(self) -> str:
        """What limits it."""
        if self.case.kind == "decode, graph":
            return "decode, graph"
        return "op by op, host-bound" if self.bound > HOST_BOUND else "op by op, GPU-bound"

    @property
    def against_fastest(self) -> float:
        """Error with both against the fastest repeat: a host that is disturbed only gets slower."""
        return (1 + self.at_both) * self.case.measured_ns / min(self.case.times_ns) - 1


def explain(case: Case, group: Group, machine: Machine, host: Mapping[str, int]) -> Explained:
    """Run the case again in four ways, and once with a host that costs nothing."""
    clocks = point_clocks(read_points(LIBRARY / f"{machine.name}.points.csv"))
    ratio, at = None, machine
    if case.mhz:
        mhz = median(case.mhz)
        at = replace(machine, costs=AtClock(machine.costs, clocks, mhz))
        ratio = _clock_ratio(group, case.schedule, machine, clocks, mhz)
    hosted, slower = with_host(machine.host, launched(host))
    free = HostCosts(tuple((kind, 0) for kind, _ in machine.host.by_class), 0.0)
    bound = _again(case, group, machine) / _again(case, group, replace(machine, host=free))
    ways = (machine, at, replace(machine, host=hosted), replace(at, host=hosted))
    errors = (_again(case, group, way) / case.measured_ns - 1 for way in ways)
    return Explained(case, ratio, slower, bound, *errors)


def launched(host: Mapping[str, int]) -> dict[str, int]:
    """The times without those of launches that a library's call makes in another's place."""
    inside = () if "notify" in host else ("layout",)
    return {kind: ns for kind, ns in host.items() if kind not in inside}


def _again(case: Case, group: Group, machine: Machine) -> float:
    return makespan_ns(predicted(group.on(machine).program(case.schedule), machine))


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
    names = sorted({one.kind for one in whole}, reverse=True)
    return [(name, [one for one in whole if one.kind == name]) for name in names]


def correlation_line(found: Sequence[Explained]) -> str:
    """How the error goes with the clock."""
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
    """A row a kind of case: median and 90th percentile of the errors in six ways."""
    lines = [
        "| cases | how many | as written down: median, 90 % | now | at the measured clock "
        "| with the measured host | with both | against the fastest repeat |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, chosen in kinds(found):
        ways = [
            sorted(abs(error) for error in errors)
            for errors in zip(
                *(
                    (o.case.error, o.now, o.at_clock, o.at_host, o.at_both, o.against_fastest)
                    for o in chosen
                ),
                strict=True,
            )
        ]
        cells = [f"{median(way):.1%}, {percentile(way, 0.9):.1%}" for way in ways]
        lines.append(f"| {name} | {len(chosen)} | {' | '.join(cells)} |")
    return lines


def each(found: Sequence[Explained]) -> list[str]:
    """A row a case, the largest errors first."""
    lines = [
        "| case | schedule | points' clock over measured | measured host over profile's "
        "| slowest over fastest repeat | as written down | now | at the measured clock "
        "| with the measured host | with both | against the fastest repeat |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in sorted(found, key=lambda one: -abs(one.case.error)):
        ratios = " | ".join(f"{r:.3f}" if r else "–" for r in (one.clock, one.host))
        lines.append(
            f"| {one.case.group} | {one.case.schedule} | {ratios} "
            f"| {max(one.case.times_ns) / min(one.case.times_ns):.2f} | {one.case.error:+.1%} "
            f"| {one.now:+.1%} | {one.at_clock:+.1%} | {one.at_host:+.1%} | {one.at_both:+.1%} "
            f"| {one.against_fastest:+.1%} |"
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
    hosts: dict[str, Any] = {e["group"]: e["host"] for e in entries if "host" in e}
    machines = {2: load_machine(arguments.profile), 1: load_machine(arguments.one)}
    found = [
        explain(
            case,
            known[case.group],
            machines[case.ranks],
            hosts.get(case.group, {}).get(case.schedule, {}),
        )
        for case in cases(read(arguments.predicted), entries)
    ]
    limited = [one for name, chosen in kinds(found) if "GPU" in name for one in chosen]
    told = [f"launched op by op, GPU-bound, {correlation_line(limited)}", "", *rows(found)]
    print("\n".join([*told, "", *each(found)]))


if __name__ == "__main__":
    main()
