"""`moe-overlap simulate`: the predicted timeline of one schedule."""

from __future__ import annotations

from typing import Annotated

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

LayersOption = Annotated[
    int, typer.Option("--layers", min=1, max=64, help="MoE layers to simulate.")
]
ProgramOption = Annotated[
    bool, typer.Option("--program", help="Show the program as a grid instead of simulating it.")
]


def simulate(
    scenario: ScenarioArgument,
    schedule: ScheduleOption,
    output: OutputOption = None,
    layers: LayersOption = 2,
    settings: SetOption = None,
    program: ProgramOption = False,
    as_json: JsonOption = False,
    allow_refused: AllowRefused = False,
) -> None:
    """Predict the timeline of one schedule; write it as JSON or draw it in the terminal."""
    from moe_overlap.output import print_json, progress, stdout, writable
    from moe_overlap.prediction import build, simulate_program
    from scenarios import load
    from scenarios.resolve import resolve
    from schedules.files import save_timeline
    from schedules.json_form import timeline_to_json

    resolved = resolve(load(scenario, check_settings(settings)))
    built = build(resolved, schedule, layers=layers, allow_refused=allow_refused)
    if program:
        from schedules.grid_view import grid_text

        typer.echo(grid_text(built))
        return
    with progress() as report:
        report(f"simulating {schedule}")
        timeline = simulate_program(resolved, built)
    if output is not None:
        save_timeline(timeline, writable(output))
    if as_json:
        print_json(timeline_to_json(timeline))
    elif output is not None:
        stdout().print(
            f"{schedule}: {timeline.makespan_ns / 1000:.1f} µs, {output}", soft_wrap=True
        )
    else:
        from viz.terminal import timeline_text

        stdout().print(timeline_text(timeline))
