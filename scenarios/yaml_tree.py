"""From YAML text to plain data and marks, with limits that a hostile file cannot pass."""

from __future__ import annotations

import datetime
import warnings
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from scenarios.errors import KeyPath, Mark, ScenarioError, dotted, marked_line

MAX_NODES = 100_000
MAX_DEPTH = 32

Marks = dict[KeyPath, Mark]


def build_tree(text: str, file: str) -> tuple[Any, Marks, Marks]:
    """Data, marks of keys and marks of values of the one document in `text`; None for no document."""
    try:
        _check_limits(text, file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML lets an anchor move
            root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ScenarioError(
            f"is not valid YAML: {error.problem or error.context}",
            where=f"{file}:{line}:{column}",
            excerpt=marked_line(text, line, column),
        ) from error
    except YAMLError as error:
        first = str(error).strip().splitlines()[0]
        raise ScenarioError(f"is not valid YAML: {first}", where=file) from error
    if root is None:
        return None, {}, {}
    builder = _Builder(text, file)
    return builder.build(root, ()), builder.keys, builder.values


def _check_limits(text: str, file: str) -> None:
    """Counts nesting and nodes from the event stream, before anything recursive looks at it."""
    depth = 0
    for count, event in enumerate(YAML(typ="safe", pure=True).parse(text)):
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH or count > MAX_NODES:
            limit = f"more than {MAX_DEPTH} levels" if depth > MAX_DEPTH else _TOO_MANY
            kind = " (through an alias)" if isinstance(event, AliasEvent) else ""
            line = event.start_mark.line + 1
            raise ScenarioError(f"has {limit}{kind}", where=f"{file}:{line}:1")


_TOO_MANY = f"more than {MAX_NODES} values"


class _Builder:
    """Builds plain data; each visit of an aliased node counts, so that bombs are refused."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.keys: Marks = {}
        self.values: Marks = {}
        self.count = 0
        self._scalars = YAML(typ="safe", pure=True).constructor

    def fault(self, node: Node, path: KeyPath, problem: str) -> ScenarioError:
        line, column = _mark(node)
        return ScenarioError(
            problem,
            where=f"{self.file}:{line}:{column}",
            key=dotted(path),
            excerpt=marked_line(self.text, line, column),
        )

    def build(self, node: Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise self.fault(node, path[:1], f"has {_TOO_MANY} once its aliases are followed")
        if len(path) > MAX_DEPTH:
            raise self.fault(node, path[:1], f"has more than {MAX_DEPTH} levels")
        self.values[path] = _mark(node)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return tuple(self.build(item, (*path, i)) for i, item in enumerate(node.value))
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            inner = (*path, key)
            if key in data:
                first = self.keys[inner][0]
                raise self.fault(key_node, inner, f"key given twice (first on line {first})")
            self.keys[inner] = _mark(key_node)
            data[key] = self.build(value_node, inner)
        return data

    def _key(self, node: Node, path: KeyPath) -> str:
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            raise self.fault(node, path, "a key must be plain text")
        return node.value

    def _scalar(self, node: Node, path: KeyPath) -> Any:
        try:
            value = self._scalars.construct_object(node, deep=True)
        except (YAMLError, ValueError, OverflowError) as error:
            first = str(error).strip().splitlines()[0]
            raise self.fault(node, path, f"cannot be read: {first}") from error
        if isinstance(value, datetime.date | bytes | set):
            return str(node.value)
        return value


def _mark(node: Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column + 1
