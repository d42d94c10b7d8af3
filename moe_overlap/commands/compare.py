"""`moe-overlap compare`: predict every schedule of a scenario, and say which one wins and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from moe_overlap.commands.arguments import (
    AllowRefused,
    JsonOption,
    ScenarioArgument,
    SetOption,
    check_settings,
)
from moe_overlap.errors import REFUSED

if TYPE_CHECKING:
    from moe_overlap.comparison import Comparison

HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html", help="Report to write. Default: reports/SCENARIO.html, none with --json."
    ),
]
FidelityOption = Annotated[
    Literal["full", "auto", "fast"],
    typer.Option(
        "--fidelity",
        help="full: every rank and layer; auto: folded, the error measured; fast: no more than the table.",
    ),
]
_MOST_MS = 1e9  # eleven days: an infinity has no form in JSON
ItlOption = Annotated[
    float | None,
    typer.Option("--itl-ms", min=0, max=_MOST_MS, help="Decode: limit on the time between tokens."),
]
TtftOption = Annotated[
    float | None,
    typer.Option(
        "--ttft-ms", min=0, max=_MOST_MS, help="Prefill: limit on the time to first token."
    ),
]


def compare(
    scenario: ScenarioArgument,
    settings: SetOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    allow_refused: AllowRefused = False,
    fidelity: FidelityOption = "auto",
    itl_ms: ItlOption = None,
    ttft_ms: TtftOption = None,
) -> None:
    """Predict every schedule of a scenario: which wins, by how much, and why."""
    from moe_overlap.comparison import compare as compare_schedules
    from moe_overlap.output import check_writable, print_json, progress
    from scenarios import load

    loaded = load(scenario, check_settings(settings))
    limit_ms = _limit(loaded.phase.decode is not None, itl_ms, ttft_ms)
    target = html or (None if as_json else Path("reports") / f"{Path(scenario).stem}.html")
    if target is not None:
        check_writable(target)
    with progress() as report:
        result = compare_schedules(
            loaded,
            allow_refused=allow_refused,
            fidelity=fidelity,
            limit_ms=limit_ms,
            progress=report,
        )
        if target is not None:
            report("drawing the report")
            _write_report(target, result)
    if as_json:
        print_json(result.document())
    else:
        _print_table(result, target)
    if result.document()["best"] is None:
        raise typer.Exit(REFUSED)


def _limit(decode: bool, itl_ms: float | None, ttft_ms: float | None) -> float | None:
    if decode and ttft_ms is not None:
        raise typer.BadParameter(
            "the scenario is a decode step: use --itl-ms", param_hint="--ttft-ms"
        )
    if not decode and itl_ms is not None:
        raise typer.BadParameter(
            "the scenario is a prefill step: use --ttft-ms", param_hint="--itl-ms"
        )
    return itl_ms if decode else ttft_ms


def _write_report(target: Path, result: Comparison) -> None:
    from moe_overlap.output import writable
    from viz.report import write_report

    programs = {row.name: row.program for row in result.rows if row.program is not None}
    write_report(writable(target), result.document(), result.timelines(), programs)


def _print_table(result: Comparison, target: Path | None) -> None:
    from moe_overlap.answers.words import note_lines, shortcuts_line
    from moe_overlap.output import stdout
    from viz.terminal import compare_table, refusals

    document, console = result.document(), stdout()
    console.print(compare_table(document))
    for refused in refusals(document):
        console.print(refused)
    for line in note_lines(document):
        console.print(line)
    best = document["best"]
    console.print("" if best is None else f"\n{best}: {document['verdict']}.")
    for line in (*document["answers"]["lines"], document["why"], shortcuts_line(document)):
        if line:
            console.print(line)
    if target is not None:
        console.print(f"report: {target}", highlight=False, soft_wrap=True)
