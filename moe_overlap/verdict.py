"""Which schedule wins, whether that is beyond the noise, and why, in words made of the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moe_overlap.row import Row

Word = Literal["clear", "too close to call"]
CLEAR: Word = "clear"
CLOSE: Word = "too close to call"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`best` by step time, and the row that comes closest to it (None when there is none): the fastest of
    those whose difference to it is within the noise, else the next fastest; their difference and its
    noise."""

    best: str | None
    runner_up: str | None
    verdict: Word | None
    margin_ns: float | None
    noise_ns: float | None


def judge(rows: Sequence[Row]) -> Verdict:
    """The verdict over the rows that can win; ties go to the row that was named first."""
    ranked = sorted(
        (row for row in rows if row.can_win),
        key=lambda row: row.figures.step_ns if row.figures else 0.0,
    )
    if not ranked:
        return Verdict(None, None, None, None, None)
    if len(ranked) == 1:
        return Verdict(ranked[0].name, None, CLEAR, None, None)
    first, *others = ranked
    against = [_against(first, other) for other in others]
    return next((verdict for verdict in against if verdict.verdict == CLOSE), against[0])


def _against(first: Row, other: Row) -> Verdict:
    best, rival = first.figures, other.figures
    assert best is not None and rival is not None  # can_win says so
    margin, noise = rival.step_ns - best.step_ns, rival.noise_against(best)
    return Verdict(first.name, other.name, CLEAR if margin > noise else CLOSE, margin, noise)


def explain(document: Mapping[str, Any]) -> str:
    """The paragraph under the verdict. Each number in it is a value of the document."""
    rows = {row["name"]: row for row in document["schedules"]}
    best = rows.get(document["best"])
    if best is None:
        return " ".join(["No schedule can run.", *_refusals(document)])
    sentences = [_race(document, rows, best)]
    rival = rows.get(document["runner_up"]) if best["name"] == "baseline" else rows.get("baseline")
    rival = rival if rival and rival["step_us"] is not None else rows.get(document["runner_up"])
    if rival is not None and rival is not best:
        sentences.append(_exposure(best, rival))
    sentences += [_path(best), _bound(best), _costs(best), *_refusals(document)]
    return " ".join(sentence for sentence in sentences if sentence)


def _race(document: Mapping[str, Any], rows: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    name, step = best["name"], best["step_us"]
    if document["runner_up"] is None:
        return f"{name} is the only schedule that can run: a step takes {step} µs."
    second = rows[document["runner_up"]]
    if not document["margin_us"]:
        return f"A step takes {step} µs with {name} and with {second['name']} alike."
    lead = f"A step takes {step} µs with {name} and {second['step_us']} µs with {second['name']}"
    margin, noise = document["margin_us"], document["noise_us"]
    if document["verdict"] == CLOSE:
        return f"{lead}: {margin} µs apart, within the {noise} µs by which that difference is uncertain."
    return (
        f"{lead}, the next best: {margin} µs apart, "
        f"more than the {noise} µs by which that difference is uncertain."
    )


def _exposure(best: Mapping[str, Any], rival: Mapping[str, Any]) -> str:
    """Communication hidden against work added, per layer: the trade that decides overlap."""
    ours, theirs = best["exposed_comm_us"], rival["exposed_comm_us"]
    facts = (
        f"Per layer {best['name']} takes {best['layer_us']} µs, {ours} µs of it exposed "
        f"communication; {rival['name']} takes {rival['layer_us']} µs, {theirs} µs of it exposed:"
    )
    hidden, shorter = theirs - ours, rival["layer_us"] - best["layer_us"]
    if hidden > 0 and shorter >= hidden:
        return f"{facts} it hides communication and adds no work."
    if hidden > 0:
        return f"{facts} it hides more communication than the work that it adds."
    if shorter > 0 and hidden < 0:
        return f"{facts} less is exposed, and paid back in slower or repeated work."
    if shorter > 0:
        return f"{facts} as much is exposed, and {rival['name']} does more or slower work."
    if not hidden and not shorter:
        return f"{facts} their layers are alike."
    return f"{facts} what it gains lies outside these layers."


def _path(row: Mapping[str, Any]) -> str:
    entries = sorted(row["critical_path"], key=lambda entry: (-entry["us"], entry["op"]))[:3]
    if not entries:
        return ""
    parts = ", ".join(f"{entry['op']} ({entry['us']} µs)" for entry in entries)
    return f"Its critical path is led by {parts}."


def _bound(row: Mapping[str, Any]) -> str:
    bounds = row["bounds_us"]
    if not bounds:
        return ""
    name = max(bounds, key=lambda key: (bounds[key], key))
    return f"No schedule of these kernels beats {bounds[name]} µs, its {name} bound."


def _costs(row: Mapping[str, Any]) -> str:
    shares = {label: share for label, share in row["cost_shares"].items() if share}
    if not shares:
        return ""
    parts = ", ".join(f"{label} {share}" for label, share in shares.items())
    return f"Shares of its kernel time by the label of their cost: {parts}."


def _refusals(document: Mapping[str, Any]) -> list[str]:
    refused = [row for row in document["schedules"] if row["refused"]]
    return [f"{row['name']} is refused ({row['refused']['rule']})." for row in refused]
