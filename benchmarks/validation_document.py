"""Figures of fidelity of whole programs, the page that tells them, and README's table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.hidden import LEAST_SHARE
from benchmarks.validation_outcome import PUBLIC_NAME, Case
from models.measured import percentile

PLAIN = ("sum", "max", "SM share", "roofline")
OURS = "engine, this profile"
LABELS = {PUBLIC_NAME: "engine on the public profile"}
BEGIN = "<!-- from docs/validation.md's data -->"
END = "<!-- end -->"
COMMAND = (
    "python -m benchmarks.validation compare benchmarks/data/validation_h200_2x.jsonl "
    "-o docs/validation.md --readme README.md"
)

PROBED_COMMAND = (
    "python -m benchmarks.validation predict benchmarks/data/validation_h200_2x.jsonl "
    "-o benchmarks/data/validation_probed.jsonl"
)
WARM_UPS = "2 warm-ups (large prefill 2 s of them, until the power control has settled)"
PROFILES_HOST = "the profile's own host"
HOSTS = (
    "The host's speed is a condition of the measurement, like the clock: one machine's launches take half "
    "or twice as long from minute to minute. A probe of fixed size that is none of the cases "
    "(`executor/host_probe.py`) was run before and after each; predictions are made with the profile, "
    f"the engine as it is and the mean of both. *{PROFILES_HOST.capitalize()}*: what was committed before "
    "anything was measured.",
    "",
)

Chosen = tuple[str, list[Case]]


def parts(found: Iterable[Case]) -> list[Chosen]:
    """The cases by what is known of them beforehand and what they overlap; empty parts left out."""
    groups: list[tuple[str, Callable[[Case], bool]]] = [
        ("unseen, two GPUs", lambda c: c.unseen and c.ranks == 2),
        ("unseen, one GPU", lambda c: c.unseen and c.ranks == 1),
        ("seen, two GPUs", lambda c: not c.unseen),
    ]
    whole = list(found)
    made = []
    for title, belongs in groups:
        own = [c for c in whole if belongs(c)]
        made += [
            (f"{title}: overlapped", [c for c in own if c.overlapped]),
            (f"{title}: sequential, baseline", [c for c in own if not c.overlapped]),
        ]
    for name in kinds(whole):
        made.append((f"unseen: {name}", [c for c in whole if c.unseen and c.kind == name]))
    made.append(("unseen: communication hidden", [c for c in whole if c.unseen and c.hides]))
    if not all(c.unseen for c in whole):
        made.append(("all: communication hidden", [c for c in whole if c.hides]))
    return [(title, chosen) for title, chosen in made if chosen]


def summary(found: Sequence[Case], own: Sequence[Case] = ()) -> list[str]:
    """A row for each part, and where hosts were probed one more for `own`, the same cases predicted with
    the profile's own host."""
    rows = [
        "| cases | how many | makespan error, median | 90th percentile | worst | band holds "
        "| gain off by, median | worst | signs right | called ties |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    same = dict(parts(own))
    for title, chosen in parts(found):
        rows.append(_summary_row(title, chosen))
        if title in same:
            rows.append(_summary_row(f"{title}; {PROFILES_HOST}", same[title]))
    return rows


def _summary_row(title: str, chosen: Sequence[Case]) -> str:
    errors = sorted(abs(c.error) for c in chosen)
    inside = sum(c.in_band for c in chosen)
    gains = [c for c in chosen if c.schedule != "sequential"]
    off = sorted(abs(c.predicted_gain - c.gain) for c in gains)
    clear = [c for c in gains if c.apart]
    wrong = sum(not c.right and not c.tie for c in clear)
    signs = f"{sum(c.right for c in clear)} of {len(clear)}"
    if wrong:
        signs += f" ({wrong} wrong called clear)"
    gained = (
        f"{100 * median(off):.1f} points | {100 * off[-1]:.1f} | {signs} "
        f"| {sum(c.tie for c in gains)} of {len(gains)}"
        if off
        else "– | – | – | –"
    )
    return (
        f"| {title} | {len(chosen)} | {median(errors):.1%} | {percentile(errors, 0.9):.1%} "
        f"| {errors[-1]:.1%} | {inside} of {len(chosen)} ({inside / len(chosen):.0%}) | {gained} |"
    )


def predictors(found: Sequence[Case]) -> list[str]:
    """Ours beside the plainer ways, on cases that overlap."""
    rows = [
        "| predictor | makespan error, median | 90th percentile | gain off by, median | signs right |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in (OURS, PUBLIC_NAME, *PLAIN):
        errors, off, right = [], [], 0
        for c in found:
            ns, first = (c.predicted.ns, c.first_ns) if name == OURS else c.by(name)
            gain = first / ns - 1
            errors.append(abs(ns / c.measured_ns - 1))
            off.append(abs(gain - c.gain))
            right += c.apart and (gain > 0) == (c.gain > 0)
        rows.append(
            f"| {LABELS.get(name, name)} | {median(errors):.1%} "
            f"| {percentile(errors, 0.9):.1%} "
            f"| {100 * median(off):.1f} points | {right} of {sum(c.apart for c in found)} |"
        )
    return rows


def by_kind(found: Sequence[Case]) -> list[str]:
    """Where each predictor is right: median error by what limits a case."""
    names = kinds(found)
    chosen = [[c for c in found if c.kind == name] for name in names]
    heads = [f"{name} ({len(own)})" for name, own in zip(names, chosen, strict=True)]
    rows = [f"| predictor | {' | '.join(heads)} |", f"|{' --- |' * (len(names) + 1)}"]
    for name in (OURS, PUBLIC_NAME, *PLAIN):
        cells = [f"{median(abs(_off(c, name)) for c in own):.1%}" for own in chosen]
        rows.append(f"| {LABELS.get(name, name)} | {' | '.join(cells)} |")
    return rows


def _off(case: Case, predictor: str) -> float:
    return case.error if predictor == OURS else case.by(predictor)[0] / case.measured_ns - 1


def twice(found: Iterable[Case], earlier: Iterable[Mapping[str, Any]]) -> list[str]:
    """How far two measurements of the same case are apart: what no prediction can do better than."""
    times = {
        (e["group"], name): t for e in earlier for name, t in e.get("makespans_ns", {}).items()
    }
    apart: dict[str, list[float]] = {}
    for c in found:
        before = times.get((c.group, c.schedule))
        if before:
            apart.setdefault(c.kind, []).append(abs(c.measured_ns / median(before) - 1))
    told = [
        f"{kind}: {len(values)} cases, median {median(values):.1%}, worst {max(values):.1%}"
        for kind, values in apart.items()
    ]
    return [f"The same cases on another run of the machine: {'; '.join(told)}.", ""] if told else []


def table(found: Sequence[Case], own: Sequence[Case] = ()) -> list[str]:
    """A row a case; where hosts were probed, their time over the profile's, and the error of `own`, the
    same cases predicted with the profile's own host."""
    errors = {(c.group, c.schedule): c.error for c in own}
    probed = any(c.host is not None for c in found)
    more = ["host over profile's", f"error, {PROFILES_HOST}"][: 1 + bool(errors)] if probed else []
    heads = [
        "case", "schedule", "measured µs a layer [repeats]", "predicted [band]", "error",
        "gain measured", "gain predicted", "hidden", "MHz", *more,
    ]  # fmt: skip
    rows = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for c in found:
        unit = 1e3 * c.layers
        measured = f"{c.measured_ns / unit:.0f} [{min(c.times_ns) / unit:.0f}, {max(c.times_ns) / unit:.0f}]"
        low, high = c.predicted.band_ns
        band = f"[{low / unit:.0f}, {high / unit:.0f}]"
        verdict = " (tie)" if c.tie and c.overlapped else ""
        hidden = "–" if c.hidden_share is None else f"{c.hidden_share:.0%}"
        mhz = f"{median(c.mhz):.0f}" if c.mhz else "–"
        host = "–" if c.host is None else f"{c.host:.2f}"
        off = errors.get((c.group, c.schedule), c.error)
        ending = "".join(f" {cell} |" for cell in (host, f"{off:+.1%}")[: len(more)])
        rows.append(
            f"| {c.group} | {c.schedule} | {measured} | {c.predicted.ns / unit:.0f} {band} "
            f"| {c.error:+.1%} | {c.gain:+.1%} | {c.predicted_gain:+.1%}{verdict} | {hidden} | {mhz} |"
            f"{ending}"
        )
    return rows


def targets(found: Sequence[Case]) -> list[str]:
    """What was aimed at, and whether the unseen overlapped cases met it."""
    chosen = [c for c in found if c.unseen and c.overlapped] or [c for c in found if c.overlapped]
    errors = sorted(abs(c.error) for c in chosen)
    off = median(abs(c.predicted_gain - c.gain) for c in chosen)
    clear = [c for c in chosen if c.apart]
    right = sum(c.right for c in clear)
    held, ties = (
        sum(flags) / len(chosen) for flags in ([c.in_band for c in chosen], [c.tie for c in chosen])
    )
    rows = [
        ("makespan error, median", "5 %", f"{median(errors):.1%}", median(errors) <= 0.05),
        ("makespan error, 90th percentile", "10 %", f"{percentile(errors, 0.9):.1%}", percentile(errors, 0.9) <= 0.1),
        ("gain off by, median", "5 points", f"{100 * off:.1f} points", off <= 0.05),
        ("signs beyond the noise", "all", f"{right} of {len(clear)}", right == len(clear)),
        ("bands hold", "80 to 95 %", f"{held:.0%}", 0.8 <= held <= 0.95),
        ("called ties", "at most 30 %", f"{ties:.0%}", ties <= 0.3),
        *_twice(chosen, "overlapped"),
        *_twice([c for c in chosen if c.hides], "communication hidden"),
    ]  # fmt: skip
    lines = ["| target | aimed at | unseen overlapped cases | met |", "| --- | --- | --- | --- |"]
    return lines + [f"| {a} | {b} | {c} | {'yes' if met else 'no'} |" for a, b, c, met in rows]


def _twice(chosen: Sequence[Case], title: str) -> Iterator[tuple[str, str, str, bool]]:
    """Median error of the best plainer predictor over ours."""
    if not chosen:
        return
    ours = median(abs(c.error) for c in chosen)
    ratios = {
        name: median(abs(c.by(name)[0] / c.measured_ns - 1) for c in chosen) / ours
        for name in (PUBLIC_NAME, *PLAIN)
    }
    name = min(ratios, key=lambda key: ratios[key])
    label = LABELS.get(name, name)
    text = f"x{ratios[name]:.1f} ({label})"
    yield f"median error of the best plainer predictor, {title}", "x2", text, ratios[name] >= 2


def document(
    found: Sequence[Case],
    facts: Mapping[str, Any],
    profiles: Mapping[str, str],
    earlier: Sequence[Mapping[str, Any]] = (),
    own: Sequence[Case] = (),
) -> str:
    """The page; `earlier` are other measurements of some of the cases, `own` the same cases predicted with
    the profile's own host where hosts were probed."""
    overlapped = [c for c in found if c.overlapped]
    lines = [
        *_head(found, facts, profiles, probed=bool(own)),
        "## Summary",
        "",
        *summary(found, own),
        "",
        *(HOSTS if own else ()),
        "Signs are counted where the repeats of both schedules are apart. *Communication hidden*: under "
        f"the profiler at least {LEAST_SHARE:.0%} of the makespan was DeepEP's kernels beside compute on "
        "the same GPU (`benchmarks/hidden.py`; the rule was fixed before these were measured): where "
        "less is hidden, a plain sum cannot be far off. One GPU has decode only: DeepEP refuses normal "
        "mode for one rank, so that there is no prefill exchange to measure or to calibrate.",
        "",
        *twice(found, earlier),
        *_parts_of_predictors(overlapped),
        "`sum` adds the kernels' times alone, `max` takes the larger of compute and communication, "
        "`SM share` first stretches compute by the SMs that exchanges hold, all with this profile's "
        "times; `roofline` takes the larger of both from data-sheet rates.",
        "",
        "## Against the targets",
        "",
        *targets(found),
        "",
    ]  # fmt: skip
    for title, kept in (("Unseen cases", True), ("Seen cases", False)):
        rows = [c for c in found if c.unseen == kept]
        if rows:
            lines += [f"## {title}", "", *table(rows, own), ""]
    return "\n".join(lines)


def _head(
    found: Sequence[Case], facts: Mapping[str, Any], profiles: Mapping[str, str], *, probed: bool
) -> list[str]:
    """What was measured and predicted, by which commands."""
    libraries = ", ".join(f"{name} {v}" for name, v in facts.get("libraries", {}).items())
    repeats = sorted({len(c.times_ns) for c in found})
    unseen = sum(c.unseen for c in found)
    named = ", ".join(f"`{name}` (sha256 {sha[:12]})" for name, sha in profiles.items())
    return [
        "# Validation: whole programs, predicted and measured",
        "",
        f"{len(found)} cases, {unseen} of them unseen, on {facts.get('gpus_visible', '?')} x "
        f"{facts.get('gpu', '?')} (torch {facts.get('torch', '?')}, CUDA {facts.get('cuda', '?')}, "
        f"{libraries}), production kernels, {found[0].layers} MoE layers of DeepSeek-V3 with 64 "
        f"experts, {' to '.join(map(str, repeats))} repeats each after {WARM_UPS if probed else '2 warm-ups'}, schedules in turn; "
        "makespan of the slower rank. `tbo@0` is two-batch overlap whose GEMMs have no SM budget.",
        "",
        f"Profiles: {named}, calibrated before; how far they are from what was held out of them, and "
        "from another calibration: `docs/calibration.md`. *Unseen* cases were drawn by a seed "
        "(`benchmarks.validation_draw`) and their predictions committed "
        "(`benchmarks/data/validation_predicted.jsonl`) before any of them was measured. *Seen* cases "
        "were compared with earlier profiles.",
        "",
        "```",
        "python -m benchmarks.validation_draw --seed 44 --one 44 -o benchmarks/validation_unseen.yaml",
        "python -m benchmarks.validation predict -o benchmarks/data/validation_predicted.jsonl",
        "torchrun --nproc-per-node 2 -m benchmarks.validation_run --out benchmarks/data/validation_h200_2x.jsonl",
        "torchrun --nproc-per-node 1 -m benchmarks.validation_run --out benchmarks/data/validation_h200_2x.jsonl",
        *((PROBED_COMMAND,) if probed else ()),
        COMMAND,
        "```",
        "",
    ]


def _parts_of_predictors(overlapped: Sequence[Case]) -> Iterator[str]:
    for title, chosen in (
        ("overlapped unseen cases", [c for c in overlapped if c.unseen]),
        ("unseen cases with hidden communication", [c for c in overlapped if c.unseen and c.hides]),
        ("overlapped seen cases", [c for c in overlapped if not c.unseen]),
        ("all cases with hidden communication", [c for c in overlapped if c.hides]),
    ):
        if chosen and (not title.startswith("all") or not all(c.unseen for c in overlapped)):
            yield from (f"## Against plainer predictors: {len(chosen)} {title}", "")
            yield from (*predictors(chosen), "")
    yield from (f"All {len(overlapped)} overlapped cases, median error by what limits them:", "")
    yield from (*by_kind(overlapped), "")


def readme_block(found: Sequence[Case]) -> str:
    """README's table: what an undecided user needs to know, with the command that makes it."""
    chosen = [c for c in found if c.unseen] or list(found)
    overlapped = [c for c in chosen if c.overlapped]
    parts_of = [
        *(
            (f"overlapped, {name}", [c for c in overlapped if c.kind == name])
            for name in kinds(overlapped)
        ),
        ("overlapped, all", overlapped),
        ("sequential and baseline", [c for c in chosen if not c.overlapped]),
    ]
    rows = [
        "| | cases | time off by, median | 90th percentile | a plain sum, median "
        "| gain over sequential off by, median | right sign |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, own in parts_of:
        gains = [c for c in own if c.schedule != "sequential"]
        if not gains:
            continue
        errors = sorted(abs(c.error) for c in own)
        off = median(abs(c.predicted_gain - c.gain) for c in gains)
        clear = [c for c in gains if c.apart]
        rows.append(
            f"| {title} | {len(own)} | {median(errors):.1%} | {percentile(errors, 0.9):.1%} "
            f"| {median(abs(_off(c, 'sum')) for c in own):.1%} | {100 * off:.1f} points "
            f"| {sum(c.right for c in clear)} of {len(clear)} |"
        )
    return "\n".join([*rows, "", f"`{COMMAND}`"])


def kinds(found: Iterable[Case]) -> list[str]:
    """What limits the cases, each once."""
    return sorted({c.kind for c in found}, reverse=True)


def with_block(text: str, block: str) -> str:
    """`text` with what stands between the two marks replaced; ValueError without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no part between {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"
