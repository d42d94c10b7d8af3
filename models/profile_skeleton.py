"""New hardware profiles: a skeleton to fill in, and a user's own timings merged into a profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from models.errors import InputError, choices
from models.profile import library_machines, load_profile
from models.profile_schema import ProfileFile, TableSection
from models.tables import Point, read_table

_SECTIONS = ("gpu", "fabric", "memory", "interference", "gaps", "normal_exchange")


def skeleton(name: str, base: str) -> str:
    """YAML of a profile called `name` that starts from `base` and repeats, to be edited, what differs
    most between machines. It loads as it stands. InputError when `base` is not in the library."""
    if base not in library_machines():
        raise InputError("hardware", "base", base, choices(library_machines(), base))
    profile, _ = load_profile(base)
    lines = [
        f"# Profile of {name}, started from {base}. Keep what you have not measured out of this file: it",
        f"# then comes from {base}. Give every section that you change its source. Slower links slow",
        f"# exchanges; faster ones, and sizes in a table, keep the times of {base} until you merge yours.",
        f"base: {base}",
        f"name: {name}",
        "source: TODO who measured what, when, with which versions",
    ]
    for section in _SECTIONS:
        lines += _section_lines(section, profile)
    lines += [
        f"# Tables that your own timings can replace point by point: {', '.join(profile.tables)}",
    ]
    return "\n".join(lines) + "\n"


def _section_lines(section: str, profile: ProfileFile) -> list[str]:
    content = getattr(profile, section).model_dump(exclude_unset=True)
    content["source"] = f"TODO (taken from {profile.name})"
    return [f"{section}:", *(f"  {key}: {_flow(value)}" for key, value in content.items())]


def _flow(value: object) -> str:
    """A value in YAML's flow style."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return str(value)


@dataclass(frozen=True, slots=True)
class MergedProfile:
    """A profile and the table file that must stand beside it under `table_name`, as texts."""

    profile: str
    table_name: str
    table: str


def merged(name: str, base: str | Path, table: str, timings: Path) -> MergedProfile:
    """A profile called `name` that is `base` with the points of the CSV file `timings` in one table.

    The CSV has the table's own columns (`n,k,m,us` for a GEMM), times in us; a point of the same
    place replaces the base's. InputError for an unknown table or a bad row.
    """
    profile, points = load_profile(base)
    if table not in profile.tables:
        raise InputError(str(base), "tables", table, choices(profile.tables, table))
    section = profile.tables[table]
    mine = read_table(timings, section.key, section.x)
    places = {(point.key, point.x): point for point in (*points[table], *mine)}
    file = f"{name}-{table.replace('.', '_')}.csv"
    parent = base if str(base) in library_machines() else Path(base).resolve()
    source = f"{profile.name} with timings of {timings.name}"
    text = (
        f"base: {parent}\nname: {name}\nsource: {source}\n"
        f"tables:\n  {table}: {{file: {file}, source: {source}}}\n"
    )
    return MergedProfile(text, file, _csv(places.values(), section, source))


def _csv(points: Iterable[Point], section: TableSection, note: str) -> str:
    found = sorted(points, key=lambda point: (point.key, point.x))
    lines = [f"# {note}", ",".join((*section.key, section.x, "us"))]
    lines += [",".join(f"{value:.10g}" for value in (*p.key, p.x, p.us)) for p in found]
    return "\n".join(lines) + "\n"
