"""Errors of pairs by class, and the page that tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

LOOPS = ("compute", "exchange")
FAMILIES = {
    "dense": "compute-bound, dense",
    "grouped": "compute-bound, grouped",
    "weights": "weight-streaming",
    "attention": "attention",
    "elementwise": "elementwise",
}


@dataclass(frozen=True)
class Times:
    """ns of one call of a loop: alone and beside the other."""

    alone_ns: float
    beside_ns: float

    @property
    def slowdown(self) -> float:
        """Beside over alone."""
        return self.beside_ns / self.alone_ns


@dataclass(frozen=True)
class Outcome:
    """One pair. `error` is each loop's stated uncertainty; bands are there for uncapped pairs only:
    `band_ns` of the makespan, `bands_ns` of one call of each loop."""

    name: str
    family: str
    capped: bool
    predicted: dict[str, Times]
    measured: dict[str, Times]
    error: dict[str, float]
    makespan_ns: float
    makespans_ns: tuple[float, ...]
    band_ns: tuple[float, float] | None
    bands_ns: dict[str, tuple[float, float]]

    def off(self, loop: str) -> float:
        """Predicted over measured time beside the other loop, less 1."""
        return self.predicted[loop].beside_ns / self.measured[loop].beside_ns - 1

    def off_alone(self, loop: str) -> float:
        """The same of the time alone."""
        return self.predicted[loop].alone_ns / self.measured[loop].alone_ns - 1

    def off_slowdown(self, loop: str) -> float:
        """The same of the slowdown: what is left when times alone are as measured."""
        return self.predicted[loop].slowdown / self.measured[loop].slowdown - 1

    def stated(self, loop: str) -> bool:
        """Whether the measured time lies within the stated uncertainty of the time alone."""
        ratio = self.measured[loop].beside_ns / self.predicted[loop].beside_ns
        return abs(ratio - 1) <= self.error[loop]

    @property
    def in_band(self) -> bool:
        """Whether the band holds the median makespan."""
        low, high = self.band_ns or (self.makespan_ns, self.makespan_ns)
        return low <= median(self.makespans_ns) <= high

    def call_in_band(self, loop: str) -> bool:
        """Whether the loop's band holds the measured time of one call."""
        low, high = self.bands_ns[loop]
        return low <= self.measured[loop].beside_ns <= high


def outcomes(
    predicted: Iterable[dict[str, Any]], measured: Iterable[dict[str, Any]]
) -> list[Outcome]:
    """Pairs that were both predicted and measured, in the order of the predictions."""
    by_name = {e["pair"]: e for e in measured if "ranks" in e and met(e)}
    return [
        _outcome(record, by_name[record["pair"]])
        for record in predicted
        if record["pair"] in by_name
    ]


def met(entry: Mapping[str, Any]) -> bool:
    """Whether each loop had a call that began and ended beside the other one, on every rank."""
    return all(
        any(repeat[loop] for repeat in run["beside"]) for run in entry["ranks"] for loop in LOOPS
    )


def _outcome(record: dict[str, Any], entry: dict[str, Any]) -> Outcome:
    which = "median_ns" if record["capped"] else "mean_ns"
    runs = entry["ranks"]
    repeats = range(len(runs[0]["beside"]))
    # A rank's times count from its own gate, which the second rank leaves later.
    makespans = [
        max(run["beside"][i]["last_ns"] - (0 if rank else entry["late_ns"]) for rank, run in enumerate(runs))
        for i in repeats
    ]  # fmt: skip
    return Outcome(
        record["pair"],
        record["family"],
        record["capped"],
        {
            loop: Times(record["alone"][loop][which], record["beside"][loop][which])
            for loop in LOOPS
        },
        {loop: _measured(runs, loop, which) for loop in LOOPS},
        record["error"],
        record["makespan_ns"],
        tuple(makespans),
        tuple(record["band_ns"]) if "band_ns" in record else None,
        {loop: tuple(bounds) for loop, bounds in record.get("bands_ns", {}).items()},
    )


def _measured(runs: Sequence[dict[str, Any]], loop: str, which: str) -> Times:
    """Mean of the ranks: alone before and after, beside the median of the repeats."""
    alone = mean(run[when][loop][which] for run in runs for when in ("before", "after"))
    beside = mean(
        median(repeat[loop][which] for repeat in run["beside"] if repeat[loop]) for run in runs
    )
    return Times(alone, beside)


def document(found: Sequence[Outcome], measured: Sequence[dict[str, Any]], seed: int) -> str:
    """The page of the pairs that `seed` drew."""
    facts: dict[str, Any] = next((entry["facts"] for entry in measured if "facts" in entry), {})
    libraries = ", ".join(f"{name} {v}" for name, v in facts.get("libraries", {}).items())
    capped, uncapped = ([o for o in found if o.capped is kind] for kind in (True, False))
    lines = [
        "# Pairs of loops, predicted and measured",
        "",
        f"On {facts.get('gpus_visible', '?')} x {facts.get('gpu', '?')} (torch "
        f"{facts.get('torch', '?')}, {libraries}): one stream repeats a compute kernel, another one of "
        "DeepEP's exchanges; alone, three times beside each other, alone. Sizes and SMs were drawn by "
        f"a seed off the calibration grid. The predictions were written down before "
        f"(`benchmarks/data/pairs_predicted_{seed}.jsonl`).",
        "",
        "```",
        f"python -m benchmarks.pairs predict --seed {seed} -o benchmarks/data/pairs_predicted_{seed}.jsonl",
        f"torchrun --nproc-per-node 2 -m benchmarks.pairs_run --seed {seed} "
        f"--out benchmarks/data/pairs_h200_2x_{seed}.jsonl",
        f"python -m benchmarks.pairs compare benchmarks/data/pairs_h200_2x_{seed}.jsonl --seed {seed} "
        "-o docs/measurements/pairs-h200-ep2.md",
        "```",
        "",
        *_clocks(measured),
        *(capped_part(capped) if capped else ()),
        *(uncapped_part(uncapped) if uncapped else ()),
        *_missing(measured),
        *targets(capped, uncapped),
    ]
    return "\n".join(lines)


def targets(capped: Sequence[Outcome], uncapped: Sequence[Outcome]) -> list[str]:
    """What was aimed at, and whether it was met."""
    rows = ["## Against the targets", "", "| target | measured | met |", "| --- | --- | --- |"]
    for title, error in (
        ("time of a call beside", Outcome.off),
        ("slowdown (times alone as measured)", Outcome.off_slowdown),
    ):
        errors = [abs(error(o, loop)) for o in capped for loop in LOOPS]
        if errors:
            met = [median(errors) <= 0.06, max(errors) <= 0.15]
            answer = ("no", "median only", "worst only", "yes")[met[0] + 2 * met[1]]
            rows.append(
                f"| capped pairs, {title}: median 6 %, worst 15 % "
                f"| {median(errors):.1%}, {max(errors):.1%} | {answer} |"
            )
    if uncapped:
        share = sum(o.in_band for o in uncapped) / len(uncapped)
        met_share = "yes" if share >= 0.8 else "no"
        rows.append(f"| uncapped pairs inside the band: 80 % | {share:.0%} | {met_share} |")
    return [*rows, ""]


def again_part(then: Sequence[Outcome], found: Sequence[Outcome]) -> str:
    """The first pairs as they were predicted `then`, and predicted by a later profile: errors by class
    and the share in the bands."""
    lines = [
        "",
        f"## The {len(found)} first pairs, predicted again",
        "",
        "Chosen by hand, measured with an earlier profile, and known since. Their attention loop repeats "
        "the attention kernel only, not the layer's whole operation.",
        "",
    ]
    for title, outcomes_of in (("As predicted then:", then), ("By this profile:", found)):
        capped, uncapped = ([o for o in outcomes_of if o.capped is kind] for kind in (True, False))
        inside = sum(o.in_band for o in uncapped)
        lines += [
            title,
            "",
            *_class_rows(capped),
            "",
            f"* Uncapped: the band holds {inside} of {len(uncapped)}.",
            "",
        ]
    return "\n".join(lines)


def _clocks(measured: Sequence[dict[str, Any]]) -> list[str]:
    states = [s for entry in measured for s in entry.get("clocks", ()) if s]
    if not states:
        return []
    mhz, watts = ([state[key] for state in states] for key in ("mhz", "watts"))
    return [
        f"SM clock {min(mhz)} to {max(mhz)} MHz (median {median(mhz):.0f}), {min(watts)} to "
        f"{max(watts)} W (medians of each pair).",
        "",
    ]


def capped_part(found: Sequence[Outcome]) -> list[str]:
    """Capped pairs: by class, then each."""
    return [
        f"## {len(found)} capped pairs",
        "",
        "The compute kernel leaves the exchange's SMs free (GEMMs by their cap, attention in a green "
        "context; elementwise kernels take what there is). Time of one call beside the other loop, "
        "medians; *slowdown* is that over the time alone, so that its error is interference's only; "
        "*alone* is the error of the time alone.",
        "",
        *_class_rows(found),
        "",
        *_pair_rows(found),
    ]


def _class_rows(found: Sequence[Outcome]) -> list[str]:
    lines = [
        "| class | loop | pairs | time beside: median | worst | slowdown: median | worst "
        "| alone: median | within the stated error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    groups = [(title, [o for o in found if o.family == key]) for key, title in FAMILIES.items()]
    for title, chosen in [*groups, ("all", list(found))]:
        for loops in (
            (("compute",), ("exchange",), LOOPS)
            if title == "all"
            else (("compute",), ("exchange",))
        ):
            if chosen:
                lines.append(_class_row(title, chosen, loops))
    return lines


def _class_row(title: str, chosen: Sequence[Outcome], loops: Sequence[str]) -> str:
    cells = [(o, loop) for o in chosen for loop in loops]
    beside, slow, alone = (
        [abs(error(o, loop)) for o, loop in cells]
        for error in (Outcome.off, Outcome.off_slowdown, Outcome.off_alone)
    )
    stated = sum(o.stated(loop) for o, loop in cells)
    return (
        f"| {title} | {' and '.join(loops)} | {len(chosen)} | {median(beside):.1%} | {max(beside):.1%} "
        f"| {median(slow):.1%} | {max(slow):.1%} | {median(alone):.1%} | {stated} of {len(cells)} |"
    )


def _pair_rows(found: Sequence[Outcome]) -> list[str]:
    rows = [
        "| pair | loop | alone: predicted, measured (µs) | error | beside: predicted, measured (µs) "
        "| error | slowdown: predicted, measured |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for o in found:
        for loop in LOOPS:
            p, m = o.predicted[loop], o.measured[loop]
            rows.append(
                f"| {o.name.replace(' | ', ', ')} | {loop} | {p.alone_ns / 1e3:.0f}, "
                f"{m.alone_ns / 1e3:.0f} | {o.off_alone(loop):+.1%} | {p.beside_ns / 1e3:.0f}, "
                f"{m.beside_ns / 1e3:.0f} | {o.off(loop):+.1%} | x{p.slowdown:.2f}, x{m.slowdown:.2f} |"
            )
    return [*rows, ""]


def uncapped_part(found: Sequence[Outcome]) -> list[str]:
    """Uncapped pairs: the share inside the band, then each."""
    inside = sum(o.in_band for o in found)
    errors = [abs(o.makespan_ns / median(o.makespans_ns) - 1) for o in found]
    widths = [
        (o.band_ns[1] - o.band_ns[0]) / (o.band_ns[1] + o.band_ns[0]) for o in found if o.band_ns
    ]
    lines = [
        f"## {len(found)} uncapped pairs",
        "",
        "Both loops make 24 calls, and the second rank starts 0, 1/4 or 1/2 of the compute kernel's time "
        "later. Makespan of both loops from the last rank's start; its band knows nothing of the pair's "
        "offset: it is what the costs and slowdowns on the critical path leave open, and least and most "
        "of what an ensemble adds to that, whose ranks start up to one compute kernel apart on machines "
        "that are off by draws from their stated errors (`moe_overlap/ensemble.py`). The band of one call "
        "of each loop (means over the calls that ran beside the other loop) is the least and the most of "
        "any of these machines.",
        "",
        f"* The band holds {inside} of {len(found)} ({inside / len(found):.0%}); bands are "
        f"±{median(widths):.1%} wide (median).",
        *(
            f"* One call of the {loop} loop: the band holds {held} of {len(found)} ({held / len(found):.0%})."
            for loop in LOOPS
            for held in [sum(o.call_in_band(loop) for o in found)]
        ),
        f"* Makespan at the pair's own offset: error median {median(errors):.1%}, worst {max(errors):.1%}.",
        "",
        "| pair | makespan ms [repeats] | predicted [band] | error | inside "
        "| compute µs a call: predicted [band], measured | exchange the same |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for o in found:
        middle, (low, high) = median(o.makespans_ns), o.band_ns or (0.0, 0.0)
        calls = " | ".join(
            f"{o.predicted[loop].beside_ns / 1e3:.0f} [{o.bands_ns[loop][0] / 1e3:.0f}, "
            f"{o.bands_ns[loop][1] / 1e3:.0f}], {o.measured[loop].beside_ns / 1e3:.0f}"
            for loop in LOOPS
        )
        lines.append(
            f"| {o.name.replace(' | ', ', ')} | {middle / 1e6:.2f} [{min(o.makespans_ns) / 1e6:.2f}, "
            f"{max(o.makespans_ns) / 1e6:.2f}] | {o.makespan_ns / 1e6:.2f} [{low / 1e6:.2f}, "
            f"{high / 1e6:.2f}] | {o.makespan_ns / middle - 1:+.1%} | {'yes' if o.in_band else 'no'} "
            f"| {calls} |"
        )
    return [*lines, ""]


def _missing(measured: Sequence[dict[str, Any]]) -> list[str]:
    failed = {entry["pair"]: entry["failed"] for entry in measured if "failed" in entry}
    for entry in measured:
        if "ranks" in entry and not met(entry):
            failed[entry["pair"]] = "no call of one loop began and ended beside the other"
    lines = [f"Not measured: {name.replace(' | ', ', ')}: {why}" for name, why in failed.items()]
    return [*lines, ""] if lines else []
