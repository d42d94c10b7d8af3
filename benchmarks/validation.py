"""Predicted against measured, whole programs: errors, gains, signs, bands, and five plainer predictors.

    python -m benchmarks.validation measured.jsonl --profile h200-2x-nvlink-measured -o docs/validation.md

`measured.jsonl` is what `benchmarks.validation_run` wrote. Gains are `t_sequential / t - 1`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.validation_cases import CASES, Group, groups
from benchmarks.validation_predictors import Prediction, by_engine, by_plain
from models.machine import Machine
from models.profile import load_machine

PUBLIC = "h200-2x-nvlink"
PLAIN = ("sum", "max", "SM share", "roofline")


@dataclass(frozen=True)
class Case:
    """One schedule of one group: ns of all layers, measured [repeat] and predicted; `others` are the
    plain predictors and the engine on the public profile. `noise_ns` is the predicted uncertainty of
    the difference to the group's first schedule."""

    group: str
    schedule: str
    layers: int
    overlapped: bool
    times_ns: tuple[int, ...]
    first_times_ns: tuple[int, ...]
    predicted: Prediction
    first_ns: float
    noise_ns: float
    others: Mapping[str, float]
    first_others: Mapping[str, float]

    @property
    def measured_ns(self) -> float:
        """The median."""
        return median(self.times_ns)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.ns / self.measured_ns - 1

    @property
    def gain(self) -> float:
        """Measured gain over the first schedule."""
        return median(self.first_times_ns) / self.measured_ns - 1

    @property
    def predicted_gain(self) -> float:
        """Predicted gain over the first schedule."""
        return self.first_ns / self.predicted.ns - 1

    @property
    def apart(self) -> bool:
        """Whether the repeats of both schedules do not overlap."""
        first = self.first_times_ns
        return max(self.times_ns) < min(first) or min(self.times_ns) > max(first)

    @property
    def tie(self) -> bool:
        """Whether the predicted difference is inside its uncertainty."""
        return abs(self.first_ns - self.predicted.ns) <= self.noise_ns

    @property
    def in_band(self) -> bool:
        """Whether the band holds the measured median."""
        return self.predicted.low_ns <= self.measured_ns <= self.predicted.high_ns


def cases(
    lines: Iterable[str], machine: Machine, public: Machine, file: Path = CASES
) -> list[Case]:
    """Every case of `file` that was measured, predicted."""
    known = {group.name: group for group in groups(file)}
    found: list[Case] = []
    for line in lines:
        entry = json.loads(line)
        found += _cases(known[entry["group"]], entry, machine, public)
    return found


def _cases(group: Group, entry: dict[str, Any], machine: Machine, public: Machine) -> list[Case]:
    made = {}
    for name in group.schedules:
        own, _ = by_engine(group, name, machine)
        other, _ = by_engine(group, name, public)
        made[name] = (own, by_plain(group, name, machine) | {"public profile": other.ns})
    first = group.schedules[0]
    return [
        Case(
            group.name,
            name,
            group.layers,
            name in group.overlapped,
            tuple(entry["makespans_ns"][name]),
            tuple(entry["makespans_ns"][first]),
            made[name][0],
            made[first][0].ns,
            made[name][0].noise_against(made[first][0]),
            made[name][1],
            made[first][1],
        )
        for name in group.schedules
    ]


def summary(found: Sequence[Case]) -> list[str]:
    """The figures of fidelity, those of overlapped cases apart."""
    lines = []
    for title, chosen in (
        ("overlapped", [c for c in found if c.overlapped]),
        ("sequential and baseline", [c for c in found if not c.overlapped]),
    ):
        errors = sorted(abs(c.error) for c in chosen)
        inside = sum(c.in_band for c in chosen)
        lines.append(
            f"* {len(chosen)} {title} cases: makespan error median {median(errors):.1%}, "
            f"90th percentile {_percentile(errors, 0.9):.1%}, worst {errors[-1]:.1%}; "
            f"the band holds {inside} of {len(chosen)}."
        )
    gains = [c for c in found if c.overlapped]
    off = sorted(abs(c.predicted_gain - c.gain) for c in gains)
    clear = [c for c in gains if c.apart]
    right = sum((c.predicted_gain > 0) == (c.gain > 0) for c in clear)
    wrong_clear = sum((c.predicted_gain > 0) != (c.gain > 0) and not c.tie for c in clear)
    ties = sum(c.tie for c in gains)
    lines.append(
        f"* Gain over sequential, overlapped cases: off by {100 * median(off):.1f} points (median), "
        f"{100 * off[-1]:.1f} (worst); the sign is right in {right} of the {len(clear)} whose repeats "
        f"are apart, and {wrong_clear} wrong signs were called clear; {ties} of {len(gains)} are "
        "called ties."
    )
    return lines


def table(found: Sequence[Case]) -> list[str]:
    """A row a case."""
    rows = [
        "| case | schedule | measured µs a layer [repeats] | predicted [band] | error "
        "| gain measured | gain predicted |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for c in found:
        unit = 1e3 * c.layers
        measured = f"{c.measured_ns / unit:.0f} [{min(c.times_ns) / unit:.0f}, {max(c.times_ns) / unit:.0f}]"
        band = f"[{c.predicted.low_ns / unit:.0f}, {c.predicted.high_ns / unit:.0f}]"
        verdict = " (tie)" if c.tie and c.overlapped else ""
        rows.append(
            f"| {c.group} | {c.schedule} | {measured} | {c.predicted.ns / unit:.0f} {band} "
            f"| {c.error:+.1%} | {c.gain:+.1%} | {c.predicted_gain:+.1%}{verdict} |"
        )
    return rows


def predictors(found: Sequence[Case]) -> list[str]:
    """Ours beside the plainer ways, on overlapped cases."""
    chosen = [c for c in found if c.overlapped]
    rows = [
        "| predictor | makespan error, median | 90th percentile | gain off by, median | signs right |",
        "| --- | --- | --- | --- | --- |",
    ]
    names = ("engine, this profile", "public profile", *PLAIN)
    for name in names:
        ours = name == names[0]
        errors, off, right = [], [], 0
        for c in chosen:
            ns = c.predicted.ns if ours else c.others[name]
            first = c.first_ns if ours else c.first_others[name]
            gain = first / ns - 1
            errors.append(abs(ns / c.measured_ns - 1))
            off.append(abs(gain - c.gain))
            right += c.apart and (gain > 0) == (c.gain > 0)
        label = "engine on the public profile" if name == "public profile" else name
        rows.append(
            f"| {label} | {median(errors):.1%} | {_percentile(sorted(errors), 0.9):.1%} "
            f"| {100 * median(off):.1f} points | {right} of {sum(c.apart for c in chosen)} |"
        )
    return rows


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def document(found: Sequence[Case], facts: Mapping[str, Any], profile: str, sha256: str) -> str:
    """The page."""
    libraries = ", ".join(f"{name} {v}" for name, v in facts.get("libraries", {}).items())
    repeats = sorted({len(c.times_ns) for c in found})
    head = [
        "# Validation: whole programs, predicted and measured",
        "",
        f"{len(found)} cases on {facts.get('gpus_visible', '?')} x {facts.get('gpu', '?')} "
        f"(torch {facts.get('torch', '?')}, CUDA {facts.get('cuda', '?')}, {libraries}), production "
        f"kernels, {found[0].layers} MoE layers of DeepSeek-V3 with 64 experts at EP2, "
        f"{' to '.join(map(str, repeats))} repeats each after 2 warm-ups, schedules in turn; makespan of "
        "the slower rank.",
        "",
        f"Profile `{profile}` (sha256 {sha256[:12]}), calibrated before these were measured; how far it "
        "is from what was held out of it, and from another calibration: `docs/calibration.md`.",
        "",
        "```",
        "torchrun --nproc-per-node 2 -m benchmarks.validation_run --out measured.jsonl",
        f"python -m benchmarks.validation measured.jsonl --profile {profile} -o docs/validation.md",
        "```",
        "",
        "The measurements are kept in `benchmarks/data/validation_h200_2x.jsonl`.",
        "",
    ]
    return "\n".join(
        [*head, *summary(found), "", "## Against plainer predictors (overlapped cases)", "",
         *predictors(found), "", "`sum` adds the kernels' times alone, `max` takes the larger of compute "
         "and communication, `SM share` first stretches compute by the SMs that exchanges hold, all with "
         "this profile's times; `roofline` takes the larger of both from data-sheet rates.",
         "", "## All cases", "", *table(found), ""]
    )  # fmt: skip


def main() -> None:
    """Parse, predict, print or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("measured", type=Path)
    parser.add_argument("--profile", default="h200-2x-nvlink-measured")
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    lines = [line for line in arguments.measured.read_text().splitlines() if line.strip()]
    machine = load_machine(arguments.profile)
    found = cases(lines, machine, load_machine(PUBLIC), arguments.cases)
    facts = json.loads(lines[0]).get("facts", {})
    text = document(found, facts, arguments.profile, machine.profile_sha256)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
