"""An SGLang launch command as flags with values, and what in it contradicts itself."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML

from models.sglang_rules import RULES_DIR
from scenarios.document import read_text
from scenarios.errors import ScenarioError

FROM_FLAGS = "--from-flags"
_LAUNCHERS = ("-m sglang.launch_server", "-m sglang")  # what starts the server is no flag of it


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Flag(_Section):
    """One flag: the name that the code knows it by, its kind of value, its other spellings."""

    name: str
    value: Literal["int", "float", "text", "json", "none"]
    values: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class Contradiction(_Section):
    """Flags that cannot stand together, and why: all of `flags` given, each of `values` with one of its
    values (`none` where it is not given), and none of `without`."""

    flags: tuple[str, ...]
    why: str
    values: Mapping[str, tuple[str, ...]] = {}
    without: tuple[str, ...] = ()

    def words(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """What contradicts in a command with these flags; nothing when it does not apply."""
        found = {flag: given.get(flag, "none") for flag in self.values}
        if not all(flag in given for flag in self.flags) or any(f in given for f in self.without):
            return ()
        if any(found[flag] not in allowed for flag, allowed in self.values.items()):
            return ()
        valued = (f"{flag} {value}" for flag, value in found.items())
        return (*self.flags, *valued, *(f"no {flag}" for flag in self.without[:1]))


class FlagTable(_Section):
    """The flags of one SGLang version."""

    version: str
    source: str
    flags: Mapping[str, Flag]
    environment: Mapping[str, str]
    contradictions: tuple[Contradiction, ...]
    free_ep_backends: tuple[str, ...]
    runners: Mapping[str, str]

    def spelled(self) -> dict[str, str]:
        """Main spelling by any spelling."""
        return {word: flag for flag, entry in self.flags.items() for word in (flag, *entry.aliases)}


@dataclass(frozen=True)
class Launch:
    """A launch command: values by flag name, environment variables, and the words that have no place."""

    values: Mapping[str, Any]
    env: Mapping[str, str]
    unused: tuple[str, ...]


def load_flags(version: str = "0.5.23") -> FlagTable:
    """The flags of an SGLang version; ScenarioError names the versions that have a table."""
    path = RULES_DIR / f"flags-{version}.yaml"
    if not path.is_file():
        known = sorted(p.stem.removeprefix("flags-") for p in RULES_DIR.glob("flags-*.yaml"))
        raise ScenarioError(
            "has no table of flags", where=f"SGLang {version}", allowed=", ".join(known)
        )
    return FlagTable.model_validate(YAML(typ="safe", pure=True).load(path))


def parse_launch(command: str, table: FlagTable) -> Launch:
    """The flags of a launch command. One ScenarioError for a bad value or a contradiction."""
    env, words = _environment(_words(command))
    spelled = table.spelled()
    given: dict[str, Any] = {}
    unused: list[str] = []
    at = 0
    while at < len(words):
        word, _, inline = words[at].partition("=")
        flag = spelled.get(word)
        follows = _operands(words, at)
        if flag is None:
            unknown = " ".join([words[at], *follows])
            unused += [unknown] if word.startswith("-") and unknown not in _LAUNCHERS else []
            at += 1 + len(follows)
            continue
        operands = [inline] if inline else follows
        value = _value(flag, table.flags[flag], operands)
        if given.setdefault(flag, value) != value:
            raise ScenarioError(
                f"is given twice, first as {given[flag]!r}", where=FROM_FLAGS, key=flag, value=value
            )
        at += 1 + (0 if inline else len(follows))
    _check(given, table)
    unused += [f"{key}={value}" for key, value in env.items() if not key.startswith("SGLANG_")]
    values = {table.flags[flag].name: value for flag, value in given.items()}
    kept = {key: value for key, value in env.items() if key.startswith("SGLANG_")}
    return Launch(values, kept, tuple(unused))


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ScenarioError(f"cannot be read as a shell does: {error}", where=FROM_FLAGS) from error
    if not any(word.startswith("--") for word in words):
        raise ScenarioError("has no flag", where=FROM_FLAGS, allowed="a launch command")
    return words


def _environment(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Leading NAME=VALUE words, and the rest."""
    env: dict[str, str] = {}
    rest = list(words)
    while rest and "=" in rest[0] and not rest[0].startswith("-"):
        name, _, value = rest.pop(0).partition("=")
        env[name] = value
    return env, rest


def _operands(words: Sequence[str], at: int) -> list[str]:
    """The words after a flag up to the next flag."""
    if not words[at].startswith("-"):
        return []
    end = at + 1
    while end < len(words) and not words[end].startswith("--"):
        end += 1
    return list(words[at + 1 : end])


def _value(flag: str, entry: Flag, operands: Sequence[str]) -> Any:
    if entry.value == "none":
        if operands:
            raise ScenarioError(
                "takes no value", where=FROM_FLAGS, key=flag, value=" ".join(operands)
            )
        return True
    if len(operands) != 1:
        found = " ".join(operands) or "nothing"
        raise ScenarioError(
            "takes one value", where=FROM_FLAGS, key=flag, value=found, allowed=entry.value
        )
    text = operands[0]
    if entry.values and text not in entry.values:
        allowed = ", ".join(entry.values)
        raise ScenarioError(
            "is not known",
            where=FROM_FLAGS,
            key=flag,
            value=text,
            allowed=allowed,
            near=entry.values,
        )
    readers: dict[str, Callable[[str], Any]] = {
        "int": int, "float": _finite, "json": _json, "text": str,
    }  # fmt: skip
    try:
        return readers[entry.value](text)
    except (ValueError, OSError, RecursionError) as error:
        allowed = "JSON, or a file of it that is here" if entry.value == "json" else entry.value
        raise ScenarioError(
            "cannot be read", where=FROM_FLAGS, key=flag, value=text, allowed=allowed
        ) from error


def _finite(text: str) -> float:
    """A float; ValueError for NaN, which no comparison finds equal to itself, and for infinities."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _json(text: str) -> Any:
    """JSON, or what the file of that name holds, as the server reads it."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(read_text(Path(text)))


def _check(given: Mapping[str, Any], table: FlagTable) -> None:
    for rule in table.contradictions:
        if words := rule.words(given):
            raise ScenarioError(f"{' and '.join(words)} contradict: {rule.why}", where=FROM_FLAGS)
