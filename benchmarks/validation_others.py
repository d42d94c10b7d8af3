"""Whole programs of another kernel set, or on more GPUs: predicted beside measured.

    torchrun --nproc-per-node 2 -m benchmarks.validation_run --kernels triton \\
        --cases benchmarks/validation_triton.yaml --out measured.jsonl
    python -m benchmarks.validation_others measured.jsonl --cases benchmarks/validation_triton.yaml \\
        --profile h200-2x-nvlink-triton-measured
    python -m benchmarks.validation_others --cases benchmarks/validation_many.yaml --ranks 4 8 \\
        --profile h200-8x-ib

Prints figures of fidelity and a table, in Markdown; without measured cases what is predicted. Where the
host was probed beside a case, it is predicted with that host.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.validation import PUBLIC, on_host_of
from benchmarks.validation_cases import groups
from benchmarks.validation_document import predictors, table
from benchmarks.validation_files import read
from benchmarks.validation_outcome import Case, cases, probes_of
from models.measured import percentile
from models.profile import load_machine
from moe_overlap.gated import makespan_ns, predicted


def compared(measured: Path, files: Sequence[Path], profile: str) -> list[Case]:
    """Every case of the files that was measured."""
    entries = read(measured)
    names = {entry["group"] for entry in entries}
    machine, public = load_machine(profile), load_machine(PUBLIC)
    probes = {entry["group"]: probes_of(entry) for entry in entries if "makespans_ns" in entry}
    records = [
        on_host_of(probes.get(group.name, ()), group, schedule, machine, public) | {"unseen": False}
        for file in files
        for group in groups(file)
        if group.name in names
        for schedule in group.schedules
    ]
    return cases(records, entries)


def foretold(files: Sequence[Path], ranks: Sequence[int], profile: str) -> Iterator[str]:
    """A row for each group of so many ranks: what its schedules are predicted to take and gain."""
    machine = load_machine(profile)
    yield "| case | sequential, µs a layer | gains over it |"
    yield "| --- | ---: | --- |"
    for group in (group for file in files for group in groups(file) if group.ranks in ranks):
        on = group.on(machine)
        times = [makespan_ns(predicted(on.program(name), machine)) for name in group.schedules]
        gained = ", ".join(
            f"{name} {times[0] / ns - 1:+.1%}"
            for name, ns in zip(group.schedules[1:], times[1:], strict=True)
        )
        yield f"| {group.name} | {times[0] / 1e3 / group.layers:.0f} | {gained} |"


def figures(found: Sequence[Case]) -> Iterator[str]:
    """A line for overlapped cases and one for the others."""
    for title, chosen in (
        ("overlapped", [c for c in found if c.overlapped]),
        ("sequential and baseline", [c for c in found if not c.overlapped]),
    ):
        errors = sorted(abs(c.error) for c in chosen)
        if not errors:
            continue
        clear = [c for c in chosen if c.apart]
        off = sorted(abs(c.predicted_gain - c.gain) for c in chosen)
        wrong = [c for c in clear if not c.right and not c.tie]
        yield (
            f"* {len(chosen)} {title}: makespan error median {median(errors):.1%}, 90th percentile "
            f"{percentile(errors, 0.9):.1%}, worst {errors[-1]:.1%}; the band holds "
            f"{sum(c.in_band for c in chosen)}; gain off by {100 * median(off):.1f} points (median), "
            f"{100 * off[-1]:.1f} (worst); the sign is right in {sum(c.right for c in clear)} of the "
            f"{len(clear)} whose repeats are apart, {len(wrong)} wrong signs were called clear."
        )


def main() -> None:
    """Parse, predict, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("measured", type=Path, nargs="?")
    parser.add_argument("--cases", type=Path, nargs="+", required=True)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    arguments = parser.parse_args()
    if arguments.measured is None:
        print("\n".join(foretold(arguments.cases, arguments.ranks, arguments.profile)))
        return
    found = compared(arguments.measured, arguments.cases, arguments.profile)
    lines = [*figures(found), "", *table(found), ""]
    if any(c.overlapped for c in found):
        lines += predictors([c for c in found if c.overlapped])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
