"""From a file, or a library name, to a checked scenario."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scenarios.document import Document, read_document
from scenarios.errors import ScenarioError, close_match
from scenarios.faults import first_fault
from scenarios.overrides import override
from scenarios.schema import Scenario

LIBRARY = Path(__file__).parent / "library"


def library() -> dict[str, Path]:
    """Names of the scenarios that come with the package, with their files, in order of name."""
    return {path.stem: path for path in sorted(LIBRARY.glob("*.yaml"))}


def locate(name_or_path: str | Path) -> Path:
    """The file of a library name or a path; ScenarioError with a close match for neither."""
    known = library()
    text = str(name_or_path)
    if text in known:
        return known[text]
    path = Path(name_or_path)
    looks_like_path = path.suffix in (".yaml", ".yml") or len(path.parts) != 1
    if looks_like_path or path.exists():
        return path
    close = close_match(text, known)
    raise ScenarioError(
        "is neither a library scenario nor a file",
        where=text,
        allowed=", ".join(known),
        near=known,
        word=close or text,
    )


def load(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a library name or a YAML file, with `KEY=VALUE` overrides applied. Its name tells
    what was overridden, since its answers are no longer those of the file; schedules stand in a table
    by themselves, and a name of one's own stays.

    Raises ScenarioError (an InputError) with file, line, column, key, value and what is allowed.
    """
    scenario = check(override(read_document(locate(name_or_path)), overrides))
    keys = [text.partition("=")[0].strip() for text in overrides]
    told = [text for text, key in zip(overrides, keys, strict=True) if key != "schedules"]
    if not told or "name" in keys:
        return scenario
    return scenario.model_copy(update={"name": f"{scenario.name}, with {', '.join(told)}"})


def check(document: Document) -> Scenario:
    """The scenario that a document holds; ScenarioError for the first fault."""
    try:
        scenario = Scenario.model_validate(document.data)
    except ValidationError as error:
        raise first_fault(error, document) from error
    return scenario.attach(document)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, for editors."""
    schema = Scenario.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "moe-overlap scenario"
    return schema
