"""One layer of a timeline drawn with coloured cells, for people on a GPU node over SSH.

Every cell also carries its family's letter, so that the drawing still reads where colours do not
arrive: in a pipe, on a monochrome terminal, in a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from schedules.merit import layer_ns
from schedules.timeline import Span, Timeline
from viz.figures import micro
from viz.palette import FAMILIES, Family, family, family_name
from viz.window import Window, steady_window

LETTERS = {
    "attention": "A",
    "gemm": "G",
    "grouped": "X",
    "shared": "S",
    "elementwise": "e",
    "dispatch": "D",
    "combine": "C",
    "notify": "n",
    "flight": "~",
    "collective": "L",
    "other": "o",
}
_LEAST_WIDTH = 20
_TICK_CELLS = 12


@dataclass(frozen=True)
class LayerDrawing:
    """A rich renderable as wide as the console: a scale, one row per rank and lane, a legend."""

    timeline: Timeline
    window: Window
    ranks: tuple[int, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = _rows(self.timeline, self.window, self.ranks)
        names = [f"rank {rank} {lane}" for rank, lane, _ in rows]
        margin = max((len(name) for name in names), default=0) + 1
        width = max(_LEAST_WIDTH, options.max_width - margin)
        yield _title(self.timeline, self.window)
        yield Text(" " * margin + _scale(self.window, width), style="dim")
        for name, (_, _, spans) in zip(names, rows, strict=True):
            yield Text(name.ljust(margin)) + _bar(spans, self.window, width)
        yield _legend(span for _, _, spans in rows for span in spans)


def timeline_text(
    timeline: Timeline, layer: int | None = None, ranks: Sequence[int] = ()
) -> LayerDrawing:
    """A drawing of one layer (default: a middle one) on `ranks` (default: the first two).

    KeyError for a layer or a rank that the timeline does not have.
    """
    chosen = tuple(ranks) or timeline.ranks[:2]
    for rank in chosen:
        if rank not in timeline.ranks:
            raise KeyError(f"no rank {rank}; the timeline has {timeline.ranks}")
    return LayerDrawing(timeline, steady_window(timeline, layer), chosen)


def _title(timeline: Timeline, window: Window) -> Text:
    what = "whole timeline" if window.layer is None else f"layer {window.layer}"
    one = layer_ns(timeline)
    period = f", one layer takes {micro(one / 1000)}" if one else ""
    return Text(f"{timeline.program}, {what}{period} ({timeline.origin})", style="bold")


def _rows(
    timeline: Timeline, window: Window, ranks: Iterable[int]
) -> list[tuple[int, str, list[Span]]]:
    order = {"main": 0, "flight": 2}
    rows: dict[tuple[int, str], list[Span]] = {}
    for span in timeline.spans:
        if span.end_ns > window.start_ns and span.start_ns < window.end_ns:
            rows.setdefault((span.rank, span.lane), []).append(span)
    keys = sorted(rows, key=lambda key: (key[0], order.get(key[1], 1), key[1]))
    return [(rank, lane, rows[rank, lane]) for rank, lane in keys if rank in set(ranks)]


def _scale(window: Window, width: int) -> str:
    """Ticks of a round number of us, each labelled at its cell."""
    length_us = (window.end_ns - window.start_ns) / 1000
    step = _round_step(length_us * _TICK_CELLS / width)
    line = [" "] * width
    for tick in range(int(length_us / step) + 1):
        cell = int(tick * step * width / length_us) if length_us else 0
        label = f"|{tick * step:g} µs" if tick == 0 else f"|{tick * step:g}"
        if cell + len(label) <= width:
            line[cell : cell + len(label)] = label
    return "".join(line)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 1.0
    while power * 10 <= least:
        power *= 10
    return next(power * k for k in (1, 2, 5, 10) if power * k >= min(least, power * 10))


def _bar(spans: list[Span], window: Window, width: int) -> Text:
    cells: list[Span | None] = [None] * width
    covered = [0.0] * width
    per_cell = (window.end_ns - window.start_ns) / width or 1.0
    for span in spans:
        first = (max(span.start_ns, window.start_ns) - window.start_ns) / per_cell
        last = (min(span.end_ns, window.end_ns) - window.start_ns) / per_cell
        for cell in range(int(first), min(width, int(last) + 1)):
            share = min(last, cell + 1) - max(first, cell)
            if share > covered[cell]:
                cells[cell], covered[cell] = span, share
    return _paint(cells)


def _paint(cells: list[Span | None]) -> Text:
    text = Text()
    start = 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end] is not cells[start]:
            text.append_text(_cell_run(cells[start], end - start))
            start = end
    return text


def _cell_run(span: Span | None, length: int) -> Text:
    if span is None:
        return Text("·" * length, style="bright_black")
    name = family_name(span.kind, span.op, span.lane)
    colour = family(name)
    letter = LETTERS[name].lower() if span.child == "b" else LETTERS[name]
    label = short_name(span)
    fits = len(label) + 4 <= length
    fill = f" {label} ".center(length, letter) if fits else letter * length
    return Text(fill, style=_style(colour, dim=span.child == "b"))


def _style(colour: Family, *, dim: bool) -> Style:
    return Style(color="#14181d", bgcolor=colour.light, underline=dim, bold=not dim)


def short_name(span: Span) -> str:
    """The op's name without its layer and child: `L3.b.dispatch.send` is `dispatch.send`."""
    head = f"L{span.layer}."
    tail = span.op.removeprefix(head) if span.layer >= 0 else span.op
    return tail.removeprefix(f"{span.child}.") if span.child else tail


def _legend(spans: Iterable[Span]) -> Text:
    shown = list(spans)
    used = {family_name(span.kind, span.op, span.lane) for span in shown}
    legend = Text()
    for one in FAMILIES:
        if one.name in used:
            legend.append(f" {LETTERS[one.name]} ", style=_style(one, dim=False))
            legend.append(f" {one.title}  ")
    if any(span.child == "b" for span in shown):
        legend.append("small letters, underlined: child b")
    return legend
