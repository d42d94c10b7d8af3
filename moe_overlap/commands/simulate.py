"""`moe-overlap simulate`: the predicted timeline of one schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moe_overlap.commands.arguments import (
    AllowRefused,
    JsonOption,
    OutputOption,
    ScenarioArgument,
    ScheduleOption,
    SetOption,
    check_settings,
)
from moe_overlap.formats import JSON, PICTURES, write_pictures

if TYPE_CHECKING:
    from schedules.program import Program
    from schedules.timeline import Timeline

LayersOption = Annotated[
    int, typer.Option("--layers", min=1, max=64, help="MoE layers to simulate.")
]
ProgramOption = Annotated[
    bool, typer.Option("--program", help="Print the program instead of simulating it.")
]


def simulate(
    scenario: ScenarioArgument,
    schedule: ScheduleOption,
    output: OutputOption = None,
    layers: LayersOption = 4,
    settings: SetOption = None,
    program: ProgramOption = False,
    as_json: JsonOption = False,
    allow_refused: AllowRefused = False,
) -> None:
    """Predict the timeline of one schedule; write it (-o NAME.json, .html, .png or .pftrace) or draw it in
    the terminal."""
    from moe_overlap.output import check_writable, print_json, progress, stdout, tell, writable
    from moe_overlap.prediction import build
    from scenarios import load
    from scenarios.resolve import resolve
    from schedules.json_form import timeline_to_json
    from simulator import simulate as run

    if program and (output is not None or as_json):
        raise typer.BadParameter("prints text, and nothing to write", param_hint="--program")
    resolved = resolve(load(scenario, check_settings(settings)))
    tell(resolved.notes())
    built = build(resolved, schedule, layers=layers, allow_refused=allow_refused)
    if program:
        _print_program(built)
        return
    if output is not None:
        check_writable(output, (*JSON, *PICTURES))
    with progress() as report:
        report(f"simulating {schedule}")
        timeline = run(built, resolved.deployment.machine)
    if output is not None:
        _write(writable(output), schedule, timeline)
    if as_json:
        print_json(timeline_to_json(timeline))
    elif output is not None:
        stdout().print(
            f"{schedule}: {timeline.makespan_ns / 1000:.1f} µs, {output}", soft_wrap=True
        )
    else:
        from viz.terminal_timeline import timeline_text

        stdout().print(timeline_text(timeline))


def _write(target: Path, name: str, timeline: Timeline) -> None:
    from schedules.files import save_timeline

    if target.suffix in JSON:
        save_timeline(timeline, target)
    else:
        write_pictures(target, {name: timeline})


def _print_program(program: Program) -> None:
    from schedules.text import short_text

    for cls in program.classes:
        typer.echo(f"ranks {', '.join(map(str, cls.ranks))}")
        for line in short_text(cls.steps):
            typer.echo(f"  {line}")
