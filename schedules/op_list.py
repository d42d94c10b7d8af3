"""The operation list of a two-batch schedule: `P Q | C M G T | Da S | Db X Ca | Cb | O Z`.

Letters name the operation groups of one layer, `|` is a yield point. The list of one layer is a
tuple of stages; layers are joined before they are cut, so the last stage of a layer and the first
of the next run as one. A list may therefore begin or end with `|`: that stage is then empty and
the yield falls exactly between two layers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from schedules.caret import GrammarError, allowed

OpList = tuple[tuple[str, ...], ...]

YIELD = "|"
_TOKEN = re.compile(r"\||[^\s|]+")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


def parse_op_list(text: str, known: Collection[str] | None = None) -> OpList:
    """The stages of one layer. An empty first or last stage stands for a yield between layers.

    `known` are the allowed letters (None: any name). GrammarError on an unknown or repeated
    letter, on a stage without operations inside the list, and on a list without operations.
    """
    stages: list[list[str]] = [[]]
    seen: set[str] = set()
    line = " ".join(text.split())
    for match in _TOKEN.finditer(line):
        token, column = match.group(), match.start() + 1
        if token == YIELD:
            if not stages[-1] and len(stages) > 1:
                raise GrammarError("a stage without operations", line, 1, column)
            stages.append([])
            continue
        _check_letter(token, line, column, seen, known)
        seen.add(token)
        stages[-1].append(token)
    if not seen:
        raise GrammarError("an operation list without operations", line, 1, 1)
    return tuple(tuple(stage) for stage in stages)


def _check_letter(
    token: str, line: str, column: int, seen: set[str], known: Collection[str] | None
) -> None:
    if not _NAME.match(token):
        raise GrammarError(f"{token!r} is not an operation name", line, 1, column)
    if known is not None and token not in known:
        raise GrammarError(f"unknown operation {token!r}{allowed(token, known)}", line, 1, column)
    if token in seen:
        raise GrammarError(f"operation {token!r} stands twice in one layer", line, 1, column)


def format_op_list(stages: Sequence[Sequence[str]]) -> str:
    """The text of a list of stages; `parse_op_list` gives the same stages back."""
    return f" {YIELD} ".join(" ".join(stage) for stage in stages).strip()


def join_layers(stages: OpList, layers: int) -> tuple[tuple[tuple[int, str], ...], ...]:
    """The stages of `layers` equal layers as (layer index, letter): joined first, then cut at the
    yields, as the two-batch executor does. Empty stages at both ends vanish.

    A list with `y` inner yields gives `y * layers + 1` stages.
    """
    joined: list[list[tuple[int, str]]] = [[]]
    for layer in range(layers):
        for index, stage in enumerate(stages):
            if index:
                joined.append([])
            joined[-1].extend((layer, letter) for letter in stage)
    return tuple(tuple(stage) for stage in joined if stage)
