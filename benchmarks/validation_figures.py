"""Which of a profile's measured figures change a predicted gain: taken in one group after another.

    python -m benchmarks.validation_figures PROFILE.yaml --cases benchmarks/validation_triton.yaml \\
        --match decode --measured measured.jsonl

The first column is the profile's base, the last the profile itself. Gains are
`t_sequential / t - 1`; a measured column follows where the cases were measured.
"""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ruamel.yaml import YAML

from benchmarks.validation_cases import Group, groups
from benchmarks.validation_files import read
from benchmarks.validation_outcome import probes_of
from models.host import HostProbe, on_host
from models.machine import Machine
from models.profile import load_machine, load_profile
from models.work import COMPUTE_KINDS, EXCHANGE_KINDS
from moe_overlap.gated import makespan_ns, predicted

GEMMS = ("gemm", "grouped_gemm_masked", "grouped_gemm_contiguous")
GROUPS: Mapping[str, Collection[str]] = {
    "exchanges": EXCHANGE_KINDS,
    "GEMMs": GEMMS,
    "other kernels": [kind for kind in COMPUTE_KINDS if kind not in GEMMS],
}
# Sections of a profile that say how long kernels take, not how they are launched and disturb others.
TIMES = ("base", "name", "source", "points")


def machines(path: Path) -> Iterator[tuple[str, Machine]]:
    """The profile's base, the same with the points of one group of kernels after another, and the
    profile."""
    content: dict[str, Any] = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    profile, _ = load_profile(path)
    assert profile.points is not None, f"{path} has no measured points"
    rows = (path.parent / profile.points.file).read_text(encoding="utf-8")
    yield "base", load_machine(str(content["base"]))
    taken: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, kinds) in enumerate(GROUPS.items()):
            taken |= set(kinds)
            variant = Path(folder) / f"{index}.yaml"
            text = io.StringIO()
            YAML().dump({key: content[key] for key in TIMES if key in content}, text)
            variant.write_text(text.getvalue(), encoding="utf-8")
            (variant.parent / profile.points.file).write_text(_of_kinds(rows, taken))
            yield f"+ {name}", load_machine(variant)
    yield "profile", load_machine(path)


def _of_kinds(text: str, kinds: Collection[str]) -> str:
    """The lines of a points file that are of these kinds, and its heading."""
    heading = [line for line in text.splitlines() if line.startswith("#")]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    reader = csv.reader(lines)
    kept = [
        line for line, row in zip(lines, reader, strict=True) if row[0] in kinds or line is lines[0]
    ]
    return "\n".join([*heading, *kept]) + "\n"


def gains(group: Group, machine: Machine, probes: Sequence[HostProbe] = ()) -> dict[str, float]:
    """Predicted gain of every schedule over the group's first, with the host of these probes if any."""
    machine, _ = on_host(machine, probes)
    times = {
        name: makespan_ns(predicted(group.on(machine).program(name), machine))
        for name in group.schedules
    }
    first = times[group.schedules[0]]
    return {name: first / ns - 1 for name, ns in times.items() if name != group.schedules[0]}


def measured_gains(entry: Mapping[str, Any]) -> dict[str, float]:
    """The same of a measured group."""
    times = {name: median(ns) for name, ns in entry["makespans_ns"].items()}
    first = next(iter(times.values()))
    return {name: first / ns - 1 for name, ns in times.items()}


def table(
    chosen: Collection[Group], path: Path, measured: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """A row a case, in Markdown."""
    columns = [
        (
            name,
            {
                group.name: gains(group, machine, probes_of(measured.get(group.name, {})))
                for group in chosen
            },
        )
        for name, machine in machines(path)
    ]
    names = [name for name, _ in columns]
    yield f"| case | schedule | {' | '.join(names)} | measured |"
    yield "| --- | --- |" + " ---: |" * (len(names) + 1)
    for group in chosen:
        known = measured_gains(measured[group.name]) if group.name in measured else {}
        for schedule in group.schedules[1:]:
            cells = [f"{found[group.name][schedule]:+.1%}" for _, found in columns]
            cells.append(f"{known[schedule]:+.1%}" if schedule in known else "–")
            yield f"| {group.name} | {schedule} | {' | '.join(cells)} |"


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("profile", type=Path)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--match", default="", help="only groups whose name holds this")
    parser.add_argument("--measured", type=Path)
    arguments = parser.parse_args()
    chosen = [group for group in groups(arguments.cases) if arguments.match in group.name]
    entries = read(arguments.measured) if arguments.measured else []
    found = {entry["group"]: entry for entry in entries if "makespans_ns" in entry}
    for line in table(chosen, arguments.profile, found):
        print(line, flush=True)


if __name__ == "__main__":
    main()
