"""What is left of the validation's errors with the host's times that were measured.

    python -m benchmarks.validation_causes benchmarks/data/validation_h200_2x.jsonl

An experiment on the engine, not on its profile: nothing here goes into a prediction. The host's times are
those of one more run of the case, by kind of launch, where the profile's are those of the machine that
was calibrated; what was not timed is scaled as the rest is. They are one rank's (the last `probe_rank`). How much
longer the slowest rank took between compute ops than rank 0 is told beside, and what comes out when every
launch takes so much longer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.validation import PREDICTED, PROFILES
from benchmarks.validation_cases import CASES, UNSEEN, Group, groups
from benchmarks.validation_files import read
from benchmarks.validation_outcome import Case, cases
from models.host import with_host
from models.machine import HostCosts, Machine
from models.measured import percentile
from models.profile import load_machine
from moe_overlap.gated import makespan_ns, predicted

# A case counts as bound by the host when it is predicted this much longer than with a free host.
HOST_BOUND = 1.05


@dataclass(frozen=True)
class Explained:
    """One case: relative error by the profile and engine of now, and with the measured host. `host` is the
    measured host's time over the profile's, None where it was not timed; `bound` the predicted time
    over that of a host that costs nothing. `slower` is what the slowest rank took between compute ops over
    what rank 0 did, None where it was not kept; `at_slowest` the error with a host so much slower."""

    case: Case
    host: float | None
    bound: float
    now: float
    at_host: float
    at_slowest: float
    slower: float | None = None

    @property
    def kind(self) -> str:
        """What limits it."""
        if self.case.kind == "decode, graph":
            return "decode, graph"
        return "op by op, host-bound" if self.bound > HOST_BOUND else "op by op, GPU-bound"

    @property
    def against_fastest(self) -> float:
        """Error with the slowest rank's host against the fastest repeat: one that is disturbed only gets
        slower."""
        return (1 + self.at_slowest) * self.case.measured_ns / min(self.case.times_ns) - 1


def explain(
    case: Case,
    group: Group,
    machine: Machine,
    host: Mapping[str, int],
    between: Sequence[int] = (),
) -> Explained:
    """Run the case again with either host, and with one that costs nothing. `between` is the record's
    `between_ns` [rank]."""
    hosted, ratio = with_host(machine.host, launched(host))
    slower = max(between) / between[0] if between else None
    ways = (machine.host, hosted, times(hosted, slower or 1.0), times(hosted, 0.0))
    now, at_host, at_slowest, at_none = (
        _again(case, group, replace(machine, host=way)) for way in ways
    )
    measured = case.measured_ns
    return Explained(
        case,
        ratio,
        now / at_none,
        now / measured - 1,
        at_host / measured - 1,
        at_slowest / measured - 1,
        slower,
    )


def times(host: HostCosts, factor: float) -> HostCosts:
    """A host whose every launch takes so many times as long."""
    return HostCosts(tuple((kind, round(factor * ns)) for kind, ns in host.by_class), host.error)


def launched(host: Mapping[str, int]) -> dict[str, int]:
    """The times without those of launches that a library's call makes in another's place."""
    inside = () if "notify" in host else ("layout",)
    return {kind: ns for kind, ns in host.items() if kind not in inside}


def _again(case: Case, group: Group, machine: Machine) -> float:
    return makespan_ns(predicted(group.on(machine).program(case.schedule), machine))


def kinds(found: Iterable[Explained]) -> list[tuple[str, list[Explained]]]:
    """The cases by what limits them."""
    whole = list(found)
    names = sorted({one.kind for one in whole}, reverse=True)
    return [(name, [one for one in whole if one.kind == name]) for name in names]


def rows(found: Sequence[Explained]) -> list[str]:
    """A row a kind of case: median and 90th percentile of the errors in five ways."""
    lines = [
        "| cases | how many | as written down: median, 90 % | now | with the measured host "
        "| with the slowest rank's | against the fastest repeat |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, chosen in kinds(found):
        ways = [
            sorted(abs(error) for error in errors)
            for errors in zip(
                *(
                    (o.case.error, o.now, o.at_host, o.at_slowest, o.against_fastest)
                    for o in chosen
                ),
                strict=True,
            )
        ]
        cells = [f"{median(way):.1%}, {percentile(way, 0.9):.1%}" for way in ways]
        lines.append(f"| {name} | {len(chosen)} | {' | '.join(cells)} |")
    return lines


def by_bound(found: Sequence[Explained]) -> list[str]:
    """A row for the programs of two GPUs that the host bounds, and for the others: errors as they were
    written down, and how many bands hold the measured time."""
    lines = [
        "| two GPUs | how many | as written down: median | 90 % | worst | in the band |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    both = [one for one in found if one.case.ranks == 2]
    parts = {
        "GPU-bound": [one.case for one in both if one.bound <= HOST_BOUND],
        "GPU-bound, overlapped": [
            one.case for one in both if one.bound <= HOST_BOUND and one.case.overlapped
        ],
        "host-bound": [one.case for one in both if one.bound > HOST_BOUND],
    }
    for name, chosen in parts.items():
        if chosen:
            errors = sorted(abs(case.error) for case in chosen)
            lines.append(
                f"| {name} | {len(chosen)} | {median(errors):.1%} | {percentile(errors, 0.9):.1%} "
                f"| {errors[-1]:.1%} | {sum(case.in_band for case in chosen)} |"
            )
    return lines


def each(found: Sequence[Explained]) -> list[str]:
    """A row a case, the largest errors first."""
    lines = [
        "| case | schedule | measured host over profile's | slowest rank over rank 0 "
        "| slowest over fastest repeat "
        "| as written down | now | with the measured host | with the slowest rank's "
        "| against the fastest repeat |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in sorted(found, key=lambda one: -abs(one.case.error)):
        host = f"{one.host:.3f}" if one.host else "–"
        slower = f"{one.slower:.2f}" if one.slower else "–"
        lines.append(
            f"| {one.case.group} | {one.case.schedule} | {host} | {slower} "
            f"| {max(one.case.times_ns) / min(one.case.times_ns):.2f} | {one.case.error:+.1%} "
            f"| {one.now:+.1%} | {one.at_host:+.1%} | {one.at_slowest:+.1%} "
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
    kept: dict[str, Any] = {e["group"]: e for e in entries if "host" in e}
    machines = {2: load_machine(arguments.profile), 1: load_machine(arguments.one)}
    found = [
        explain(
            case,
            known[case.group],
            machines[case.ranks],
            kept.get(case.group, {}).get("host", {}).get(case.schedule, {}),
            kept.get(case.group, {}).get("between_ns", {}).get(case.schedule, ()),
        )
        for case in cases(read(arguments.predicted), entries)
    ]
    print("\n".join([*rows(found), "", *by_bound(found), "", *each(found)]))


if __name__ == "__main__":
    main()
