"""A hardware profile from what a calibration measured, over a profile of the library."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from ruamel.yaml import YAML

from models.calibration_records import RESOURCES, Records, Slowed
from models.costs import peaks_of
from models.errors import InputError
from models.fit import Beside, Fit, Timed, fit_form, fit_slowdown
from models.machine import Costs
from models.measured import MeasuredPoint, write_points
from models.point_costs import PointCosts
from models.profile import library_machines, load_machine, load_profile
from models.profile_schema import GapsSection, ProfileFile
from models.work import EXCHANGE_KINDS, Grid

# Fewer points than this do not bind the coefficients of a form.
LEAST_POINTS = 4
# Stated errors hold for this share of cases: what a band is to hold at least.
COVERED = 0.8
RHO_CAPS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
# Forms that stand for many kinds of kernel at once: each measured kind gets its own.
SHARED_FORMS = ("elementwise", "scatter")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Relative errors of what was held out, by kind of work or by victim of interference."""

    name: str
    count: int
    median: float
    worst: float


@dataclass(frozen=True)
class Calibrated:
    """A profile's two files, and how far it is from what was held out."""

    profile: str
    points: str
    points_file: str
    kernels: tuple[HeldOut, ...]
    pairs: tuple[HeldOut, ...]


def calibrated(records: Records, *, name: str, base: str, seed: int, source: str) -> Calibrated:
    """The profile called `name` over the library's `base`. Needs scipy; ValueError without a point."""
    if not records.points:
        raise ValueError("a calibration without a single point makes no profile")
    profile, _ = load_profile(base)
    content: dict[str, Any] = {"base": base, "name": name, "source": source}
    gpu = records.machine.get("gpu")
    if gpu:
        content["gpu"] = {"device": str(gpu)}
    _add_figures(content, records, source)
    _add_footprints(content, records, profile)
    _add_forms(content, records.points, profile, source)
    _add_interference(content, records, source)
    below = load_machine(base).costs
    kernels = held_out_kernels(records.points, below, profile)
    points_file = f"{name}.points.csv"
    content["points"] = {
        "file": points_file,
        "held_seed": seed,
        "errors": between_errors(records.points, below, profile),
        "clocks": _clocks(records),
        "source": source,
    }
    rules = content["interference"]
    return Calibrated(
        _yaml(content),
        write_points(records.points, [source]),
        points_file,
        kernels,
        held_out_pairs(records.slowed, rules["families"], rules["kinds"], rules["rho_cap"]),
    )


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
    if records.gaps_ns:
        known = GapsSection.model_fields
        gaps = {name: ns for name, ns in records.gaps_ns.items() if name in known}
        content["gaps"] = {**gaps, "source": source}
    if records.host_ns:
        content["host"] = {
            "ns": host_costs(records.host_ns),
            "error": _rounded(records.host_error),
            "source": source,
        }


def host_costs(measured: Mapping[str, int]) -> dict[str, int]:
    """Host costs by kind or class. A whole normal-mode call is shared out over the launches that it
    stands for: a combine is a notify and a transfer; a dispatch is a layout and a transfer more."""
    costs = dict(measured)
    call = costs.pop("dispatch_call", 0)
    if "combine" in costs:
        costs["combine"] = costs["notify"] = costs["combine"] // 2
    if call:
        costs["layout"] = costs["dispatch"] = max(0, call - costs.get("notify", 0)) // 2
    return costs


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


def _add_footprints(content: dict[str, Any], records: Records, profile: ProfileFile) -> None:
    """What one CTA of each measured kind takes of an SM; figures that no SM offers are left out."""
    for kind, footprint in sorted(records.footprints.items()):
        taken: dict[str, Any] = {name: footprint[name] for name in RESOURCES}
        offered = {name: getattr(profile.sm, name) for name in RESOURCES}
        if kind not in profile.kernels or not taken["threads"]:
            continue
        if kind in ("combine_send", "combine_recv"):
            taken["ctas"] = "experts_or_tokens"
        if all(footprint[name] <= offered[name] for name in RESOURCES):
            content.setdefault("kernels", {}).setdefault(kind, {}).update(taken)


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
            **{name: _rounded(estimate.value) for name, estimate in fit.estimates.items()},
            "error": _rounded(fit.error),
            "label": "fitted",
            "source": f"fit of {fit.points} points; {_intervals(fit)}; {source}",
        }


def _add_interference(content: dict[str, Any], records: Records, source: str) -> None:
    """Coefficients of every family and kind that was measured beside others, and the HBM share from
    which more does not slow communication further."""
    section: dict[str, Any] = {"families": {}, "kinds": {}}
    notes = []
    if records.hbm_gbps:
        section["achievable_hbm_gbps"] = _rounded(records.hbm_gbps)
    slowed = [group for _, group in _by_name(records.slowed, lambda s: (s.family,)) if group]
    real = [entry for group in slowed for entry in beside_real_kernels(group)]
    compute = [entry for entry in real if not entry.family]
    cap = best_rho_cap([entry for entry in real if entry.family] or compute)
    section["rho_cap"] = cap
    for family, group in _by_name(real, lambda s: (s.family,) if s.family else ()):
        fit = fit_slowdown(_kept(group), cap)
        section["families"][family] = _pair(fit)
        notes.append(f"{family} {_intervals(fit)}, error {fit.error:.3f}")
    if compute:
        section["compute"] = _pair(fit_slowdown(_kept(compute), cap))
    for kind, group in _by_name(compute, lambda s: s.kinds):
        fit = fit_slowdown(_kept(group), cap)
        section["kinds"][kind] = _pair(fit)
        notes.append(f"{kind} {_intervals(fit)}")
    section["source"] = "; ".join((source, *notes))
    content["interference"] = section


def beside_real_kernels(group: Iterable[Slowed]) -> list[Slowed]:
    """What was measured beside kernels of layers, if anything was; else what there is. A streaming
    kernel draws HBM bandwidth alone, a GEMM also much of the L2's: at the same rate it slows more."""
    group = tuple(group)
    return [s for s in group if not s.aggressor.startswith("stream")] or list(group)


def best_rho_cap(slowed: Iterable[Slowed]) -> float:
    """Of `RHO_CAPS` the one whose fits, a family each, leave the least error."""
    groups = [_kept(group) for _, group in _by_name(slowed, lambda s: (s.family,))]
    if not groups:
        return max(RHO_CAPS)

    def error(cap: float) -> float:
        return sum(fit_slowdown(group, cap).error * len(group) for group in groups)

    return min(RHO_CAPS, key=error)


def _kept(group: Iterable[Slowed]) -> list[Beside]:
    group = tuple(group)
    return [s.beside for s in group if not s.held] or [s.beside for s in group]


def _by_name(slowed: Iterable[Slowed], names: Any) -> list[tuple[str, list[Slowed]]]:
    groups: dict[str, list[Slowed]] = {}
    for entry in slowed:
        for name in names(entry):
            groups.setdefault(name, []).append(entry)
    return sorted(groups.items())


def _pair(fit: Fit) -> dict[str, float]:
    return {"c0": _rounded(fit.value("c0")), "c1": _rounded(fit.value("c1"))}


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
    return {kind: round(_most(values), 4) for kind, values in sorted(errors.items())}


def _most(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[round(COVERED * (len(ordered) - 1))]


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
    return _summed(errors)


def held_out_pairs(
    slowed: Iterable[Slowed],
    families: Mapping[str, Mapping[str, float]],
    kinds: Mapping[str, Mapping[str, float]],
    cap: float,
) -> tuple[HeldOut, ...]:
    """Errors of the slowdowns beside real kernels that were held out, by victim."""
    errors: dict[str, list[float]] = {}
    groups = _by_name(slowed, lambda s: (s.family,))
    for entry in (entry for _, group in groups for entry in beside_real_kernels(group)):
        pair = families[entry.family] if entry.family else kinds[entry.kinds[0]]
        if entry.held:
            rho = min(cap, entry.beside.rho)
            law = 1 + pair["c0"] * entry.beside.busy + pair["c1"] * rho / (1 - rho)
            victim = entry.family or entry.kinds[0]
            errors.setdefault(victim, []).append(abs(law / entry.beside.slowdown - 1))
    return _summed(errors)


def _summed(errors: Mapping[str, list[float]]) -> tuple[HeldOut, ...]:
    return tuple(
        HeldOut(name, len(values), median(values), max(values))
        for name, values in sorted(errors.items())
    )


def _intervals(fit: Fit) -> str:
    parts = []
    for name, estimate in fit.estimates.items():
        width = "unbound" if math.isinf(estimate.half_width) else f"±{estimate.half_width:.2g}"
        parts.append(f"{name} {estimate.value:.3g} {width}")
    return ", ".join(parts)


def _rounded(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def _yaml(content: Mapping[str, Any]) -> str:
    writer = YAML()
    writer.default_flow_style = False
    writer.width = 4096
    out = io.StringIO()
    writer.dump(dict(content), out)
    return out.getvalue()
