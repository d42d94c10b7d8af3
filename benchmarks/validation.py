"""Whole programs: what is predicted, written down before they are measured, and how far off it was.

    python -m benchmarks.validation predict -o benchmarks/data/validation_predicted.jsonl
    python -m benchmarks.validation predict benchmarks/data/validation_h200_2x.jsonl \\
        -o benchmarks/data/validation_probed.jsonl
    python -m benchmarks.validation compare benchmarks/data/validation_h200_2x.jsonl \\
        -o docs/validation.md --readme README.md
    python -m benchmarks.validation again benchmarks/data/validation_h200_2x.jsonl

`compare` takes what `benchmarks.validation_run` wrote; with `--readme` it also renews the table between
the two marks of that file. Where a probe of the host stands beside a measured case, the prediction that is
compared is made again with the host's speed of that probe, from the profile that was predicted with and
nothing else of the measurement; `predict` with the measured file writes these down, and `compare` takes
them from there as long as the probes are the same. `again` sums up what the engine and profiles as they
are now make of the same cases, after the fact. Gains are `t_sequential / t - 1`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.validation_cases import CASES, UNSEEN, Group, drawn, groups
from benchmarks.validation_document import document, predictors, readme_block, summary, with_block
from benchmarks.validation_files import matched, read
from benchmarks.validation_outcome import PUBLIC_NAME, cases, probes_of
from benchmarks.validation_predictors import by_engine, by_plain
from models.errors import InputError
from models.host import HostProbe, on_host
from models.machine import Machine
from models.profile import load_machine

PUBLIC = "h200-2x-nvlink"
# The profile of each number of ranks.
PROFILES: Mapping[int, str] = {2: "h200-2x-nvlink-measured", 1: "h200-1x-measured"}
DATA = Path(__file__).with_name("data")
PREDICTED = DATA / "validation_predicted.jsonl"
# The same with the probed hosts, kept so that the page does not change with the engine.
PROBED = DATA / "validation_probed.jsonl"
# The seen cases on an earlier run of the machine.
EARLIER = DATA / "validation_h200_2x_first.jsonl"
# What was learnt from the comparison, kept apart from what is computed.
NOTES = DATA / "validation_notes.md"


def predictions(
    profiles: Mapping[int, str], files: Sequence[Path] = (UNSEEN, CASES)
) -> Iterator[dict[str, Any]]:
    """A record a case; the first of a group is what its gains are over."""
    machines = {ranks: load_machine(name) for ranks, name in profiles.items()}
    public = load_machine(PUBLIC)
    for file in files:
        for group in groups(file):
            for name in group.schedules:
                record = predict(group, name, machines[group.ranks], public)
                yield record | {"unseen": drawn(file)}


def predict(group: Group, schedule: str, machine: Machine, public: Machine) -> dict[str, Any]:
    """The record of one case, ns of all layers."""
    own, _ = by_engine(group, schedule, machine)
    other, _ = by_engine(group, schedule, public)
    low, high = own.band_ns
    return {
        "group": group.name,
        "schedule": schedule,
        "ranks": group.ranks,
        "layers": group.layers,
        "overlapped": schedule in group.overlapped,
        "profile": machine.name,
        "sha256": machine.profile_sha256,
        "ns": own.ns,
        "low_ns": round(low),
        "high_ns": round(high),
        "phase": own.phase,
        "doubt_ns": {kind: round(ns) for kind, ns in sorted(own.doubt_ns.items())},
        "others": by_plain(group, schedule, machine) | {PUBLIC_NAME: other.ns},
    }


def on_probed_hosts(
    records: Sequence[Mapping[str, Any]],
    entries: Iterable[Mapping[str, Any]],
    kept: Iterable[Mapping[str, Any]] = (),
    files: Sequence[Path] = (UNSEEN, CASES),
) -> list[Mapping[str, Any]]:
    """The records, those of groups with probes predicted again with the probed host, or taken from what
    was `kept` of that; InputError where a profile is not the one that was predicted with."""
    found = {e["group"]: e for e in entries if "probe" in e}
    before = {(r["group"], r["schedule"]): r for r in kept}
    again: list[Mapping[str, Any]] = []
    for record in records:
        entry = found.get(record["group"], {})
        known = before.get((record["group"], record["schedule"]), {})
        if not entry:
            again.append(record)
        elif known.get("probe") == entry["probe"] and known["sha256"] == record["sha256"]:
            again.append(known)
        else:
            group = _group(record["group"], files)
            again.append({**record, **_again(record, entry, group), "probe": entry["probe"]})
    return again


def as_now(
    records: Iterable[Mapping[str, Any]],
    entries: Iterable[Mapping[str, Any]],
    files: Sequence[Path] = (UNSEEN, CASES),
) -> list[Mapping[str, Any]]:
    """The records of what was measured, predicted again by the engine and profiles as they are now, with
    the probed hosts: after the fact."""
    found = {e["group"]: e for e in entries if "makespans_ns" in e}
    again: list[Mapping[str, Any]] = []
    for record in records:
        entry = found.get(record["group"])
        if entry is None:
            continue
        group, name = _group(record["group"], files), record["schedule"]
        machine, public = _machine(record["profile"]), _machine(PUBLIC)
        if "probe" in entry:
            now = on_host_of(probes_of(entry), group, name, machine, public)
        else:
            now = predict(group, name, machine, public)
        again.append({**record, **now})
    return again


def _again(record: Mapping[str, Any], entry: Mapping[str, Any], group: Group) -> dict[str, Any]:
    machine = _machine(record["profile"])
    if machine.profile_sha256 != record["sha256"]:
        allowed = f"{record['sha256']}: it is another one than predictions were made with"
        raise InputError(f"profile {machine.name}", "sha256", machine.profile_sha256, allowed)
    return on_host_of(probes_of(entry), group, record["schedule"], machine, _machine(PUBLIC))


@cache
def _machine(name: str) -> Machine:
    return load_machine(name)


@cache
def _groups(files: tuple[Path, ...]) -> dict[str, Group]:
    return {group.name: group for file in files for group in groups(file)}


def _group(name: str, files: Sequence[Path]) -> Group:
    known = _groups(tuple(files))
    if name not in known:
        names = ", ".join(file.name for file in files)
        raise InputError(names, "groups", name, "a group of these files")
    return known[name]


def on_host_of(
    probes: Sequence[HostProbe], group: Group, schedule: str, machine: Machine, public: Machine
) -> dict[str, Any]:
    """The record of one case with the host of these probes, for both profiles; `host` is its time over
    that of the machine's profile."""
    own, ratio = on_host(machine, probes)
    return predict(group, schedule, own, on_host(public, probes)[0]) | {"host": ratio}


def compared(
    records: Sequence[Mapping[str, Any]],
    entries: Sequence[Mapping[str, Any]],
    readme: Path | None,
    files: Sequence[Path] = (UNSEEN, CASES),
) -> str:
    """The page of these predictions and measurements; renews the table of `readme`."""
    before = read(PROBED) if PROBED.exists() else ()
    hosted = on_probed_hosts(records, entries, before, files)
    found = cases(hosted, entries)
    own = cases(records, entries) if any(c.host is not None for c in found) else []
    facts: dict[str, Any] = next((entry["facts"] for entry in entries if "facts" in entry), {})
    profiles = {r["profile"]: r["sha256"] for r in records}
    text = document(found, facts, profiles, read(EARLIER) if EARLIER.exists() else (), own)
    if NOTES.exists():
        text += "\n" + NOTES.read_text(encoding="utf-8")
    if readme is not None:
        kept = readme.read_text(encoding="utf-8")
        readme.write_text(with_block(kept, readme_block(found)), encoding="utf-8")
    return text


def main(given: Sequence[str] | None = None) -> None:
    """Parse; predict, or compare; one message where a file cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "compare", "again"))
    parser.add_argument("measured", type=Path, nargs="?")
    parser.add_argument("--profile", default=PROFILES[2], help="of two ranks")
    parser.add_argument("--one", default=PROFILES[1], help="profile of one rank")
    parser.add_argument("--predicted", type=Path, default=PREDICTED)
    parser.add_argument("--cases", type=Path, nargs="+", default=[UNSEEN, CASES])
    parser.add_argument("--readme", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args(given)
    if arguments.measured is None and arguments.what != "predict":
        parser.error(f"{arguments.what} needs the file of measured cases")
    try:
        text = _text(arguments)
    except InputError as error:
        parser.error(str(error))
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        print(text)


def _text(arguments: argparse.Namespace) -> str:
    if arguments.measured is None:
        profiles = {2: arguments.profile, 1: arguments.one}
        return _jsonl(predictions(profiles, arguments.cases))
    records, entries, told = matched(arguments.predicted, arguments.measured)
    if told:
        print(f"warning: {told}", file=sys.stderr)
    files = arguments.cases
    if arguments.what == "predict":
        hosted = on_probed_hosts(records, entries, files=files)
        return _jsonl(r for r in hosted if "probe" in r)
    if arguments.what == "compare":
        return compared(records, entries, arguments.readme, files)
    now = cases(as_now(records, entries, files), entries)
    lines = summary(now)
    if hiding := [case for case in now if case.hides]:
        lines += ["", "communication hidden", "", *predictors(hiding)]
    return "\n".join(lines)


def _jsonl(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


if __name__ == "__main__":
    main()
