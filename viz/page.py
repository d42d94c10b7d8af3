"""One template for every page: self-contained, offline, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schedules.files import write_beside
from viz.palette import FAMILIES

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("data.js", "figure.js", "view.js", "inspect.js", "explain.js", "controls.js")


@dataclass(frozen=True)
class Page:
    """What differs between pages. `body` and `footer` are HTML; `heading` and `facts` are plain text;
    `data` maps the id of each embedded JSON document to its content."""

    heading: str
    facts: str
    body: str
    footer: str
    data: Mapping[str, Any] = field(default_factory=dict)


def plotly_script() -> str:
    """Source of the plotly.js bundle of the installed `plotly` package, read without importing it
    (the import alone would take longer than the rest of a page)."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the package plotly is not installed; it carries the page's plotly.js"
        )
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text("utf-8")


def json_script(name: str, content: Any) -> str:
    """A script element that holds `content` as JSON; no text inside can close it."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{escape(name)}">{safe}</script>'


def render(page: Page) -> str:
    """The page as one HTML text."""
    data = {"families": [asdict(one) for one in FAMILIES], **page.data}
    parts = {
        "title": escape(f"{page.heading} · moe-overlap"),
        "style": _colours() + _asset("page.css"),
        "heading": escape(page.heading),
        "facts": escape(page.facts),
        "body": page.body,
        "footer": page.footer,
        "data": "\n".join(json_script(name, content) for name, content in data.items()),
        "plotly": plotly_script(),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
    }
    pieces = _asset("page.html").split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def write_page(path: Path, page: Page) -> None:
    """Write the page beside `path`, then rename, so that a reader never sees half a file. OSError when
    the folder does not exist or cannot be written."""
    write_beside(path, render(page))


def timelines_html(titles: Sequence[tuple[str, str]]) -> str:
    """The control bar and one empty section per timeline, given each one's name and note (plain text);
    the data of section i is embedded as `timeline-i`."""
    sections = "\n".join(
        f'<section class="timeline card" data-timeline="{escape(name)}" data-index="{index}">'
        f'<div class="head"><h2>{escape(name)}</h2><span class="facts">{escape(note)}</span></div>'
        f'<div class="plot" tabindex="0" role="group" aria-label="Timeline of {escape(name)}; '
        f'arrow keys move between operations"></div></section>'
        for index, (name, note) in enumerate(titles)
    )
    return _asset("controls.html") + sections


def _colours() -> str:
    """The families' colours as custom properties (`--f-gemm`), for drawings that are no Plotly figures."""
    light, dark = (
        "".join(f"--f-{one.name}:{getattr(one, theme)};" for one in FAMILIES)
        for theme in ("light", "dark")
    )
    return f':root{{{light}}}[data-theme="dark"]{{{dark}}}\n'


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")
