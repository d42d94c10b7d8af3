"""The answers as a part of the comparison's document, and as lines for people made of that part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moe_overlap.answers.capacity import MOST_TOKENS, Operating
from moe_overlap.answers.collect import Answers
from moe_overlap.answers.latency import latency_ms
from scenarios.resolve import Resolved

_CAP = "a2a.low_latency_cap"
_LIMITS = {
    "memory": "memory",
    "latency": "the limit",
    "search": "as far as was searched",
    _CAP: "the low-latency buffer",
}


def answers_document(
    resolved: Resolved, steps_us: Mapping[str, float], answers: Answers
) -> dict[str, Any]:
    """The document's key `answers` (`docs/formats.md`); `steps_us` by schedule at the scenario's batch."""

    def operating(one: Operating) -> dict[str, Any]:
        return {
            "batch_per_rank": one.size,
            "limited_by": one.limited_by,
            "step_us": round(one.step_us, 1),
            "latency_ms": round(latency_ms(resolved, one.step_us, one.size), 3),
            "tokens_per_s_per_gpu": round(one.tokens_per_s, 1),
        }

    flip = answers.flip
    document: dict[str, Any] = {
        "latency": "itl" if resolved.batch.phase == "decode" else "ttft",
        "latency_ms": {n: round(latency_ms(resolved, us), 3) for n, us in steps_us.items()},
        "largest": {name: operating(one) for name, one in answers.largest.items()},
        "best_at_largest": answers.best_at_largest,
        "limit_ms": answers.limit_ms,
        "under_limit": {name: operating(one) for name, one in answers.under_limit.items()},
        "best_under_limit": answers.best_under_limit,
        "under_limit_looked": {n: list(one.looked) for n, one in answers.within.items()},
        "flip": flip
        and {
            "key": flip.key,
            "value": flip.value,
            "instead_of": flip.instead_of,
            "winner": flip.winner,
        },
        "flip_looked": answers.looked and {k: list(v) for k, v in answers.looked.items()},
        "flip_factor": None if answers.octaves is None else 2**answers.octaves,
    }
    return document


def answer_lines(document: Mapping[str, Any]) -> list[str]:
    """One line for each answer that there is: flip, largest batches, latency limit."""
    answers = document["answers"]
    lines = [_flip(document, answers)] if document["runner_up"] else []
    if answers["best_at_largest"]:
        lines.append(
            f"Each at its own largest batch per rank: {_ranked(answers['largest'])}."
            f"{_buffer(answers['largest'])}{_searched(answers['largest'])}"
        )
    if answers["limit_ms"] is not None:
        lines.append(_limit(answers))
    return [line for line in lines if line]


def note_lines(document: Mapping[str, Any]) -> list[str]:
    """One line for each silent failure."""
    return [f"{note['schedule']} ({note['rule']}): {note['text']}" for note in document["notes"]]


def shortcuts_line(document: Mapping[str, Any]) -> str:
    """What was simulated, and the largest error that its shortcuts may have; nothing where nothing was."""
    if all(row["step_us"] is None for row in document["schedules"]):
        return ""
    shortcuts = document["shortcuts"]
    errors = [error for error in shortcuts["error"].values() if error is not None]
    if shortcuts["fidelity"] == "full":
        return "Every rank was simulated by itself through all layers."
    if not errors:
        return "Equal ranks and layers were simulated once; the error of that was not measured."
    return (
        f"Ranks and layers that are alike were simulated once: at most {100 * max(errors):.1f} % of a "
        "step's time, which its band includes."
    )


def _flip(document: Mapping[str, Any], answers: Mapping[str, Any]) -> str:
    """The nearest flip that was found, or that none was, and what was looked at."""
    flip, looked = answers["flip"], answers["flip_looked"]
    if not looked:
        return ""
    if flip is None:
        places = ", ".join(f"{key} {_listed(values, 'or')}" for key, values in looked.items())
        return f"No flip found: {document['runner_up']} would not be the faster at {places}."
    return (
        f"Nearest flip found: {flip['winner']} would be the faster at {flip['key']} "
        f"{_number(flip['value'])} instead of {_number(flip['instead_of'])}; "
        f"looked at {_listed(looked[flip['key']], 'and')}."
    )


def _listed(values: Sequence[float], word: str) -> str:
    """Numbers in words: commas, and the word before the last."""
    *first, last = map(_number, values)
    return f"{', '.join(first)} {word} {last}" if first else last


def _number(value: float) -> str:
    """With commas between thousands, where whole."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _buffer(largest: Mapping[str, Any]) -> str:
    """The key of the low-latency buffer, where it limits one: a setting, and no bound of the hardware."""
    if all(one["limited_by"] != _CAP for one in largest.values()):
        return ""
    return " The low-latency buffer is set by a2a.max_dispatch_tokens_per_rank."


def _searched(largest: Mapping[str, Any]) -> str:
    """How far a search went that found no limit; nothing where each found one."""
    if all(one["limited_by"] != "search" for one in largest.values()):
        return ""
    return f" Batches of more than {MOST_TOKENS:,} tokens over all ranks were not looked at."


def _limit(answers: Mapping[str, Any]) -> str:
    """The schedules within the limit, and of which ones no batch was found at which sizes."""
    what = "between tokens" if answers["latency"] == "itl" else "to the first token"
    limit, found = f"{answers['limit_ms']:g} ms {what}", answers["under_limit"]
    late = [name for name in answers["largest"] if name not in found]
    looked = {size for name in late for size in answers["under_limit_looked"][name]}
    places = f"looked at batch per rank {_listed(sorted(looked), 'and')}" if late else ""
    if not found:
        return f"No schedule was found within {limit}{places and f'; {places}'}."
    left = f" None of {', '.join(late)} was found: {places}." if late else ""
    return f"Within {limit}: {_ranked(found)}.{left}"


def _ranked(found: Mapping[str, Any]) -> str:
    """Best first: schedule, batch, what limits it, throughput."""
    ranked = sorted(found.items(), key=lambda item: -item[1]["tokens_per_s_per_gpu"])
    return "; ".join(
        f"{name} {one['batch_per_rank']:,} ({_LIMITS.get(one['limited_by'], one['limited_by'])}), "
        f"{one['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU"
        for name, one in ranked
    )
