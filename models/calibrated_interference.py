"""Coefficients of interference from slowdowns that a calibration measured, and how far off they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from models.calibration_records import Records, Slowed
from models.exchange_sizes import of_one_size, size_law
from models.fit import Beside, Fit, fit_slowdown
from models.interference_rules import interference_of
from models.machine import COVERED, Interference, SizeLaw, slowdown_beside
from models.measured import percentile
from models.profile_schema import InterferenceSection

# Fewer neighbours than this do not tell what their SMs and their HBM rate do apart.
LEAST_BESIDE = 3
RHO_CAPS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Relative errors of what was held out, by kind of work or by victim of interference."""

    name: str
    count: int
    median: float
    worst: float


def summed_up(errors: Mapping[str, list[float]]) -> tuple[HeldOut, ...]:
    """A row for each name, in order."""
    return tuple(
        HeldOut(name, len(values), median(values), max(values))
        for name, values in sorted(errors.items())
    )


def interference_section(records: Records, source: str) -> dict[str, Any]:
    """Coefficients of every family, direction and kind that was measured beside others, and the HBM
    share from which more does not slow communication further."""
    section: dict[str, Any] = {"families": {}, "kinds": {}, "exchanges": {}, "errors": {}}
    notes = []
    if records.hbm_gbps:
        section["achievable_hbm_gbps"] = rounded(records.hbm_gbps)
    slowed = [group for _, group in _by_name(records.slowed, lambda s: (s.family,)) if group]
    real = [entry for group in slowed for entry in beside_real_kernels(group)]
    compute = [entry for entry in real if not entry.family]
    communication = [entry for entry in real if entry.family]
    cap = best_rho_cap(communication or compute)
    section["rho_cap"] = cap
    sizes = _size_laws(communication, cap)
    communication = [of_one_size(entry, _law_of(entry, sizes)) for entry in communication]
    for (family, name), law in sorted(sizes.items()):
        section.setdefault("sizes", {}).setdefault(family, {})[name] = asdict(law)
    for family, group in _by_name(communication, lambda s: (s.family,)):
        fit = fit_slowdown(_kept(group), cap)
        section["families"][family] = _pair(fit)
        notes.append(f"{family} {intervals(fit)}, error {fit.error:.3f}")
        for name, part in _by_name(group, lambda s: (s.exchange,) if s.exchange else ()):
            kept = {sms: _kept(at) for sms, at in _by_name(part, lambda s: (s.sms,))}
            fits = {
                sms: fit_slowdown(at, cap) for sms, at in kept.items() if len(at) >= LEAST_BESIDE
            }
            if not fits:
                continue
            pairs = [{"sms": sms, **_pair(fit)} for sms, fit in fits.items()]
            section["exchanges"].setdefault(family, {})[name] = pairs
            worst = max(fit.error for fit in fits.values())
            notes.append(f"{family} {name} by SMs, error up to {worst:.3f}")
    if compute:
        section["compute"] = _pair(fit_slowdown(_kept(compute), cap))
    for kind, group in _by_name(compute, lambda s: s.kinds):
        fit = fit_slowdown(_kept(group), cap)
        section["kinds"][kind] = _pair(fit)
        notes.append(f"{kind} {intervals(fit)}")
    section["errors"] = left_out_errors(communication, compute, cap)
    section["source"] = "; ".join((source, *notes))
    return section


def _size_laws(communication: Iterable[Slowed], cap: float) -> dict[tuple[str, str], SizeLaw]:
    """By family and direction, where enough sizes were measured."""

    def error(group: Iterable[Slowed]) -> float:
        parts = _by_name(group, lambda s: (s.sms,))
        return sum(off**2 for _, part in parts for off in _left_out(part, cap))

    named = _by_name(communication, lambda s: ((s.family, s.exchange),) if s.exchange else ())
    found = {name: size_law(group, error) for name, group in named}
    return {name: law for name, law in found.items() if law is not None}


def _law_of(entry: Slowed, laws: Mapping[tuple[str, str], SizeLaw]) -> SizeLaw | None:
    return laws.get((entry.family, entry.exchange))


def left_out_errors(
    communication: Iterable[Slowed], compute: Iterable[Slowed], cap: float
) -> dict[str, float]:
    """By victim: what four fifths of the errors stay below of slowdowns that were not held out, each
    told by the law fitted to the others; a direction's on as many SMs of its own."""
    errors: dict[str, list[float]] = {}
    for family, group in _by_name(communication, lambda s: (s.family,)):
        errors[family] = _left_out(group, cap)
        for (name, _), part in _by_name(group, lambda s: ((s.exchange, s.sms),)):
            if name:
                errors.setdefault(f"{family} {name}", []).extend(_left_out(part, cap))
    compute = tuple(compute)
    errors["compute"] = _left_out(compute, cap)
    for victims, group in _by_name(compute, lambda s: (s.kinds,)):
        found = _left_out(group, cap)
        errors |= dict.fromkeys(victims, found)
    return {name: round(four_fifths(found), 4) for name, found in sorted(errors.items()) if found}


def _left_out(group: Iterable[Slowed], cap: float) -> list[float]:
    """Relative errors of slowdowns, each told by the others."""
    kept, errors = _kept(group), []
    for number, entry in enumerate(kept):
        others = kept[:number] + kept[number + 1 :]
        if len(others) >= LEAST_BESIDE:
            fit = fit_slowdown(others, cap)
            law = slowdown_beside(fit.value("c0"), fit.value("c1"), entry.busy, entry.rho, cap)
            errors.append(abs(law / entry.slowdown - 1))
    return errors


def four_fifths(errors: Iterable[float]) -> float:
    """What so large a share of the errors as a stated one holds for stays below; ValueError for none."""
    return percentile(errors, COVERED)


def rules_of(section: Mapping[str, Any]) -> Interference:
    """The section's coefficients as the engine reads them; what it leaves to its base slows nothing."""
    nothing = {"achievable_hbm_gbps": 1.0, "compute": {"c0": 0.0, "c1": 0.0}}
    return interference_of(InterferenceSection.model_validate({**nothing, **section}))


def beside_real_kernels(group: Iterable[Slowed]) -> list[Slowed]:
    """What was measured beside kernels of layers, if anything was; else what there is. A streaming
    kernel draws HBM bandwidth alone, a GEMM also much of the L2's: at the same rate it slows more. An
    exchange beside a kernel that takes every SM also waits to be placed, which is not interference."""
    group = [s for s in group if not s.family or s.beside.busy < 1.0]
    return [s for s in group if not s.aggressor.startswith("stream")] or group


def best_rho_cap(slowed: Iterable[Slowed]) -> float:
    """Of `RHO_CAPS` the one whose fits, one for each family, direction and number of SMs, leave the
    least error."""
    named = _by_name(slowed, lambda s: ((s.family, s.exchange, s.sms),))
    groups = [_kept(group) for _, group in named]
    if not groups:
        return max(RHO_CAPS)

    def error(cap: float) -> float:
        return sum(fit_slowdown(group, cap).error * len(group) for group in groups)

    return min(RHO_CAPS, key=error)


def held_out_pairs(slowed: Iterable[Slowed], rules: Interference) -> tuple[HeldOut, ...]:
    """Errors of the slowdowns beside real kernels that were held out, by victim."""
    errors: dict[str, list[float]] = {}
    groups = _by_name(slowed, lambda s: (s.family,))
    for entry in (entry for _, group in groups for entry in beside_real_kernels(group)):
        if not entry.held:
            continue
        if entry.family:
            c0, c1 = rules.coefficients(entry.family, entry.exchange, entry.sms, entry.tokens)
        else:
            c0, c1 = rules.compute_coefficients(entry.kinds[0])
        near = entry.beside
        law = slowdown_beside(c0, c1, near.busy, near.rho, rules.rho_cap)
        victim = f"{entry.family} {entry.exchange}".strip() if entry.family else entry.kinds[0]
        errors.setdefault(victim, []).append(abs(law / near.slowdown - 1))
    return summed_up(errors)


def intervals(fit: Fit) -> str:
    """Coefficients with their 95 % half widths, as text."""
    parts = []
    for name, estimate in fit.estimates.items():
        width = "unbound" if math.isinf(estimate.half_width) else f"±{estimate.half_width:.2g}"
        parts.append(f"{name} {estimate.value:.3g} {width}")
    return ", ".join(parts)


def rounded(value: float, digits: int = 4) -> float:
    """To so many significant digits."""
    return float(f"{value:.{digits}g}")


def _kept(group: Iterable[Slowed]) -> list[Beside]:
    group = tuple(group)
    return [s.beside for s in group if not s.held] or [s.beside for s in group]


def _by_name(slowed: Iterable[Slowed], names: Callable[[Slowed], Any]) -> list[tuple[Any, Any]]:
    groups: dict[Any, list[Slowed]] = {}
    for entry in slowed:
        for name in names(entry):
            groups.setdefault(name, []).append(entry)
    return sorted(groups.items())


def _pair(fit: Fit) -> dict[str, float]:
    return {"c0": rounded(fit.value("c0")), "c1": rounded(fit.value("c1"))}
