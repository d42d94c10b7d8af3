"""`--set KEY=VALUE`: a scenario's values replaced from the command line, before they are checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from scenarios.document import Document, parse_document
from scenarios.errors import Key, KeyPath, ScenarioError, dotted, shown
from scenarios.faults import field_at, keys_at
from scenarios.yaml_tree import MAX_DEPTH

_SHOWN = 200
_PERCENT = re.compile(r"[+-][0-9]{1,6}(\.[0-9]{1,9})?%")


def override(document: Document, settings: Sequence[str]) -> Document:
    """The document with each `KEY=VALUE` applied in order.

    A key is dotted; a number counts into a list. A value is YAML (`[1, 2]`, `{a: 1}`), or a relative
    change of the number already there (`+20%`, whole numbers rounded to the nearest; refused where that
    leaves it as it is).
    """
    data, origins = document.data, dict(document.origins)
    for setting in settings:
        name, separator, text = setting.partition("=")
        origin = f"--set {setting if len(setting) <= _SHOWN else setting[:_SHOWN] + '...'}"
        if not separator or not name.strip():
            raise ScenarioError("needs the form KEY=VALUE", where=origin)
        path = tuple(_key(part) for part in name.strip().split("."))
        if len(path) > MAX_DEPTH:
            raise ScenarioError(f"has more than {MAX_DEPTH} levels", where=origin)
        old = _at(data, path)
        value = _changed(old, text.strip(), path, origin)
        data = _replaced(data, path, value, origin)
        origins[path] = origin
    return Document(document.file, document.text, data, document.keys, document.values, origins)


def _changed(old: Any, text: str, path: KeyPath, origin: str) -> Any:
    if not _PERCENT.fullmatch(text):
        data = parse_document(f"value: {text}", origin).data
        if len(data) > 1:
            raise ScenarioError("holds more than one value", where=origin)
        return data["value"]
    if old is None:
        info = field_at(path)
        old = info.default if info else None
    many = isinstance(old, tuple) and len(old) > 0 and all(_is_number(item) for item in old)
    if not many and not _is_number(old):
        raise ScenarioError(
            "a relative change needs a number to change", where=origin, value=old, key=dotted(path)
        )
    share = float(text[:-1]) / 100
    try:
        new = tuple(_scaled(item, 1 + share) for item in old) if many else _scaled(old, 1 + share)
    except OverflowError as error:
        problem = f"{text} gives no number"
        raise ScenarioError(problem, where=origin, value=old, key=dotted(path)) from error
    if share and new == old:
        problem = f"{text} of it rounds to the same"
        raise ScenarioError(problem, where=origin, value=old, key=dotted(path))
    return new


def _key(part: str) -> Key:
    """A position in a list for a number that can be one, else a key."""
    return int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _scaled(value: Any, factor: float) -> Any:
    return round(value * factor) if isinstance(value, int) else value * factor


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, tuple) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _replaced(data: Any, path: KeyPath, value: Any, origin: str, done: tuple[Key, ...] = ()) -> Any:
    """A copy of `data` with `value` at `path`; a model's name becomes `{base: name}` on the way."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(data, tuple):
        if not isinstance(head, int) or head >= len(data):
            raise ScenarioError(
                f"has no element {shown(head)}", where=origin, allowed=f"0 to {len(data) - 1}"
            )
        inner = _replaced(data[head], rest, value, origin, (*done, head))
        return (*data[:head], inner, *data[head + 1 :])
    if done == ("model",) and isinstance(data, str):
        data = {"base": data}
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ScenarioError(
            "is not a mapping, it has no keys",
            where=origin,
            key=".".join(map(str, done)),
            value=data,
        )
    known = keys_at(done)
    if known and head not in known:
        raise ScenarioError(
            "unknown key",
            where=origin,
            key=".".join(map(str, (*done, head))),
            allowed=", ".join(known),
            near=known,
            word=str(head),
        )
    return {**data, str(head): _replaced(data.get(head), rest, value, origin, (*done, head))}
