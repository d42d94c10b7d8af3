"""What a file of timelines holds, by its ending."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from moe_overlap.errors import MachineLacks

if TYPE_CHECKING:
    from schedules.timeline import Timeline

JSON = (".json",)
PAGES = (".html", ".htm")
PERFETTO = (".pftrace", ".perfetto-trace")
PICTURES = (*PAGES, ".png", *PERFETTO)


def write_pictures(target: Path, timelines: Mapping[str, Timeline]) -> None:
    """Writes timelines by name as a page, a picture or a trace; MachineLacks without what that needs."""
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
