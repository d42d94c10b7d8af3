"""`moe-overlap view`: timelines from files, as a page, a Perfetto trace, or in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moe_overlap.commands.arguments import OutputOption
from moe_overlap.formats import PICTURES, write_pictures

if TYPE_CHECKING:
    from schedules.timeline import Timeline

FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Timeline files.", show_default=False)
]
TermOption = Annotated[bool, typer.Option("--term", help="Draw one layer in the terminal.")]


def view(files: FilesArgument, output: OutputOption = None, term: TermOption = False) -> None:
    """Show timelines: a page, a trace (-o NAME.pftrace), a picture (-o NAME.png), or here (--term)."""
    from moe_overlap.output import check_writable, stdout, writable

    if term and output is not None:
        raise typer.BadParameter("draws in the terminal, not into a file", param_hint="--term")
    timelines = _named(files)
    if term:
        from viz.terminal_timeline import timeline_text

        for name, timeline in timelines.items():
            stdout().print(name, timeline_text(timeline), sep="\n")
        return
    target = check_writable(output or Path("reports") / f"{files[0].stem}.html", PICTURES)
    write_pictures(writable(target), timelines)
    stdout().print(str(target), soft_wrap=True)


def _named(files: list[Path]) -> dict[str, Timeline]:
    """Timelines by file stem, by whole path where two stems are the same."""
    from moe_overlap.timelines import read_timeline

    stems = [path.stem for path in files]
    names = [
        stem if stems.count(stem) == 1 else str(path)
        for stem, path in zip(stems, files, strict=True)
    ]
    return {name: read_timeline(path) for name, path in zip(names, files, strict=True)}
