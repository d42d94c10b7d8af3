"""`moe-overlap fusion`: is the shared expert fused, in which layout, and which rule decides?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from moe_overlap.commands.arguments import JsonOption, SetOption, check_settings

OptionalScenario = Annotated[
    str | None,
    typer.Argument(metavar="SCENARIO", help="A library name or a YAML file.", show_default=False),
]
DocumentOption = Annotated[
    bool, typer.Option("--document", help="Print all rules as Markdown (docs/fusion-rules.md).")
]
ProductOption = Annotated[
    bool, typer.Option("--product", help="Evaluate every combination of flags and count outcomes.")
]


def fusion(
    scenario: OptionalScenario = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
    document: DocumentOption = False,
    product: ProductOption = False,
) -> None:
    """Which rule decides whether a scenario's shared expert is fused, and what that changes."""
    if [scenario is not None, document, product].count(True) != 1:
        raise typer.BadParameter("needs exactly one of SCENARIO, --document and --product")
    if scenario is None and (settings or (document and as_json)):
        raise typer.BadParameter("--set needs a SCENARIO, and --document has no JSON")
    if document:
        from models.fusion_document import fusion_document as all_rules

        typer.echo(all_rules(), nl=False)
        return
    if scenario is None:
        _print_product(as_json)
        return
    from moe_overlap.fusion_report import fusion_document
    from moe_overlap.output import print_json
    from scenarios import load
    from scenarios.resolve import resolve

    report = fusion_document(resolve(load(scenario, check_settings(settings))))
    if as_json:
        print_json(report)
    else:
        _print(report)


def _print(report: dict[str, Any]) -> None:
    switch, layout = report["switch"], report["layout"]
    typer.echo(f"{report['scenario']}\n")
    given = [name for name, value in switch["flags"].items() if value] or ["none"]
    typer.echo(f"Switch (SGLang {report['sglang']}): {switch['outcome']}")
    typer.echo(f"  flags      {', '.join(given)}")
    for step in switch["adjusted"]:
        typer.echo(f"  adjusted   {step['reason']} [{step['rule']}]")
    if switch["rule"]:
        typer.echo(f"  rule       {switch['rule']} ({switch['evidence']})")
    typer.echo(f"  reason     {switch['reason']}")
    for version, verdict in report["versions"].items():
        if version != report["sglang"] and verdict["rule"]:
            typer.echo(f"  in {version:<7} {verdict['outcome']} [{verdict['rule']}]")
    typer.echo(f"\nLayout: {layout['kind']}")
    for key, value in layout.items():
        if key != "kind":
            typer.echo(f"  {key.replace('_', ' '):<24}{value}")
    if report["scheduling"]:
        typer.echo("\nScheduling")
    for row in report["scheduling"]:
        typer.echo(f"  {row['schedule']:<10}{_scheduling(row)}")


def _scheduling(row: dict[str, Any]) -> str:
    if row["refused"]:
        return f"refused [{row['refused']['rule']}]: {row['refused']['reason']}"
    return f"{row['outcome']} [{row['rule']}]: {row['left']}"


def _print_product(as_json: bool) -> None:
    from collections import Counter

    from models.fusion import decide
    from models.fusion_product import combinations
    from models.fusion_rules import load_fusion_rules
    from moe_overlap.output import print_json

    rules = load_fusion_rules()
    outcomes: Counter[str] = Counter()
    by_rule: Counter[str] = Counter()
    for one in combinations(rules):
        decision = decide(one.case, rules)
        outcomes[decision.outcome] += 1
        by_rule[decision.rule] += 1
    counts = {"combinations": outcomes.total(), **outcomes}
    if as_json:
        print_json({"schema": 1, "sglang": rules.version, **counts, "rules": dict(by_rule)})
        return
    typer.echo(", ".join(f"{count} {name}" for name, count in counts.items()))
    for rule, count in by_rule.most_common():
        typer.echo(f"{count:>9}  {rule}")
