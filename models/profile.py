"""Machines from hardware profiles: YAML files of the library, or the user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from models.costs import ProfileCosts, sheet_of
from models.errors import InputError, choices
from models.interference_rules import interference_of
from models.machine import (
    Costs,
    Fabric,
    Gaps,
    HostCosts,
    Machine,
    SmResources,
)
from models.measured import MeasuredPoint, ranks_of, read_points
from models.point_costs import PointCosts
from models.power_law import Gain, PowerLaw
from models.profile_schema import ProfileFile
from models.tables import Point, read_table
from models.work import Grid

_LIBRARY = Path(str(files("models"))) / "library" / "hardware"
_MOST_BYTES = 1_000_000
# What every calibration writes, the points last, and the name of their file after the profile's.
_MEASURED = ("interference", "points")
POINTS_SUFFIX = ".points.csv"


@dataclass(frozen=True)
class Layer:
    """One file of a profile and its parsed content."""

    path: Path
    text: str
    content: Mapping[str, Any]


@dataclass(frozen=True)
class _Files:
    """What was read of a profile; what has the same path and bytes is the same."""

    path: Path
    sha256: str
    profile: ProfileFile = field(compare=False)
    tables: Mapping[str, tuple[Point, ...]] = field(compare=False)
    points: tuple[MeasuredPoint, ...] | None = field(compare=False)


def library_machines() -> tuple[str, ...]:
    """Names that `load_machine` knows, sorted."""
    return tuple(sorted(path.stem for path in _LIBRARY.glob("[!_]*.yaml")))


def load_machine(name: str | Path) -> Machine:
    """The machine of the library profile `name`, or of the profile file at that path.

    A profile may say `base: NAME` and give only what differs. InputError names file, line, key,
    value and what is allowed.
    """
    return _machine(_files(name))


def load_calibration(file: Path) -> tuple[tuple[MeasuredPoint, ...], PowerLaw | None]:
    """The points of a calibrated profile and its power law; InputError for one without points."""
    read = _files(file)
    if read.points is None:
        raise InputError(str(file), "points", None, "the profile of a calibration")
    return read.points, _power(read.profile)


def _files(name: str | Path) -> _Files:
    layers = _layers(_locate(name), ())
    profile = _validated(layers)
    tables = _tables(profile, layers)
    points = None
    if profile.points is not None:
        points = read_points(_points_path(profile.points.file, layers))
    return _Files(layers[-1].path, _sha256(profile, layers), profile, tables, points)


def load_profile(name: str | Path) -> tuple[ProfileFile, dict[str, tuple[Point, ...]]]:
    """The checked content of a profile and the points of its tables, as `load_machine` reads them."""
    layers = _layers(_locate(name), ())
    profile = _validated(layers)
    return profile, _tables(profile, layers)


def _locate(name: str | Path) -> Path:
    path = Path(name)
    if str(name) in library_machines():
        return _LIBRARY / f"{name}.yaml"
    if not path.is_file():
        known = choices(library_machines(), str(name))
        raise InputError(str(name), "hardware", str(name), f"a profile file, or one of: {known}")
    return path


def _layers(path: Path, below: tuple[Path, ...]) -> tuple[Layer, ...]:
    """The files that make up a profile, the base first."""
    if path in below:
        raise InputError(str(path), "base", path.stem, "a profile that does not build on itself")
    text = _read(path)
    content = _parsed(path, text)
    base = content.get("base")
    if base is None:
        return (Layer(path, text, content),)
    if not isinstance(base, str):
        raise InputError(str(path), "base", base, choices(library_machines()))
    beside = path.parent / f"{base}.yaml"
    start = beside if beside.is_file() else _locate(base)
    return (*_layers(start, (*below, path)), Layer(path, text, content))


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(str(path), "file", f"{path.stat().st_size} bytes", "at most 1 MB")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "file", str(error), "a readable YAML file") from error


@lru_cache(maxsize=32)
def _parsed(path: Path, text: str) -> Mapping[str, Any]:
    """Content that callers must not change: reading a profile takes a third of a second, and one
    comparison resolves its scenario at dozens of batches."""
    if "\n" in text and any(mark in text for mark in ("&", "*")) and _has_alias(text):
        raise InputError(str(path), "file", "an anchor or alias", "plain YAML without anchors")
    try:
        content = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = 0 if mark is None else mark.line + 1
        raise InputError(str(path), "file", str(error), "a YAML mapping", line) from error
    if not isinstance(content, dict):
        raise InputError(str(path), "file", content, "a YAML mapping")
    return content


def _has_alias(text: str) -> bool:
    """Whether a value starts with an anchor or an alias, which a profile has no use for."""
    values = (line.partition(": ")[2].strip() for line in text.splitlines())
    return any(value[:1] in ("&", "*") for value in values)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `over`, mapping by mapping."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(before, value)
        else:
            result[key] = value
    return result


def _validated(layers: tuple[Layer, ...]) -> ProfileFile:
    content: dict[str, Any] = {}
    for layer in layers:
        content = _merged(content, layer.content)
    _check_whole(layers, content)
    content = deepcopy(content)
    content.pop("base", None)
    gpu = content.get("gpu")
    if isinstance(gpu, dict) and isinstance(gpu.get("compute_capability"), list):
        gpu["compute_capability"] = tuple(gpu["compute_capability"])
    for table in _mappings(content.get("tables")):
        if isinstance(table.get("key"), list):
            table["key"] = tuple(table["key"])
    try:
        profile = ProfileFile.model_validate(content)
    except ValidationError as error:
        raise _refusal(layers, error) from error
    _check_power(layers, profile)
    return profile


def _check_power(layers: tuple[Layer, ...], profile: ProfileFile) -> None:
    """InputError for a gain of kernels that the profile does not list, or that leaves them less than
    half of their time at rest."""
    if profile.power is None:
        return
    for kind, gain in profile.power.kinds.items():
        keys = ["power", "kinds", kind]
        if kind not in profile.kernels:
            layer, line = _place(layers, keys)
            raise InputError(
                str(layer.path), ".".join(keys), kind, choices(profile.kernels, kind), line
            )
        if gain.share * profile.power.most > 0.5:
            layer, line = _place(layers, [*keys, "share"])
            raise InputError(
                str(layer.path),
                ".".join([*keys, "share"]),
                gain.share,
                f"at most 0.5 / most = {0.5 / profile.power.most:.3g}: no rest halves a time",
                line,
            )


def _check_whole(layers: tuple[Layer, ...], content: Mapping[str, Any]) -> None:
    """InputError for a calibrated profile without its last sections: cut off, it would stand on its base.
    It states the GPU that was measured, and its points lie beside it."""
    for layer in layers:
        if layer.path.with_suffix(POINTS_SUFFIX).is_file():
            _need_sections(layer, layer.content)
    gpu = content.get("gpu")
    if isinstance(gpu, Mapping) and gpu.get("device"):
        _need_sections(layers[-1], content)


def _need_sections(layer: Layer, content: Mapping[str, Any]) -> None:
    for name in _MEASURED:
        if not isinstance(content.get(name), Mapping):
            lines = len(layer.text.splitlines())
            wanted = (
                f"a section each of {', '.join(_MEASURED)}, as calibrate writes it: cut off here?"
            )
            raise InputError(str(layer.path), name, None, wanted, lines)


def _mappings(tree: object) -> list[dict[str, Any]]:
    if not isinstance(tree, dict):
        return []
    return [value for value in tree.values() if isinstance(value, dict)]


def _refusal(layers: tuple[Layer, ...], error: ValidationError) -> InputError:
    """The first fault, at the line of the file that holds its key (or of the nearest key above)."""
    fault = error.errors()[0]
    keys = [str(part) for part in fault["loc"]]
    layer, line = _place(layers, keys)
    value = None if fault["type"] == "missing" else fault["input"]
    return InputError(str(layer.path), ".".join(keys), value, fault["msg"], line)


def _place(layers: tuple[Layer, ...], keys: list[str]) -> tuple[Layer, int]:
    for depth in range(len(keys), 0, -1):
        for layer in reversed(layers):
            line = _line_of(layer, keys[:depth])
            if line:
                return layer, line
    return layers[-1], 0


def _line_of(layer: Layer, keys: list[str]) -> int:
    """Line of a key in the file, 0 when it is not there."""
    node: Any = YAML(typ="rt", pure=True).load(layer.text)
    line = 0
    for key in keys:
        if not isinstance(node, Mapping) or key not in node:
            return 0
        line = node.lc.key(key)[0] + 1  # type: ignore[attr-defined]
        node = node[key]
    return line


def _tables(profile: ProfileFile, layers: tuple[Layer, ...]) -> dict[str, tuple[Point, ...]]:
    """Points of every table by its name."""
    return {
        name: read_table(_table_path(name, section.file, layers), section.key, section.x)
        for name, section in profile.tables.items()
    }


def _sha256(profile: ProfileFile, layers: tuple[Layer, ...]) -> str:
    """A hash of all files of a profile."""
    digest = hashlib.sha256()
    for layer in layers:
        digest.update(layer.text.encode())
    for name, section in sorted(profile.tables.items()):
        digest.update(_table_path(name, section.file, layers).read_bytes())
    if profile.points is not None:
        digest.update(_points_path(profile.points.file, layers).read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=16)
def _machine(read: _Files) -> Machine:
    """The machine, which remembers the prices that it was asked for: once for the same files."""
    profile = read.profile
    gpu, fabric, sm, gaps = profile.gpu, profile.fabric, profile.sm, profile.gaps
    near = profile.interference
    return Machine(
        name=profile.name,
        num_sms=gpu.sms,
        hbm_gib=gpu.hbm_gib,
        costs=_costs(read),
        host=HostCosts(tuple(sorted(profile.host.ns.items())), profile.host.error),
        fabric=Fabric(
            fabric.gpus_per_node,
            fabric.nvlink_gbps,
            fabric.nic_gbps,
            fabric.flight_latency_ns,
            fabric.internode_latency_ns,
        ),
        interference=interference_of(near),
        gaps=Gaps(**gaps.model_dump(exclude={"source"})),
        sm=SmResources(**sm.model_dump(exclude={"source"})),
        compute_capability=gpu.compute_capability,
        profile_sha256=read.sha256,
        grids=tuple(
            (kind, Grid(kind=entry.grid, gang=entry.gang))
            for kind, entry in sorted(profile.kernels.items())
        ),
        reserve_gib=profile.memory.reserve_gib,
        gpu=gpu.name,
        shared_clock=profile.points is not None,
        static_tail=profile.static.tail,
        static_tails=tuple(sorted(profile.static.kinds.items())),
        signalled=tuple(
            (kind, at.rows, at.sms, at.ratio)
            for kind, entry in sorted(profile.kernels.items())
            for at in sorted(entry.signalled, key=lambda at: (at.rows, at.sms))
        ),
        flop_dtypes=tuple(sorted(gpu.peak_tflops)),
        power=_power(profile),
        unlimited=frozenset(k for k, entry in profile.kernels.items() if not entry.budget),
        measured_ranks=ranks_of(read.points or ()),
    )


def _power(profile: ProfileFile) -> PowerLaw | None:
    if profile.power is None:
        return None
    gains = sorted(profile.power.kinds.items())
    return PowerLaw(
        profile.power.most,
        tuple((kind, Gain(gain.share, gain.ns, gain.error)) for kind, gain in gains),
        sheet_of(profile),
        profile.power.measured,
    )


def _costs(read: _Files) -> Costs:
    """Measured points over tables and forms, where the profile has points. Those held out took part in
    no fit and no error, which are stated by now; as times they count like the others."""
    profile = read.profile
    costs = ProfileCosts(profile, read.tables)
    if profile.points is None or read.points is None:
        return costs
    grids = {
        kind: Grid(kind=entry.grid, gang=entry.gang) for kind, entry in profile.kernels.items()
    }
    return PointCosts(costs, read.points, grids, profile.points.errors, profile.points.repeat)


def _points_path(file: str, layers: tuple[Layer, ...]) -> Path:
    """The points file, beside the last profile file that names it."""
    for layer in reversed(layers):
        points = layer.content.get("points")
        if isinstance(points, Mapping) and "file" in points:
            return layer.path.parent / file
    return layers[-1].path.parent / file


def _table_path(name: str, file: str, layers: tuple[Layer, ...]) -> Path:
    """The table file, beside the last profile file that names it."""
    for layer in reversed(layers):
        tables = layer.content.get("tables")
        if isinstance(tables, Mapping) and name in tables and "file" in tables[name]:
            return layer.path.parent / file
    return layers[-1].path.parent / file
