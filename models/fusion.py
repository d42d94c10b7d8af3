"""Whether the shared expert is fused, in which layout, and the first rule that decided.

Three layers that are easily confused: the *switch* (flags, and what the argument handling makes of
them), the *layout* of the fused slot, which follows from the all-to-all backend, and the *scheduling*,
that is which hooks of the overlap schedules are left. `decide` answers all three from the rules of one
version (`models/rules/fusion-<version>.yaml`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from models.deployment import Fusion
from models.experts import slot_layout
from models.fusion_case import FusionCase, derived
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
    evidence: Evidence
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
class Verdict:
    """The switch alone: the outcome, how many slots, and the rule that decided."""

    outcome: Outcome
    slots: int
    rule: str
    reason: str
    evidence: Evidence


def decide(case: FusionCase, rules: FusionRules | None = None) -> Decision:
    """The decision for one server, under the rules of the newest version unless given."""
    rules = rules or load_fusion_rules()
    facts, steps, verdict = _adjusted(case.facts(), rules)
    verdict = verdict or _started(_resolved(facts, rules), facts, rules)
    if verdict.rule == "flag.disable" and not case.disable:
        step = next(step for step in steps if ("disable", True) in step.changed)
        verdict = Verdict("not fused", 0, step.rule, step.reason, step.evidence)
    if steps:
        case = FusionCase.of(facts)
    slots = verdict.slots
    return Decision(
        verdict.outcome,
        Fusion(slots, slot_layout(case.a2a), case.waterfill) if slots else Fusion(),
        verdict.rule,
        verdict.reason,
        verdict.evidence,
        case,
        steps,
        rules.scheduling,
    )


def _adjusted(
    facts: dict[str, Any], rules: FusionRules
) -> tuple[dict[str, Any], tuple[Step, ...], Verdict | None]:
    """The facts after the argument handling, what it changed, and an error that ends it."""
    steps: list[Step] = []
    for entry in rules.arguments.in_order:
        if not entry.applies(facts):
            continue
        if entry.error:
            return facts, tuple(steps), Verdict("error", 0, entry.id, entry.error, entry.evidence)
        facts = derived(facts | entry.set)
        steps.append(Step(entry.id, entry.reason, entry.evidence, tuple(entry.set.items())))
    return facts, tuple(steps), None


def adjustment(entries: tuple[Adjustment, ...], case: FusionCase) -> dict[str, Any]:
    """What one list of adjustments alone would set."""
    changes: dict[str, Any] = {}
    facts = case.facts()
    for entry in entries:
        if entry.applies(facts):
            changes |= entry.set
    return changes


def hook_answer(case: FusionCase, rules: FusionRules) -> tuple[Rule | None, str]:
    """The rule by which the model class answers whatever the flags, with its text; None when no check
    applies, so that it allows fusion, or when the class is never asked."""
    found = rules.family_of(case.model_class)
    if found is None:
        return None, ""
    facts = _family_facts(case.facts(), found[1])
    rule = first_match(found[1].rules, facts)
    return rule, rule.text(facts) if rule else ""


def resolve(case: FusionCase, rules: FusionRules) -> Verdict:
    """SGLang's own order, without the argument handling: the flag, then the class, then the slots."""
    return _resolved(case.facts(), rules)


def _family_facts(facts: dict[str, Any], family: Family) -> dict[str, Any]:
    """Facts with what the case's class accepts; a wrapper is judged as what it wraps."""
    entry = family.classes[facts["model_class"]]
    if entry.wraps and facts["architecture"] == facts["model_class"]:
        facts = facts | {"architecture": entry.wraps}
    return derived(facts, entry.accepts)


def _resolved(facts: dict[str, Any], rules: FusionRules) -> Verdict:
    if facts["disable"]:
        reason = "Fusion is disabled by a flag."
        return Verdict("not fused", 0, "flag.disable", reason, "run")
    found = rules.family_of(facts["model_class"])
    if found is None:
        reason = f"{facts['model_class']} has no fusion check, so no shared expert is fused."
        return Verdict("not fused", 0, "class.no_check", reason, "code")
    name, family = found
    facts = _family_facts(facts, family)
    rule = first_match(family.rules, facts)
    if rule is not None and rule.then != "fuse":
        return _refused(rule, facts)
    count = first_match(family.slot_rules, facts)
    if count is not None and count.then != "fuse":
        return _refused(count, facts)
    if not facts["n_shared"]:
        reason = "The config has no shared expert."
        return Verdict("not fused", 0, "config.no_shared", reason, "run")
    decided = rule.id if rule else f"{name}.allowed"
    evidence = rule.evidence if rule else "run"
    return Verdict("fused", facts["n_shared"], decided, "No check objects.", evidence)


def _refused(rule: Rule, facts: dict[str, Any]) -> Verdict:
    outcome: Outcome = "error" if rule.then == "error" else "not fused"
    return Verdict(outcome, 0, rule.id, rule.text(facts), rule.evidence)


def _started(verdict: Verdict, facts: dict[str, Any], rules: FusionRules) -> Verdict:
    """What still stops a server that has decided to fuse: its weight loader, or Waterfill's kernel."""
    found = rules.family_of(facts["model_class"])
    if not verdict.slots or found is None:
        return verdict
    rule = first_match(found[1].loader_rules, facts)
    if rule is None and facts["waterfill"]:
        rule = first_match(rules.waterfill, facts)
    return verdict if rule is None else _refused(rule, facts)
