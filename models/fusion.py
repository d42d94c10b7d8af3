"""Whether the shared expert is fused, in which layout, and the first rule that decided.

Three layers that are easily confused: the *switch* (flags, and what the argument handling makes of
them), the *layout* of the fused slot, which follows from the all-to-all backend, and the *scheduling*,
that is which hooks of the overlap schedules are left. `decide` answers all three from the rules of one
version (`models/rules/fusion-<version>.yaml`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from models.conditions import holds
from models.deployment import Fusion
from models.experts import slot_layout
from models.fusion_case import FusionCase
from models.fusion_rules import (
    Adjustment,
    Family,
    FusionRules,
    Hook,
    Rule,
    first_match,
    load_fusion_rules,
)
from models.sglang_rules import Evidence, Refusal

Outcome = Literal["fused", "not fused", "error"]


@dataclass(frozen=True, slots=True)
class Step:
    """One adjustment of the arguments that was made, and why."""

    rule: str
    reason: str
    changed: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What the server does with the shared expert.

    `rule` is the first rule that decided, with its reason and evidence; `case` holds the arguments as
    adjusted by `steps`. `error` means that the server does not start.
    """

    outcome: Outcome
    fusion: Fusion
    rule: str
    reason: str
    evidence: Evidence
    case: FusionCase
    steps: tuple[Step, ...]
    hooks: tuple[Hook, ...]

    @property
    def refusal(self) -> Refusal | None:
        """Why it is not fused, None when it is."""
        if self.outcome == "fused":
            return None
        return Refusal(rule=self.rule, reason=self.reason, evidence=self.evidence)


@dataclass(frozen=True, slots=True)
class _Verdict:
    outcome: Outcome
    slots: int
    rule: str
    reason: str
    evidence: Evidence


def decide(case: FusionCase, rules: FusionRules | None = None) -> Decision:
    """The decision for one server, under the rules of the newest version unless given."""
    rules = rules or load_fusion_rules()
    case, steps, failed = adjust_arguments(case, rules)
    verdict = failed or _checked_waterfill(resolve(case, rules), case, rules)
    slots = verdict.slots
    layout = slot_layout(case.a2a) if slots else "none"
    return Decision(
        verdict.outcome,
        Fusion(slots, layout, bool(slots) and case.waterfill),
        verdict.rule,
        verdict.reason,
        verdict.evidence,
        case,
        steps,
        rules.scheduling,
    )


def adjust_arguments(
    case: FusionCase, rules: FusionRules
) -> tuple[FusionCase, tuple[Step, ...], _Verdict | None]:
    """The case after the argument handling, what it changed, and an error that ends it."""
    steps: list[Step] = []
    arguments = rules.arguments
    for entries in (arguments.backend, arguments.hooks, arguments.runner, arguments.a2a):
        for entry in entries:
            if not holds(entry.when, case.facts()):
                continue
            if entry.error:
                failed = _Verdict("error", 0, entry.id, entry.error, entry.evidence)
                return case, tuple(steps), failed
            case = replace(case, **entry.set)
            steps.append(Step(entry.id, entry.reason, tuple(entry.set.items())))
    return case, tuple(steps), None


def adjustment(entries: tuple[Adjustment, ...], case: FusionCase) -> dict[str, Any]:
    """What one list of adjustments alone would set."""
    changes: dict[str, Any] = {}
    for entry in entries:
        if holds(entry.when, case.facts()):
            changes |= entry.set
    return changes


def hook_answer(case: FusionCase, rules: FusionRules) -> Rule | None:
    """The rule by which the model class answers, whatever the flags; None when no check applies, so
    that it allows fusion, or when the class is never asked."""
    found = rules.family_of(case.model_class)
    if found is None:
        return None
    return first_match(found[1].rules, family_facts(case, found[1]))


def family_facts(case: FusionCase, family: Family) -> dict[str, Any]:
    """Facts with what the case's class accepts; a wrapper is judged as what it wraps."""
    entry = family.classes[case.model_class]
    if entry.wraps and case.architecture == case.model_class:
        case = replace(case, architecture=entry.wraps)
    return case.facts(entry.accepts)


def resolve(case: FusionCase, rules: FusionRules) -> _Verdict:
    """SGLang's own order: the flag, then the class, then the number of slots."""
    if case.disable:
        reason = "Fusion is disabled by a flag or by the argument handling."
        return _Verdict("not fused", 0, "flag.disable", reason, "run")
    found = rules.family_of(case.model_class)
    if found is None:
        reason = f"{case.model_class} has no fusion check, so no shared expert is fused."
        return _Verdict("not fused", 0, "class.no_check", reason, "code")
    name, family = found
    facts = family_facts(case, family)
    rule = first_match(family.rules, facts)
    if rule is not None and rule.then != "fuse":
        return _refused(rule, facts)
    count = first_match(family.slot_rules, facts)
    if count is not None and count.then != "fuse":
        return _refused(count, facts)
    if not case.n_shared:
        reason = "The config has no shared expert."
        return _Verdict("not fused", 0, "config.no_shared", reason, "run")
    decided = rule.id if rule else f"{name}.allowed"
    evidence = rule.evidence if rule else "run"
    return _Verdict("fused", case.n_shared, decided, "No check objects.", evidence)


def _refused(rule: Rule, facts: dict[str, Any]) -> _Verdict:
    outcome: Outcome = "error" if rule.then == "error" else "not fused"
    return _Verdict(outcome, 0, rule.id, rule.text(facts), rule.evidence)


def _checked_waterfill(verdict: _Verdict, case: FusionCase, rules: FusionRules) -> _Verdict:
    if not (verdict.slots and case.waterfill):
        return verdict
    facts = case.facts()
    rule = first_match(rules.waterfill, facts)
    return verdict if rule is None else _refused(rule, facts)
