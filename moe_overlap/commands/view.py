"""`moe-overlap view`: timelines from files, as a page, a Perfetto trace, or in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moe_overlap.commands.arguments import OutputOption
from moe_overlap.errors import MachineLacks, Refused

if TYPE_CHECKING:
    from schedules.timeline import Timeline

FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Timeline files.", show_default=False)
]
TermOption = Annotated[bool, typer.Option("--term", help="Draw one layer in the terminal.")]
PERFETTO = (".pftrace", ".perfetto-trace")
_PAGES = (".html", ".htm")


def view(files: FilesArgument, output: OutputOption = None, term: TermOption = False) -> None:
    """Show timelines: a page, a trace (-o NAME.pftrace), a picture (-o NAME.png), or here (--term)."""
    from moe_overlap.output import stdout, writable

    if term and output is not None:
        raise typer.BadParameter("draws in the terminal, not into a file", param_hint="--term")
    timelines = _named(files)
    if term:
        from viz.terminal_timeline import timeline_text

        for name, timeline in timelines.items():
            stdout().print(name, timeline_text(timeline), sep="\n")
        return
    target = writable(_of_a_format(output or Path("reports") / f"{files[0].stem}.html"))
    _write(target, timelines)
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


def _of_a_format(target: Path) -> Path:
    allowed = (*_PAGES, ".png", *PERFETTO)
    if target.suffix not in allowed and not target.is_dir():
        raise Refused(f"{target}: its ending names no format; allowed: {', '.join(allowed)}")
    return target


def _write(target: Path, timelines: dict[str, Timeline]) -> None:
    from viz.extra import MissingExtra
    from viz.perfetto import write_perfetto
    from viz.png import write_png
    from viz.view import view_page, write_view

    try:
        if target.suffix in PERFETTO:
            write_perfetto(target, timelines)
        elif target.suffix == ".png":
            write_png(target, view_page(timelines))
        else:
            write_view(target, timelines)
    except MissingExtra as error:
        raise MachineLacks(str(error)) from error
