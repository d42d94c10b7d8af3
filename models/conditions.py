"""Conditions of rules that are data: a mapping from facts to what they must be.

    {a2a: deepep}                     equal
    {a2a: [deepep, mori]}             one of
    {ep: {gt: 1}}                     gt, ge, lt, le, ne, not_in, not_multiple_of
    {any: [{sbo: true}, {tbo: true}]} one of several conditions; `not: {...}` none

All entries of a mapping must hold; the empty mapping always does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Facts = Mapping[str, Any]
Condition = Mapping[str, Any]
Test = Callable[[Facts], bool]

_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": lambda fact, bound: fact > bound,
    "ge": lambda fact, bound: fact >= bound,
    "lt": lambda fact, bound: fact < bound,
    "le": lambda fact, bound: fact <= bound,
    "ne": lambda fact, other: fact != other,
    "not_in": lambda fact, others: fact not in others,
    "not_multiple_of": lambda fact, unit: fact % unit != 0,
}


def holds(condition: Condition, facts: Facts) -> bool:
    """Whether every entry holds. KeyError for a fact that is not known."""
    return compiled(condition)(facts)


def compiled(condition: Condition) -> Test:
    """The condition as a function of facts, for rules that are asked often."""
    return _every([_entry(key, wanted) for key, wanted in condition.items()])


def _every(tests: Sequence[Test]) -> Test:
    if not tests:
        return lambda facts: True
    first, *rest = tests
    if not rest:
        return first
    others = _every(rest)
    return lambda facts: first(facts) and others(facts)


def _entry(key: str, wanted: Any) -> Test:
    if key == "any":
        some = [compiled(one) for one in wanted]
        return lambda facts: any(test(facts) for test in some)
    if key == "not":
        inner = compiled(wanted)
        return lambda facts: not inner(facts)
    if isinstance(wanted, Mapping):
        return _every([_bound(key, _TESTS[name], value) for name, value in wanted.items()])
    if isinstance(wanted, list):
        return lambda facts: facts[key] in wanted
    return lambda facts: bool(facts[key] == wanted)


def _bound(key: str, test: Callable[[Any, Any], bool], value: Any) -> Test:
    return lambda facts: test(facts[key], value)


def faults(condition: Condition, known: frozenset[str]) -> Iterator[str]:
    """What a condition says that nothing understands: unknown facts and tests."""
    for key, wanted in condition.items():
        if key == "any":
            for one in wanted:
                yield from faults(one, known)
        elif key == "not":
            yield from faults(wanted, known)
        elif key not in known:
            yield f"unknown fact {key!r}"
        elif isinstance(wanted, Mapping):
            yield from (f"unknown test {test!r} of {key}" for test in wanted if test not in _TESTS)


def words(condition: Condition) -> str:
    """The condition as a line of text, for documents."""
    return " and ".join(_words(key, wanted) for key, wanted in condition.items()) or "always"


_SIGNS = {
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
    "ne": "is not",
    "not_in": "not in",
    "not_multiple_of": "not a multiple of",
}


def _words(key: str, wanted: Any) -> str:
    if key == "any":
        return "(" + " or ".join(words(one) for one in wanted) + ")"
    if key == "not":
        return f"not ({words(wanted)})"
    if isinstance(wanted, Mapping):
        return " and ".join(f"`{key}` {_SIGNS[test]} {_text(v)}" for test, v in wanted.items())
    if isinstance(wanted, list):
        return f"`{key}` in {_text(wanted)}"
    if isinstance(wanted, bool):
        return f"`{key}`" if wanted else f"not `{key}`"
    return f"`{key}` = {_text(wanted)}"


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
