"""A hardware profile from what a calibration measured, over a profile of the library."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ruamel.yaml import YAML

from models.calibrated_interference import (
    HeldOut,
    four_fifths,
    held_out_pairs,
    interference_section,
    intervals,
    rounded,
    rules_of,
    summed_up,
)
from models.calibrated_kernels import (
    LEAST_POINTS,
    add_footprints,
    add_kinds,
    add_signals,
    add_tails,
)
from models.calibrated_power import power_section, with_errors
from models.calibration_records import Records
from models.costs import ProfileCosts, peaks_of
from models.drift import drifts
from models.errors import InputError
from models.fit import Timed, fit_form
from models.host import shared_out
from models.kernel_launches import launches_of
from models.machine import Costs
from models.measured import MeasuredPoint, write_points
from models.point_costs import PointCosts
from models.power_law import PowerLaw
from models.profile import POINTS_SUFFIX, library_machines, load_profile
from models.profile_schema import GapsSection, ProfileFile
from models.work import EXCHANGE_KINDS, Grid

# Forms that stand for many kinds of kernel at once: each measured kind gets its own.
SHARED_FORMS = ("elementwise", "scatter")
# Points of a kind that tell what all of it drifts by: a few sizes of one kernel tell of that kernel.
DRIFT_POINTS = 10
# Nothing is measured twice alike to so many digits.
THE_SAME = 1e-6
# Nine in ten points of one set of kernels on GPUs of one model are within 5 %.
OTHER_KERNELS, ALIKE = 0.5, "points of the same kernels on GPUs of the same model"


@dataclass(frozen=True)
class Earlier:
    """Another calibration: its points, and its power law if it is known."""

    points: Sequence[MeasuredPoint] = ()
    power: PowerLaw | None = None


@dataclass(frozen=True)
class Calibrated:
    """A profile's two files, and how far it is from what was held out."""

    profile: str
    points: str
    points_file: str
    kernels: tuple[HeldOut, ...]
    pairs: tuple[HeldOut, ...]


NO_OTHER = Earlier()


def calibrated(
    records: Records,
    *,
    name: str,
    base: str,
    seed: int,
    source: str,
    earlier: Earlier = NO_OTHER,
) -> Calibrated:
    """The profile called `name` over the library's `base`, which repeats as its points and its power law
    differ from those of an `earlier` calibration. Needs scipy; ValueError without a point, InputError where
    none of the earlier ones is measured again."""
    if not records.points:
        raise ValueError("a calibration without a single point makes no profile")
    # Records of before there was another set do not name theirs.
    launches = launches_of(str(records.machine.get("kernels", "production")), source)
    profile, tables = load_profile(base)
    profile = _launching(profile, launches)
    content: dict[str, Any] = {"base": base, "name": name, "source": source}
    _add_figures(content, records, source)
    add_footprints(content, records, profile)
    for kind, launch in launches.items():
        content.setdefault("kernels", {}).setdefault(kind, {}).update(launch)
    add_kinds(content, records.holds, profile)
    add_signals(content, records.signals)
    add_tails(content, records, profile, source)
    _add_forms(content, records.points, profile, source)
    content["interference"] = interference_section(records, source)
    if records.power is not None or profile.power is not None:
        law = records.power
        if law is not None and earlier.power is not None:
            law = with_errors(law, earlier.power, records.points)
        content["power"] = power_section(law, profile.power, source)
    below = ProfileCosts(profile, tables)
    kernels = held_out_kernels(records.points, below, profile)
    points_file = f"{name}{POINTS_SUFFIX}"
    content["points"] = {
        "file": points_file,
        "held_seed": seed,
        **_repeat(records.points, earlier.points),
        "errors": between_errors(records.points, below, profile),
        "clocks": _clocks(records),
        "source": source,
    }
    return Calibrated(
        _yaml(content),
        write_points(records.points, [source]),
        points_file,
        kernels,
        held_out_pairs(records.slowed, rules_of(content["interference"])),
    )


def _launching(profile: ProfileFile, launches: Mapping[str, Mapping[str, Any]]) -> ProfileFile:
    """The profile with its kernels launched as a kernel set launches them."""
    kernels = profile.kernels | {
        kind: profile.kernels[kind].model_copy(update=dict(launch))
        for kind, launch in launches.items()
    }
    return profile.model_copy(update={"kernels": kernels})


def base_profile(device: str, ranks: int) -> str:
    """The library profile for a GPU that CUDA calls `device`, with at least `ranks` GPUs a node and as
    few as there are; InputError without one."""
    fitting = []
    for name in library_machines():
        profile, _ = load_profile(name)
        per_node = profile.fabric.gpus_per_node
        model = profile.gpu.name.split()[0]
        if model in device.split() and per_node >= ranks and profile.points is None:
            fitting.append((per_node, name))
    if not fitting:
        known = ", ".join(library_machines())
        raise InputError("calibrate", "base", device, f"--base with one of: {known}")
    return min(fitting)[1]


def _add_figures(content: dict[str, Any], records: Records, source: str) -> None:
    gpu = records.machine.get("gpu")
    if gpu:
        content["gpu"] = {"device": str(gpu)}
    if records.gaps_ns:
        known = GapsSection.model_fields
        gaps = {name: ns for name, ns in records.gaps_ns.items() if name in known}
        content["gaps"] = {**gaps, "source": source}
    if records.host_ns:
        content["host"] = {
            "ns": shared_out(records.host_ns),
            "error": rounded(records.host_error),
            "source": source,
        }


def _repeat(points: Sequence[MeasuredPoint], earlier: Sequence[MeasuredPoint]) -> dict[str, float]:
    """The most that the points of one kind together differ by from one calibration to the other."""
    if not earlier:
        return {}
    rows = drifts(earlier, points)
    if not rows:
        raise InputError("calibrate", "against", "none of these points", "a point that is in both")
    if rows[-1].p90 < THE_SAME:
        raise InputError("calibrate", "against", "these very points", "another calibration's")
    if rows[-1].p90 > OTHER_KERNELS:
        raise InputError("calibrate", "against", f"points {rows[-1].p90:.0%} off", ALIKE)
    counted = [row.ratio for row in rows if row.count >= DRIFT_POINTS] or [rows[-1].ratio]
    return {"repeat": round(max(abs(ratio - 1.0) for ratio in counted), 4)}


def _clocks(records: Records) -> str:
    """Range of SM clocks and powers of the points, and what throttled them."""
    mhz = [point.mhz for point in records.points if point.mhz]
    watts = [point.watts for point in records.points if point.watts]
    if not mhz or not watts:
        return "not read"
    limits = f"; throttled by {', '.join(records.throttled)}" if records.throttled else ""
    shared = "; other processes used the GPU" if records.others else ""
    return (
        f"SM clock {min(mhz)} to {max(mhz)} MHz, median {round(median(mhz))}; "
        f"{min(watts)} to {max(watts)} W{limits}{shared}"
    )


def _add_forms(
    content: dict[str, Any],
    points: Iterable[MeasuredPoint],
    profile: ProfileFile,
    source: str,
) -> None:
    """A form of its own for each measured kind that had a shared one."""
    by_kind: dict[str, list[Timed]] = {}
    for point in points:
        entry = profile.kernels[point.work.kind]
        if entry.form in SHARED_FORMS and not point.held and point.work.hbm_bytes:
            time = Timed(point.work, point.sms, point.ns)
            by_kind.setdefault(point.work.kind, []).append(time)
    peaks = peaks_of(profile)
    for kind, timed in sorted(by_kind.items()):
        if len(timed) < LEAST_POINTS or kind in EXCHANGE_KINDS:
            continue
        fit = fit_form(timed, peaks, profile.kernels[kind].grid)
        content.setdefault("kernels", {}).setdefault(kind, {})["form"] = kind
        content.setdefault("forms", {})[kind] = {
            **{name: rounded(estimate.value) for name, estimate in fit.estimates.items()},
            "error": rounded(fit.error),
            "label": "fitted",
            "source": f"fit of {fit.points} points; {intervals(fit)}; {source}",
        }


def between_errors(
    points: Iterable[MeasuredPoint], below: Costs, profile: ProfileFile
) -> dict[str, float]:
    """By kind: what four fifths of the errors stay below of points that were not held out, each read
    from the others around it."""
    kept = [point for point in points if not point.held]
    costs = PointCosts(below, kept, grids_of(profile), {})
    errors: dict[str, list[float]] = {}
    for point in kept:
        error = costs.left_out(point)
        if error is not None:
            errors.setdefault(point.work.kind, []).append(error)
    return {kind: round(four_fifths(values), 4) for kind, values in sorted(errors.items())}


def grids_of(profile: ProfileFile) -> dict[str, Grid]:
    """How each kind is launched."""
    return {k: Grid(kind=entry.grid, gang=entry.gang) for k, entry in profile.kernels.items()}


def held_out_kernels(
    points: Iterable[MeasuredPoint], below: Costs, profile: ProfileFile
) -> tuple[HeldOut, ...]:
    """Errors of the points held out, each read from those that were kept, by kind of work."""
    points = tuple(points)
    grids = grids_of(profile)
    costs = PointCosts(below, (p for p in points if not p.held), grids, {})
    errors: dict[str, list[float]] = {}
    for point in points:
        if point.held:
            ns = costs.alone(point.work, grids[point.work.kind], point.sms).ns
            errors.setdefault(point.work.kind, []).append(abs(ns / point.ns - 1.0))
    return summed_up(errors)


def _yaml(content: Mapping[str, Any]) -> str:
    writer = YAML()
    writer.default_flow_style = False
    writer.width = 4096
    out = io.StringIO()
    writer.dump(dict(content), out)
    return out.getvalue()
