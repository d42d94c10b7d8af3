"""The fusion rules as a Markdown document, written from the rule files."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from models.checkpoint_slots import RULES
from models.conditions import words
from models.fusion_product import BACKENDS, FLAGS, FORMATS, SERVERS
from models.fusion_rules import (
    Adjustment,
    Family,
    FusionRules,
    Rule,
    fusion_versions,
    load_fusion_rules,
)

_INTRODUCTION = """\
# Shared-expert fusion: the rules

Written by `moe-overlap fusion --document` from `models/rules/fusion-*.yaml`; do not edit it by hand.

A fused shared expert is one more row of the grouped GEMM. Whether it is fused is decided in three
steps: the argument handling changes flags, the model's class checks the case, and the class says how
many shared experts fuse. In each list of checks **the first one that holds decides**; where none holds,
the shared expert is fused. Reasons in quotation marks are the server's own log messages. *Evidence*:
`run` means that the package's function was run on such cases, `code` that its source was read, and
`inferred` neither.
"""


def fusion_document() -> str:
    """The whole document: newest version first."""
    parts = [_INTRODUCTION]
    for version in reversed(fusion_versions()):
        parts.append("\n".join(_version_lines(load_fusion_rules(version))))
    parts.append("\n".join(_checkpoint_lines()))
    return "\n".join(parts)


def _checkpoint_lines() -> Iterator[str]:
    yield "## Checkpoints"
    yield ""
    yield (
        "`moe-overlap checkpoint` renames the shared expert's tensors to one more routed expert, as the "
        "server's loader does, and says what happens to each. Where a fusion rule above refuses "
        "although fusion is enforced, that rule is the verdict."
    )
    yield ""
    yield "| rule | what it means | evidence |"
    yield "| --- | --- | --- |"
    for name, (meaning, evidence) in RULES.items():
        yield f"| {name} | {meaning} | {evidence} |"
    yield ""


def _version_lines(rules: FusionRules) -> Iterator[str]:
    count = sum(1 for _ in rules.all_rules())
    yield f"## SGLang {rules.version}"
    yield ""
    yield f"{count} rules from {rules.source}."
    yield ""
    if rules.version == fusion_versions()[-1]:
        yield from _product_lines(rules)
    yield "### Argument handling"
    yield ""
    yield "| rule | when | then | why | evidence |"
    yield "| --- | --- | --- | --- | --- |"
    for entry in rules.arguments.in_order:
        yield _adjustment(entry)
    yield ""
    for name, family in rules.families.items():
        yield from _family_lines(name, family)
    yield "### Waterfill"
    yield ""
    yield from _table(rules.waterfill)
    yield "### What is left of the schedules"
    yield ""
    yield "| schedule | not fused | fused | evidence |"
    yield "| --- | --- | --- | --- |"
    for hook in rules.scheduling:
        yield f"| {hook.schedule} | {hook.unfused} | {hook.fused} | {hook.evidence} |"
    yield ""


def _product_lines(rules: FusionRules) -> Iterator[str]:
    sizes = (len(rules.families), len(BACKENDS), len(FORMATS), len(SERVERS), 2 ** len(FLAGS))
    families, backends, formats, servers, flags = sizes
    yield (
        f"`moe-overlap fusion --product` decides every combination of {families} families, {backends} "
        f"all-to-all backends, {formats} formats, {servers} servers and {flags} sets of flags "
        f"({prod(sizes)} in all) and counts the outcomes and the rules that decided."
    )
    yield ""


def _family_lines(name: str, family: Family) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    classes = (
        f"`{cls}`" + (f" (for `{entry.accepts}`)" if entry.accepts not in ("", cls) else "")
        for cls, entry in family.classes.items()
    )
    yield f"Classes: {', '.join(classes)}. Source: {family.source}."
    yield ""
    yield from _table(family.rules)
    if family.slot_rules:
        yield "How many fuse: the config's number, unless"
        yield ""
        yield from _table(family.slot_rules)
    if family.loader_rules:
        yield "What stops the weight loader of a fused model:"
        yield ""
        yield from _table(family.loader_rules)


def _table(rules: tuple[Rule, ...]) -> Iterator[str]:
    if not rules:
        yield "No check of its own."
        yield ""
        return
    yield "| rule | when | then | reason | evidence |"
    yield "| --- | --- | --- | --- | --- |"
    for rule in rules:
        reason = f'"{rule.reason}"' if rule.reason else rule.own_words
        yield f"| {rule.id} | {words(rule.when)} | {rule.then} | {reason} | {rule.evidence} |"
    yield ""


def _adjustment(entry: Adjustment) -> str:
    changes = ", ".join(f"`{key}` = {str(value).lower()}" for key, value in entry.set.items())
    then = changes or "error"
    why = entry.error or entry.reason
    return f"| {entry.id} | {words(entry.when)} | {then} | {why} | {entry.evidence} |"
