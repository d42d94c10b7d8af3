"""Silent failures: what is accepted and then not done, and what it costs when it falls back;
what a prediction assumes; and predictions whose loads did not settle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from models.sglang_rules import Note, Refusal
from moe_overlap.answers.probe import step_us
from moe_overlap.prediction import notes_of
from moe_overlap.row import Row
from scenarios.errors import shown
from scenarios.resolve import Resolved, ScheduleChoice
from simulator.load import CLOSE

_FUSION = "shared_experts"
_VOTE = "tbo.vote"
_EXCHANGE = "a2a."
_RANKS = "ranks not measured"
_ROUTING = "routing assumed"


@dataclass(frozen=True, slots=True)
class Silent:
    """One thing that nothing but a trace would show: the schedule (or flag), the rule, the words."""

    schedule: str
    rule: str
    text: str


def silent_failures(resolved: Resolved, rows: Iterable[Row]) -> tuple[Silent, ...]:
    """All that would happen to these schedules, or to their predictions, without a word."""
    found: list[Silent] = []
    for row in rows:
        choice = resolved.choice(row.name)
        notes = [note for note in notes_of(resolved, choice) if _concerns(note, row)]
        found += [Silent(row.name, note.rule, f"{note.reason}.") for note in notes]
        if row.refused is not None and row.refused.instead:
            found.append(Silent(row.name, row.refused.rule, _fallback(resolved, row.refused)))
        if row.load_off >= CLOSE:
            found.append(Silent(row.name, "power limit", _unsettled(row)))
    if fusion := resolved.fusion_note():
        found.append(Silent(_FUSION, "fusion", f"{fusion}."))
    if differs := resolved.format_note():
        found.append(Silent("quantization.weights", "checkpoint format", f"{differs}."))
    if extrapolated := resolved.ranks_note():
        found.append(Silent("hardware", _RANKS, f"{extrapolated}."))
    if assumed := resolved.routing_note():
        found.append(Silent("routing", _ROUTING, f"{assumed}."))
    for idle in resolved.idle_keys():
        text = f"{shown(idle.value)} has no effect: {idle.why}."
        found.append(Silent(idle.key, "no effect", text))
    return tuple(_once(found))


def _concerns(note: Note, row: Row) -> bool:
    """Whether a note holds where the schedule does not run: one about the exchange does."""
    return row.refused is None or row.figures is not None or note.rule.startswith(_EXCHANGE)


def _fallback(resolved: Resolved, refused: Refusal) -> str:
    """What runs in a schedule's place, and how long its step takes."""
    text = f"accepted; what runs in its place is {refused.instead}. Reason: {refused.reason}."
    decode = resolved.batch.phase == "decode"
    captured = step_us(resolved, ScheduleChoice("baseline"))
    if refused.rule != _VOTE or not decode or captured is None:
        return text
    eager = step_us(_eager(resolved), ScheduleChoice("baseline"))
    if eager is None or resolved.deployment.a2a.mode == "normal":
        return text
    return (
        f"{text} Without the flag such a step takes {captured:.1f} \u00b5s from a CUDA graph; with it "
        f"{eager:.1f} \u00b5s, launched kernel by kernel."
    )


def _unsettled(row: Row) -> str:
    return (
        "kernels' times and the load that they depend on did not settle: a GPU's load is "
        f"{row.load_off:.3f} off the one that they were predicted at."
    )


def _eager(resolved: Resolved) -> Resolved:
    runtime = resolved.scenario.runtime.model_copy(update={"launch": "eager"})
    return replace(resolved, scenario=resolved.scenario.model_copy(update={"runtime": runtime}))


def _once(found: Iterable[Silent]) -> Iterator[Silent]:
    """Each rule once, under the schedules that it concerns."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in found:
        names.setdefault((one.rule, one.text), []).append(one.schedule)
    for (rule, text), schedules in names.items():
        yield Silent(", ".join(schedules), rule, text)
