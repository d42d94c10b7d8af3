"""The part of a report below its verdict: largest batches, limits, flips, and silent failures."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

Document = Mapping[str, Any]


def answers_html(document: Document) -> str:
    """One card with a line for each answer and each note of a `compare` document; nothing without any."""
    answers = (document.get("answers") or {}).get("lines") or ()
    items = [f"<p>{escape(line)}</p>" for line in answers]
    items += [
        f'<p class="note" data-rule="{escape(note["rule"])}"><b>{escape(note["schedule"])}</b> '
        f"({escape(note['rule'])}): {escape(note['text'])}</p>"
        for note in document.get("notes") or ()
    ]
    return f'<div class="answers card">{"".join(items)}</div>' if items else ""
