"""Validation errors of the schema, said in the words of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from scenarios.document import Document
from scenarios.errors import ABSENT, KeyPath, ScenarioError
from scenarios.schema import Scenario

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_NOUNS: dict[Any, str] = {
    int: "a whole number without a unit",
    float: "a finite number without a unit",
    str: "text",
    bool: "true or false",
    tuple: "a list",
    dict: "a mapping",
}
_INSIDE = {
    "string_type": "text (in quotes, when it looks like a number)",
    "int_type": "a whole number without a unit",
    "greater_than_equal": "a larger number",
    "less_than_equal": "a smaller number",
}


def first_fault(error: ValidationError, document: Document) -> ScenarioError:
    """The most telling error: an unknown key before what its absence left missing, then by place."""
    details = error.errors(include_url=False)
    order = {"extra_forbidden": 0, "missing": 2}
    ranked = sorted(details, key=lambda detail: order.get(detail["type"], 1))
    faults = [_fault(detail, document) for detail in ranked]
    first = f"{faults[0].key}."  # a list or mapping around it is refused because of it
    others = dict.fromkeys(f.key for f in faults[1:] if not first.startswith(f"{f.key}."))
    if not others:
        return faults[0]
    shown_keys = ", ".join(list(others)[:5])
    return faults[0].with_note(f"also refused: {shown_keys}")


def keys_at(path: KeyPath) -> tuple[str, ...]:
    """Keys that the schema allows in the mapping at `path`, none when it is not one."""
    model: type[BaseModel] | None = Scenario
    for part in path:
        if isinstance(part, str):
            info = model.model_fields.get(part) if model else None
            model = next(_models(info.annotation), None) if info else None
    return tuple(model.model_fields) if model else ()


def field_at(path: KeyPath) -> FieldInfo | None:
    """The schema field at `path` (list positions are looked through), None when there is none."""
    info: FieldInfo | None = None
    model: type[BaseModel] | None = Scenario
    for part in path:
        if isinstance(part, str):
            info = model.model_fields.get(part) if model else None
            model = next(_models(info.annotation), None) if info else None
    return info


def _fault(detail: Mapping[str, Any], document: Document) -> ScenarioError:
    kind, loc = detail["type"], detail["loc"]
    path = _path_in(document.data, loc)
    if kind == "extra_forbidden":
        known = keys_at(path[:-1])
        return document.error(
            path, "unknown key", at_key=True, allowed=", ".join(known), near=known, word=path[-1]
        )
    if kind == "missing":
        path = (*path, loc[-1])
        return document.error(path, f"missing; it needs {_need(field_at(path))}")
    value = detail["input"]
    info = field_at(path)
    names = tuple(_literals(info.annotation)) if info else ()
    if kind == "literal_error":
        return document.error(path, "unknown", value=value, allowed=", ".join(names), near=names)
    if kind == "value_error":
        return document.error(path, str(detail["ctx"]["error"]), value=value or ABSENT)
    if kind == "string_pattern_mismatch":
        return document.error(path, f"must match {detail['ctx']['pattern']}", value=value)
    if kind in ("too_short", "string_too_short"):
        return document.error(path, f"is empty; it needs {_need(info)}", value=value)
    inside = isinstance(path[-1], int) or info is None
    need = _INSIDE.get(kind, _need(info)) if inside else _need(info)
    return document.error(path, f"needs {need}", value=value)


def _path_in(data: Any, loc: tuple[Any, ...]) -> KeyPath:
    """`loc` without the names of union branches, which are no keys of the file."""
    path: list[Any] = []
    for part in loc:
        in_list = isinstance(data, tuple) and isinstance(part, int) and part < len(data)
        if in_list or (isinstance(data, dict) and part in data):
            data = data[part]
            path.append(part)
    return tuple(path)


def _need(info: FieldInfo | None) -> str:
    """What a field accepts: its kinds of value, its bounds, its unit."""
    if info is None:
        return "another value"
    nouns = list(dict.fromkeys(_nouns(info.annotation)))
    bounds = _bounds(info)
    text = " or ".join(nouns) + (f" {bounds}" if bounds else "")
    return f"{text} ({info.description})" if info.description else text


def _bounds(info: FieldInfo) -> str:
    found: dict[str, Any] = {}
    for constraint in _constraints(info.metadata, info.annotation):
        for name in _BOUNDS:
            if hasattr(constraint, name):
                found.setdefault(name, getattr(constraint, name))
        if hasattr(constraint, "multiple_of"):
            found["multiple_of"] = constraint.multiple_of
    words = [f"{_BOUNDS[name]} {found[name]}" for name in _BOUNDS if name in found]
    if "multiple_of" in found:
        words.append(f"a multiple of {found['multiple_of']}")
    return ", ".join(words)


def _constraints(metadata: list[Any], annotation: Any) -> Iterator[Any]:
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else (item,)
    for inner in get_args(annotation):
        yield from _constraints(list(getattr(inner, "__metadata__", ())), inner)


def _nouns(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield "one of " + ", ".join(_literals(annotation))
        return
    plain = get_origin(annotation) or annotation
    if plain in _NOUNS:
        yield _NOUNS[plain]
        return
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "a mapping of " + ", ".join(annotation.model_fields)
    for inner in get_args(annotation):
        yield from _nouns(inner)


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (str(arg) for arg in get_args(annotation))
        return
    for inner in get_args(annotation):
        yield from _literals(inner)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
