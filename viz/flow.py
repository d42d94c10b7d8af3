"""Kernels of one rank as boxes to scale, in rows: a drawing of work that has no schedule yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from viz.figures import micro
from viz.palette import family, family_name

WIDTH, ROW, MARGIN = 1200, 34, 150
_CHARACTER = 6.6
_WHITE_TEXT_BELOW = 0.2  # there white and the page's ink read equally well

Kernels = Sequence[Mapping[str, Any]]


def flow_svg(rows: Sequence[tuple[str, Kernels]], longest_us: float) -> str:
    """One SVG: each row's kernels (`name`, `kind`, `us`) one after the other, `longest_us` across.

    Colours are the page's custom properties, so that the drawing follows its theme.
    """
    scale = (WIDTH - MARGIN - 10) / longest_us if longest_us > 0 else 0.0
    parts = []
    for index, (title, kernels) in enumerate(rows):
        top = 4 + index * ROW
        parts.append(f'<text class="name" x="0" y="{top + 19}">{escape(title)}</text>')
        at = float(MARGIN)
        for kernel in kernels:
            width = kernel["us"] * scale
            parts.append(_box(kernel, at, top, width))
            at += width
    height = 8 + len(rows) * ROW
    label = escape(", ".join(title for title, _ in rows))
    return f'<svg class="flow" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _box(kernel: Mapping[str, Any], left: float, top: int, width: float) -> str:
    name = family_name(kernel["kind"], kernel["name"])
    tip = escape(f"{kernel['name']}: {micro(kernel['us'])}, {kernel['kind']}")
    text = ""
    if len(kernel["name"]) * _CHARACTER + 6 < width:
        dark = _luminance(family(name).light) < _WHITE_TEXT_BELOW
        text = (
            f'<text class="inside{" onDark" * dark}" x="{left + width / 2:.1f}" y="{top + 18}" '
            f'text-anchor="middle">{escape(kernel["name"])}</text>'
        )
    return (
        f'<g><title>{tip}</title><rect x="{left:.1f}" y="{top}" width="{max(0.5, width - 1):.1f}" '
        f'height="{ROW - 8}" rx="2" style="fill:var(--f-{name})"/>{text}</g>'
    )


def _luminance(colour: str) -> float:
    """Relative luminance, 0 to 1, as WCAG 2 defines it."""
    shares = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    red, green, blue = (
        v / 12.92 if v <= 0.03928 else float(((v + 0.055) / 1.055) ** 2.4) for v in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
