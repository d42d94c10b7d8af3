"""Fusion rules of one SGLang version, read from `models/rules/fusion-<version>.yaml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML

from models.conditions import Test, compiled, faults
from models.errors import InputError
from models.fusion_case import FACTS
from models.sglang_rules import RULES_DIR, Evidence


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Conditional(_Section):
    """What applies when its condition holds."""

    id: str
    when: Mapping[str, Any]

    @cached_property
    def applies(self) -> Test:
        """The condition as a function of facts."""
        return compiled(self.when)


class Rule(_Conditional):
    """One check. The first rule of a list whose condition holds decides: *fuse* or *refuse*, or
    *error* where the server does not start. `reason` is the server's own message, `own_words` ours where
    it has none, both with facts in braces; a rule that fuses needs neither."""

    then: Literal["fuse", "refuse", "error"] = "refuse"
    reason: str = ""
    own_words: str = ""
    evidence: Evidence = "run"

    def text(self, facts: Mapping[str, Any]) -> str:
        """The reason with this case's values."""
        return (self.reason or self.own_words).format_map(facts)


class Adjustment(_Conditional):
    """A change of the arguments before the model is asked: facts set to new values, or an error."""

    set: dict[str, Any] = {}
    error: str = ""
    reason: str = ""
    evidence: Evidence = "run"


class ModelClass(_Section):
    """A model class: the architecture that it fuses for, and what it wraps, where it is a wrapper."""

    accepts: str = ""
    wraps: str = ""


class Family(_Section):
    """Model classes with one list of checks. As many shared experts fuse as the config has, unless one
    of `slot_rules` applies; `loader_rules` are what then stops the weight loader."""

    source: str
    classes: Mapping[str, ModelClass]
    rules: tuple[Rule, ...]
    slot_rules: tuple[Rule, ...] = ()
    loader_rules: tuple[Rule, ...] = ()


class Arguments(_Section):
    """What the argument handling changes, list by list in the order in which they run; every entry
    whose condition holds applies."""

    backend: tuple[Adjustment, ...]
    hooks: tuple[Adjustment, ...]
    runner: tuple[Adjustment, ...]
    a2a: tuple[Adjustment, ...]

    @cached_property
    def in_order(self) -> tuple[Adjustment, ...]:
        """All entries as the server applies them."""
        return (*self.backend, *self.hooks, *self.runner, *self.a2a)


class Hook(_Section):
    """What becomes of a schedule when the shared expert is fused."""

    schedule: str
    unfused: str
    fused: str
    evidence: Evidence


class FusionRules(_Section):
    """Everything that one version decides about shared-expert fusion."""

    version: str
    source: str
    arguments: Arguments
    families: Mapping[str, Family]
    waterfill: tuple[Rule, ...]
    scheduling: tuple[Hook, ...]

    def family_of(self, model_class: str) -> tuple[str, Family] | None:
        """Name and family of a model class; None for one that is never asked."""
        for name, family in self.families.items():
            if model_class in family.classes:
                return name, family
        return None

    def all_rules(self) -> Iterator[Rule | Adjustment]:
        """Every rule and adjustment of the file."""
        yield from self.arguments.in_order
        yield from self.waterfill
        for family in self.families.values():
            yield from family.rules
            yield from family.slot_rules
            yield from family.loader_rules


def first_match(rules: tuple[Rule, ...], facts: Mapping[str, Any]) -> Rule | None:
    """The rule that decides, None when no condition holds."""
    return next((rule for rule in rules if rule.applies(facts)), None)


def fusion_versions() -> tuple[str, ...]:
    """SGLang versions that have a fusion file, oldest first."""
    names = (path.stem.removeprefix("fusion-") for path in RULES_DIR.glob("fusion-*.yaml"))
    return tuple(sorted(names, key=lambda name: [int(part) for part in name.split(".")]))


@lru_cache
def load_fusion_rules(version: str = "0.5.23") -> FusionRules:
    """The fusion rules of an SGLang version. InputError names the versions that have a file; ValueError
    for a file whose conditions name what nothing knows, or whose ids clash."""
    if version not in fusion_versions():
        raise InputError("fusion rules", "version", version, ", ".join(fusion_versions()))
    path = RULES_DIR / f"fusion-{version}.yaml"
    rules = FusionRules.model_validate(YAML(typ="safe").load(path))
    seen: set[str] = set()
    for rule in rules.all_rules():
        for fault in faults(rule.when, FACTS):
            raise ValueError(f"{path.name}: {rule.id}: {fault}")
        if rule.id in seen:
            raise ValueError(f"{path.name}: {rule.id} is given twice")
        seen.add(rule.id)
    return rules
