"""Programs and timelines as JSON documents, and back without loss.

Both documents carry `schema` and `kind`. A program keeps its distinct works in one table and its
distinct traffic matrices in another, so that sixty equal layers cost one matrix; reading gives the
shared object back.
"""

from __future__ import annotations

from typing import Any

from models.host import HostProbe
from models.work import Work
from schedules.codec import Codec, Form, FormError
from schedules.program import Exchange, Program, RankClass, Signal, Stream, Traffic
from schedules.table import Table
from schedules.timeline import Counter, Origin, Span, Timeline

SCHEMA = 1
PROBES = "host_probes"


def program_to_json(program: Program) -> dict[str, Any]:
    """The JSON document of a program (`docs/formats.md`, "Program")."""
    works, matrices = Table(), Table(by_identity=True)
    codec = Codec({Work: _reference(works), Traffic: _reference(matrices)})
    plain = Codec()
    body = {
        "name": program.name,
        "streams": plain.encode(tuple[Stream, ...], program.streams),
        "exchanges": codec.encode(tuple[Exchange, ...], program.exchanges),
        "signals": plain.encode(tuple[Signal, ...], program.signals),
        "classes": codec.encode(tuple[RankClass, ...], program.classes),
    }
    tables = {
        "works": plain.encode(tuple[Work, ...], works.items),
        "matrices": plain.encode(tuple[Traffic, ...], matrices.items),
    }
    return {"schema": SCHEMA, "kind": "program", **tables, **body}


def program_from_json(document: object) -> Program:
    """The program of a JSON document; FormError (a ValueError) names the path of what is wrong."""
    keys = ("name", "works", "matrices", "streams", "exchanges", "signals", "classes")
    body = _opened(document, "program", keys)
    plain = Codec()
    works = Table(_part(plain, tuple[Work, ...], body, "works"))
    matrices = Table(_part(plain, tuple[Traffic, ...], body, "matrices"))
    codec = Codec({Work: _reference(works), Traffic: _reference(matrices)})
    return Program(
        name=_part(plain, str, body, "name"),
        streams=_part(plain, tuple[Stream, ...], body, "streams"),
        exchanges=_part(codec, tuple[Exchange, ...], body, "exchanges"),
        signals=_part(plain, tuple[Signal, ...], body, "signals"),
        classes=_part(codec, tuple[RankClass, ...], body, "classes"),
    )


def timeline_to_json(timeline: Timeline) -> dict[str, Any]:
    """The JSON document of a timeline (`docs/formats.md`, "Timeline")."""
    codec = Codec()
    document = {
        "schema": SCHEMA,
        "kind": "timeline",
        "program": timeline.program,
        "machine": timeline.machine,
        "origin": timeline.origin,
        "clock_error_ns": codec.encode(int, timeline.clock_error_ns),
        "spans": codec.encode(tuple[Span, ...], timeline.spans),
        "counters": codec.encode(tuple[Counter, ...], timeline.counters),
    }
    if timeline.host_probes:
        document[PROBES] = codec.encode(tuple[HostProbe, ...], timeline.host_probes)
    return document


def timeline_from_json(document: object) -> Timeline:
    """The timeline of a JSON document; FormError (a ValueError) names the path of what is wrong."""
    keys = ("program", "machine", "origin", "clock_error_ns", "spans", "counters")
    body = _opened(document, "timeline", keys, (PROBES,))
    codec = Codec()
    timeline = Timeline(
        program=_part(codec, str, body, "program"),
        machine=_part(codec, str, body, "machine"),
        origin=_part(codec, Origin, body, "origin"),
        clock_error_ns=_part(codec, int, body, "clock_error_ns"),
        spans=_part(codec, tuple[Span, ...], body, "spans"),
        counters=_part(codec, tuple[Counter, ...], body, "counters"),
        host_probes=_part(codec, tuple[HostProbe, ...], body, PROBES) if PROBES in body else (),
    )
    for index, span in enumerate(timeline.spans):
        if span.end_ns < span.start_ns:
            raise FormError("end_ns lies before start_ns", f"spans[{index}]")
    return timeline


def _opened(
    document: object, kind: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise FormError(f"expected an object of kind {kind!r}")
    if document.get("kind") != kind:
        raise FormError(f"expected {kind!r}, found {document.get('kind')!r}", "kind")
    schema = document.get("schema")
    if isinstance(schema, bool) or schema != SCHEMA:
        raise FormError(f"expected {SCHEMA}, found {schema!r}", "schema")
    for key in document:
        if key not in (*keys, *optional, "schema", "kind"):
            known = ", ".join(("schema", "kind", *keys, *optional))
            raise FormError(f"unknown key (allowed: {known})", str(key))
    for key in keys:
        if key not in document:
            raise FormError(f"missing key {key!r}")
    return document


def _part(codec: Codec, tp: Any, body: dict[str, Any], key: str) -> Any:
    try:
        return codec.decode(tp, body[key])
    except FormError as error:
        raise error.under(key) from None


def _reference(table: Table) -> Form:
    """A value as its index into a table: encoding grows the table."""

    def decode(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            raise FormError(f"expected an index into a table, found {value!r}")
        if not 0 <= value < len(table.items):
            raise FormError(f"index {value} lies outside the table of {len(table.items)}")
        return table.items[value]

    return table.index, decode
