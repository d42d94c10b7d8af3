"""`moe-overlap view`: timelines from files, in HTML, for Perfetto, or in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moe_overlap.commands.arguments import OutputOption

FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Timeline files.", show_default=False)
]
TermOption = Annotated[bool, typer.Option("--term", help="Draw one layer in the terminal.")]


def view(files: FilesArgument, output: OutputOption = None, term: TermOption = False) -> None:
    """Show timelines: an HTML page, a Perfetto trace (-o NAME.pftrace), or the terminal."""
    from moe_overlap.output import stdout

    timelines = _load(files)
    if term:
        from viz.terminal import timeline_text

        for name, timeline in timelines.items():
            stdout().print(name, timeline_text(timeline), sep="\n")
        return
    target = output or Path("reports") / f"{files[0].stem}.html"
    _write(target, timelines)
    stdout().print(str(target), soft_wrap=True)
