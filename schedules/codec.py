"""Frozen dataclasses as plain JSON values and back, strict on reading.

Rules of the form: a dataclass is an object whose fields with their default value are left out;
a tuple is a list; a tuple of (name, value) pairs is an object; a union of dataclasses is an object
whose key `do` names the class in lower case. A `Codec` may replace the form of single types, which
is how works and matrices become references into tables.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from schedules.caret import allowed

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]
Form = tuple[Encode, Decode]

TAG = "do"


class FormError(ValueError):
    """A JSON value that does not have the expected form; the message begins with its path."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path or 'document'}: {reason}")

    def under(self, key: str | int) -> FormError:
        """The same error seen from one level further out."""
        head = f"[{key}]" if isinstance(key, int) else key
        joint = "" if not self.path or self.path.startswith("[") else "."
        return FormError(self.reason, head + joint + self.path)


class Codec:
    """Encoders and decoders by type. `overrides` replace the form of single types."""

    def __init__(self, overrides: Mapping[Any, Form] | None = None) -> None:
        self._forms: dict[Any, Form] = dict(overrides or {})

    def encode(self, tp: Any, value: Any) -> Any:
        """The JSON value of `value`, which is a `tp`."""
        return self._form(tp)[0](value)

    def decode(self, tp: Any, value: Any) -> Any:
        """The `tp` that `value` stands for; FormError with the path of what is wrong."""
        return self._form(tp)[1](value)

    def _form(self, tp: Any) -> Form:
        if tp not in self._forms:
            self._forms[tp] = self._build(tp)
        return self._forms[tp]

    def _build(self, tp: Any) -> Form:
        origin, args = typing.get_origin(tp), typing.get_args(tp)
        if tp in _SCALARS:
            return _SCALARS[tp]
        if origin is typing.Literal:
            return _same, _one_of(args)
        if origin in (types.UnionType, typing.Union):
            rest = tuple(arg for arg in args if arg is not type(None))
            if len(rest) == 1 and len(args) == 2:
                return _optional(self._form(rest[0]))
            return self._union(rest)
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            pair = typing.get_args(args[0])
            if typing.get_origin(args[0]) is tuple and len(pair) == 2 and pair[0] is str:
                return _pairs(self._form(pair[1]))
            return _tuple(self._form(args[0]))
        if origin is tuple:
            return _fixed(tuple(self._form(arg) for arg in args))
        if dataclasses.is_dataclass(tp):
            return self._record(tp)
        raise TypeError(f"no JSON form for {tp!r}")

    def _union(self, members: tuple[Any, ...]) -> Form:
        forms = {cls: self._form(cls) for cls in members}
        tags = {cls.__name__.lower(): cls for cls in members}

        def encode(value: Any) -> Any:
            cls = type(value)
            return {TAG: cls.__name__.lower(), **forms[cls][0](value)}

        def decode(value: Any) -> Any:
            body = dict(_object(value))
            tag = body.pop(TAG, None)
            if not isinstance(tag, str) or tag not in tags:
                raise FormError(f"{tag!r} is not known{allowed(str(tag), tags)}", TAG)
            return forms[tags[tag]][1](body)

        return encode, decode

    def _record(self, cls: Any) -> Form:
        hints = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)
        forms = {field.name: self._form(hints[field.name]) for field in fields}
        plan = [(field.name, forms[field.name][0], field.default) for field in fields]
        required = [field.name for field in fields if field.default is dataclasses.MISSING]

        def encode(value: Any) -> Any:
            out: dict[str, Any] = {}
            for name, encode_field, default in plan:
                item = getattr(value, name)
                if item != default:
                    out[name] = encode_field(item)
            return out

        def decode(value: Any) -> Any:
            found: dict[str, Any] = {}
            for name, item in _object(value).items():
                if name not in forms:
                    raise FormError(f"unknown key{allowed(name, forms)}", name)
                try:
                    found[name] = forms[name][1](item)
                except FormError as error:
                    raise error.under(name) from None
            for name in required:
                if name not in found:
                    raise FormError(f"missing key {name!r}")
            try:
                return cls(**found)
            except ValueError as error:
                raise FormError(str(error)) from None

        return encode, decode


def _same(value: Any) -> Any:
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormError(f"expected an object, found {_named(value)}")
    return value


def _named(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__} {text[:36]}..."


def _decode_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormError(f"expected an integer, found {_named(value)}")
    return value


def _decode_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormError(f"expected a number, found {_named(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FormError("expected a finite number")
    return number


def _decode_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FormError(f"expected true or false, found {_named(value)}")
    return value


def _decode_str(value: Any) -> str:
    if not isinstance(value, str):
        raise FormError(f"expected a text, found {_named(value)}")
    return value


_SCALARS: dict[Any, Form] = {
    int: (operator.index, _decode_int),
    float: (float, _decode_float),
    bool: (bool, _decode_bool),
    str: (str, _decode_str),
}


def _one_of(values: tuple[Any, ...]) -> Decode:
    def decode(value: Any) -> Any:
        if not isinstance(value, str) or value not in values:
            raise FormError(f"{_named(value)} is not known{allowed(str(value), values)}")
        return value

    return decode


def _optional(form: Form) -> Form:
    encode, decode = form
    return (
        lambda value: None if value is None else encode(value),
        lambda value: None if value is None else decode(value),
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FormError(f"expected a list, found {_named(value)}")
    return value


def _tuple(form: Form) -> Form:
    encode, decode = form

    def decode_all(value: Any) -> Any:
        found: list[Any] = []
        for item in _list(value):
            try:
                found.append(decode(item))
            except FormError as error:
                raise error.under(len(found)) from None
        return tuple(found)

    return lambda value: [encode(item) for item in value], decode_all


def _fixed(forms: tuple[Form, ...]) -> Form:
    def decode_all(value: Any) -> Any:
        items = _list(value)
        if len(items) != len(forms):
            raise FormError(f"expected {len(forms)} values, found {len(items)}")
        found: list[Any] = []
        for item, (_, decode) in zip(items, forms, strict=True):
            try:
                found.append(decode(item))
            except FormError as error:
                raise error.under(len(found)) from None
        return tuple(found)

    return (
        lambda value: [encode(item) for item, (encode, _) in zip(value, forms, strict=True)],
        decode_all,
    )


def _pairs(form: Form) -> Form:
    encode, decode = form

    def encode_all(value: Any) -> Any:
        found = {name: encode(item) for name, item in value}
        if len(found) != len(value):
            raise ValueError(f"a name stands twice among {[name for name, _ in value]}")
        return found

    def decode_all(value: Any) -> Any:
        found = []
        for name, item in _object(value).items():
            try:
                found.append((name, decode(item)))
            except FormError as error:
                raise error.under(name) from None
        return tuple(found)

    return encode_all, decode_all
