"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioArgument = Annotated[
    str,
    typer.Argument(metavar="SCENARIO", help="A library name or a YAML file.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Replace a value: a.b=3, a.b=+20%. Repeatable."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")
]
AllowRefused = Annotated[
    bool, typer.Option("--allow-refused", help="Predict schedules that the rules refuse, too.")
]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="File to write.", show_default=False)
]
ScheduleOption = Annotated[
    str, typer.Option("--schedule", "-s", help="A schedule's name.", show_default=False)
]


def check_settings(settings: list[str] | None) -> list[str]:
    """The settings; a usage error for one without a key or an equals sign."""
    for setting in settings or []:
        key, equals, _ = setting.partition("=")
        if not key.strip() or not equals:
            raise typer.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
    return settings or []
