"""How the kernels of a calibration are launched: CTAs and what they take, how they share out their work,
and how much faster they are on fewer SMs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from statistics import median
from typing import Any

from models.calibrated_interference import intervals, rounded
from models.calibration_records import RESOURCES, Records
from models.fit import fit_tail
from models.machine import Footprint, SmResources
from models.measured import MeasuredPoint
from models.profile_schema import ProfileFile
from models.tiling import tile_ratios
from models.work import GridKind

# A static kernel ends later by more than this share of the time for which SMs were held.
HALF_WAY = 0.5
LEAST_TAIL = 0.01
# The tail law is for CTAs that few others are left beside: it is fitted below this share of the SMs where
# enough was measured there.
FEW_SHARE = 0.6
# Fewer points than this do not bind the coefficients of a form or a law.
LEAST_POINTS = 4
# A coefficient between 0 and 1 that is known to no better than this is not known.
UNBOUND = 0.5
PER_CTA = ("rows", "elements")


def add_footprints(content: dict[str, Any], records: Records, profile: ProfileFile) -> None:
    """What one CTA of each measured kind takes of an SM, and how many CTAs there are; figures that no SM
    offers are left out."""
    for kind, footprint in sorted(records.footprints.items()):
        taken: dict[str, Any] = {name: footprint[name] for name in RESOURCES}
        offered = {name: getattr(profile.sm, name) for name in RESOURCES}
        if kind not in profile.kernels or not taken["threads"]:
            continue
        if kind == "combine_recv":
            taken["ctas"] = "experts_or_tokens"
        if profile.kernels[kind].ctas in PER_CTA:
            taken |= _per_cta(point for point in records.points if point.work.kind == kind)
        if all(footprint[name] <= offered[name] for name in RESOURCES):
            content.setdefault("kernels", {}).setdefault(kind, {}).update(taken)


def _per_cta(points: Iterable[MeasuredPoint]) -> dict[str, Any]:
    """Whether a launch has a CTA for so many rows or for so many elements: of both the one that differs
    less from point to point, elements where there are fewer rows than CTAs. Nothing where no launch was
    seen."""
    counted: dict[str, list[float]] = {name: [] for name in PER_CTA}
    for point in points:
        sizes = dict(point.work.dims)
        rows = sizes.get("rows", sizes.get("tokens", 1))
        if point.ctas:
            counted["rows"].append(rows / point.ctas)
            counted["elements"].append(rows * sizes.get("columns", 1) / point.ctas)
    if not counted["rows"]:
        return {}
    spread = {name: median(abs(log(v / median(vs))) for v in vs) for name, vs in counted.items()}
    steadier = min(PER_CTA, key=lambda name: spread[name])
    if median(counted["rows"]) < 1.0:
        steadier = "elements"
    return {"ctas": steadier, "per_cta": max(1, round(median(counted[steadier])))}


def add_signals(content: dict[str, Any], signals: Iterable[Mapping[str, Any]]) -> None:
    """What signals cost each kernel that polls or raises them, by its SMs and rows."""
    for record in sorted(signals, key=lambda r: (r["kind"], r["rows"], r["sms"])):
        entry = content.setdefault("kernels", {}).setdefault(record["kind"], {})
        ratio = rounded(record["ns"] / record["plain_ns"])
        at = {"sms": record["sms"], "rows": record["rows"], "ratio": ratio}
        entry.setdefault("signalled", []).append(at)


def add_kinds(
    content: dict[str, Any], holds: Iterable[Mapping[str, Any]], profile: ProfileFile
) -> None:
    """How kernels share out their work, where it is not as the profile below has it."""
    for hold in holds:
        grid = grid_kind(hold, profile)
        for kind in hold["kinds"] if grid is not None else ():
            if profile.kernels[kind].grid != grid:
                content.setdefault("kernels", {}).setdefault(kind, {})["grid"] = grid


def grid_kind(hold: Mapping[str, Any], profile: ProfileFile) -> GridKind | None:
    """*wave* where more CTAs are launched than the SMs hold at once. Else by how much later the kernel
    ended for each ns that some SMs were held: a *static* one by almost all of it, since CTAs that come
    late have a list of their own; a *dynamic* one by no more than the share of those SMs. None where
    neither is so, or where the kernel leaves SMs free or hardly needs them."""
    sm, sms = profile.sm, profile.gpu.sms
    room = SmResources(sm.threads, sm.registers, sm.smem_bytes, sm.cta_slots)
    cta = Footprint(1, *(hold[name] for name in RESOURCES))
    if hold["ctas"] > room.ctas(cta) * sms:
        return "wave"
    share, late = hold["held_sms"] / sms, _late(hold)
    if late > HALF_WAY:
        return "static"
    needed = hold["ctas"] == sms and late > share / 2
    return "dynamic" if needed and late <= share else None


def _late(hold: Mapping[str, Any]) -> float:
    return float(median((ns - hold["alone_ns"]) / held_ns for held_ns, ns in hold["holds"]))


def add_tails(content: dict[str, Any], records: Records, profile: ProfileFile, source: str) -> None:
    """The tail law of every kind of kernel that was measured on fewer SMs, by a limit or because others
    held some."""
    tails: dict[str, float] = {}
    for hold in records.holds:
        if grid_kind(hold, profile) == "dynamic":
            tail = rounded(held_tail(hold, profile.gpu.sms))
            tails |= dict.fromkeys(hold["kinds"], tail)
            source += f"; {hold['compute']} {tail} beside held SMs"
    ratios = tile_ratios(point for point in records.points if not point.held)
    for kind, found in sorted(ratios.items()):
        few = [value for value in found if value[0] < FEW_SHARE]
        values = few if len(few) >= LEAST_POINTS else found
        fit = fit_tail(values) if len(values) >= LEAST_POINTS else None
        if fit is not None and fit.estimates["tail"].half_width < UNBOUND:
            tails[kind] = rounded(fit.value("tail"))
            source += f"; {kind} {intervals(fit)}, error {fit.error:.3f}"
    if tails:
        content["static"] = {"kinds": tails, "source": source}


def held_tail(hold: Mapping[str, Any], num_sms: int) -> float:
    """The tail law's coefficient of a dynamic kernel: while SMs are held, its others do
    `share / tail_law(a, share)` of its usual work, and it ends later by the rest."""
    share = 1.0 - hold["held_sms"] / num_sms
    ratio = share / max(share, 1.0 - _late(hold))
    return float(min(1.0, max(LEAST_TAIL, (ratio**4 - share**4) / (1.0 - share**4))))
