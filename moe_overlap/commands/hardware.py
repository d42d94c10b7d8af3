"""`moe-overlap hardware`: profiles of one's own, from a library profile and own timings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from moe_overlap.commands.arguments import OutputOption


def hardware(
    action: Annotated[Literal["list", "new"], typer.Argument(help="List profiles, or write one.")],
    name: Annotated[str | None, typer.Argument(help="The new profile's name.")] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="Library profile (or path) to start from.")
    ] = None,
    timings: Annotated[
        Path | None,
        typer.Option("--timings", help="CSV of own kernel timings; its columns are the table's."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="The table that the timings belong to.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """List the library's hardware profiles, or write a skeleton of a new one."""
    from models.profile import library_machines

    if action == "list":
        if any(given is not None for given in (name, base, timings, table, output)):
            raise typer.BadParameter("list takes nothing else")
        typer.echo("\n".join(library_machines()))
        return
    if not name or base is None:
        raise typer.BadParameter("a new profile needs a NAME and --base")
    if (timings is None) != (table is None):
        raise typer.BadParameter("--timings and --table belong together")
    target = output or Path(f"{name}.yaml")
    if timings is None or table is None:
        _write_skeleton(target, name, base)
    else:
        _write_merged(target, name, base, table, timings)
    typer.echo(f"{target}: load it with `hardware: {target}`; `TODO` marks what to fill in")


def _write_skeleton(target: Path, name: str, base: str) -> None:
    from models.profile_skeleton import skeleton
    from moe_overlap.output import writable
    from schedules.files import write_beside

    write_beside(writable(_fresh(target)), skeleton(name, base))


def _write_merged(target: Path, name: str, base: str, table: str, timings: Path) -> None:
    from models.profile_skeleton import merged
    from moe_overlap.output import writable
    from schedules.files import write_beside

    found = merged(name, base, table, timings)
    table_file = _fresh(target.parent / found.table_name)
    target = writable(_fresh(target))
    write_beside(writable(table_file), found.table)
    write_beside(target, found.profile)


def _fresh(target: Path) -> Path:
    """The path, where nothing is yet: a profile may have been filled in by hand since."""
    from moe_overlap.errors import Refused

    if target.exists():
        raise Refused(
            f"{target} is there already, perhaps filled in: remove it, or give another -o"
        )
    return target
