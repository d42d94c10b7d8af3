"""`moe-overlap explain`: figures of what fusion, Waterfill and overlap change, for one scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moe_overlap.commands.arguments import (
    JsonOption,
    OutputOption,
    ScenarioArgument,
    SetOption,
    check_settings,
)

CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Also show whether its shared expert fits."),
]


def explain(
    scenario: ScenarioArgument,
    settings: SetOption = None,
    checkpoint: CheckpointOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw what each optimisation changes in this scenario, as one HTML page."""
    from moe_overlap.explanation import explain as explain_scenario
    from moe_overlap.output import check_writable, print_json, progress, stdout, tell, writable
    from scenarios import load
    from scenarios.resolve import resolve
    from viz.explain import write_explanation

    loaded = load(scenario, check_settings(settings))
    target = output
    if target is None and not as_json:
        target = Path("reports") / f"{Path(scenario).stem}-explain.html"
    if target is not None:
        check_writable(target)
    tell(resolve(loaded).notes())
    with progress() as report:
        found = explain_scenario(loaded, checkpoint=checkpoint, progress=report)
    if as_json:
        print_json(dict(found.document))
    if target is None:
        return
    write_explanation(writable(target), found.document, found.timelines)
    if not as_json:
        stdout().print(str(target), soft_wrap=True)
