"""Does a host that is twice as slow make the prediction wrong, if its own probe stands beside it?

    torchrun --nproc-per-node 1 -m benchmarks.validation_run --cases benchmarks/slow_host.yaml --out quiet.jsonl
    for core in $(seq $(($(nproc) - 1))); do timeout 120 sha256sum /dev/zero & done
    torchrun --nproc-per-node 1 -m benchmarks.validation_run --cases benchmarks/slow_host.yaml --out busy.jsonl
    python -m benchmarks.slow_host quiet.jsonl busy.jsonl
    python -m benchmarks.slow_host benchmarks/data/slow_host_h200_1x.jsonl        what was measured

Where a program is launched kernel by kernel the host's speed decides, and every rank has a host of its own.
The same programs are measured on one GPU with nothing else on the machine and with all its other cores busy,
and predicted with the host of the profile and with the one that was probed beside each. The kept file has five
runs: two with a probe before and one after the repeats (revision 9800f38), two with one between each two (6ccf77d), and
one whose probes are means of a run (690eb37).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.validation import PROFILES
from benchmarks.validation_cases import groups
from benchmarks.validation_files import read
from benchmarks.validation_outcome import probes_of
from benchmarks.validation_predictors import by_engine
from models.errors import InputError
from models.host import on_host
from models.machine import Machine
from models.profile import load_machine

CASES = Path(__file__).with_name("slow_host.yaml")


@dataclass(frozen=True)
class Row:
    """One program: measured ns (median; `span` its least and most), `host` the probed host's time over the
    profile's, relative errors with the profile's host and with the probed one, and whether the band of the
    second holds."""

    group: str
    schedule: str
    ns: float
    host: float
    own: float
    probed: float
    held: bool
    span: str


def rows(entries: Sequence[Mapping[str, Any]], machine: Machine) -> Iterator[Row]:
    """A row for each program that was measured."""
    known = {group.name: group for group in groups(CASES)}
    for entry in entries:
        if "makespans_ns" not in entry:
            continue
        probed, host = on_host(machine, probes_of(entry))
        for name, times in entry["makespans_ns"].items():
            ns, group = float(median(times)), known[entry["group"]]
            before, _ = by_engine(group, name, machine)
            after, _ = by_engine(group, name, probed)
            low, high = after.band_ns
            yield Row(
                group.name,
                name,
                ns,
                host or 1.0,
                before.ns / ns - 1.0,
                after.ns / ns - 1.0,
                low <= ns <= high,
                f"[{min(times) / 1e6:.2f}, {max(times) / 1e6:.2f}]",
            )


def told(name: str, found: Sequence[Row]) -> Iterator[str]:
    """The rows of one file, and their medians."""
    yield f"{name}\n  {'program':54} measured ms [least, most]  host  profile's host  probed  in the band"
    for row in found:
        yield (
            f"  {row.group + ' ' + row.schedule:54} {row.ns / 1e6:8.2f} {row.span:16}  {row.host:4.2f}"
            f"  {row.own:+13.1%}  {row.probed:+6.1%}  {'yes' if row.held else 'no'}"
        )
    own, probed = (
        median(abs(e) for e in of) for of in zip(*((r.own, r.probed) for r in found), strict=True)
    )
    worst = max(abs(row.probed) for row in found)
    yield (
        f"  median: {own:.1%} with the profile's host, {probed:.1%} with the probed one (worst {worst:.1%}); "
        f"{sum(row.held for row in found)} of {len(found)} in their bands"
    )


def main(given: Sequence[str] | None = None) -> None:
    """Print the table of each file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("measured", type=Path, nargs="+")
    parser.add_argument("--profile", default=PROFILES[1])
    arguments = parser.parse_args(given)
    machine = load_machine(arguments.profile)
    for path in arguments.measured:
        try:
            entries = [{"run": path.name, **entry} for entry in read(path)]
        except InputError as error:
            parser.error(str(error))
        for name, run in groupby(entries, itemgetter("run")):
            sys.stdout.write("\n".join(told(name, list(rows(list(run), machine)))) + "\n")


if __name__ == "__main__":
    main()
