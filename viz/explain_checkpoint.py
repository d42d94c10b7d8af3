"""Figure 6 of `explain` as HTML: verdict by layer, and where the shared tensors of a layer go."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from viz.explain_figures import card, table

Part = Mapping[str, Any]
_FINDINGS_SHOWN = 6


def checkpoint_html(fit: Part) -> str:
    """Both decisions, runs of layers with their verdicts, the moves of the first layer."""
    note = f"<p>{escape(fit['note'])}.</p>" if fit["note"] else ""
    cards = "".join(
        card(title, one["outcome"], f"{one['rule']}: {one['reason']}")
        for title, one in (("Without a flag", fit["default"]), ("Enforced", fit["enforced"]))
    )
    layers = "".join(_layers_html(entry) for entry in fit["layers"])
    moves = "".join(
        f'<tr><th scope="row">{escape(move["tensor"])}</th><td class="text">{escape(move["renamed"])}</td>'
        f'<td class="text">{escape(move["parameter"])}, {escape(move["part"])}</td>'
        f'<td class="text">{escape(move["stored"])}</td></tr>'
        for move in fit["moves"]
    )
    verdicts = table("fit", ("layers", "verdict", "rule", "what was found"), layers, "words")
    head = ("tensor of the first MoE layer", "becomes", "fills", "stored as")
    return f'{note}<div class="cards">{cards}</div>{verdicts}{table("moves", head, moves, "words")}'


def _layers_html(entry: Part) -> str:
    first, last = entry["layers"]
    where = f"{first}" if first == last else f"{first} to {last}"
    found = entry["findings"][:_FINDINGS_SHOWN]
    lines = [f"{escape(f['tensor'])}: {escape(f['detail'])}" for f in found]
    more = len(entry["findings"]) - len(found)
    lines += [f"and {more} more"] * (more > 0)
    return (
        f'<tr><th scope="row">{where}</th><td class="text">{escape(entry["verdict"])}</td>'
        f'<td class="text">{escape(entry["rule"])}</td><td class="text">{"<br>".join(lines)}</td></tr>'
    )
