"""`moe-overlap scenarios` and `moe-overlap schema`."""

from __future__ import annotations

import json

import typer

from moe_overlap.commands.arguments import JsonOption


def scenarios(as_json: JsonOption = False) -> None:
    """List the scenarios that come with the package."""
    from scenarios import library, load

    names = {name: load(name).name for name in library()}
    if as_json:
        typer.echo(json.dumps(names, indent=1))
        return
    width = max(map(len, names))
    for name, title in names.items():
        typer.echo(f"{name:{width}}  {title}")


def schema() -> None:
    """Print the JSON Schema of a scenario file, for editors."""
    from scenarios import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))
