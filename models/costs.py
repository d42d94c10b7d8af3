"""Times of kernels alone on a machine, from its profile: measured points, interpolation, fits,
roofline, in this order, each figure labelled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.errors import InputError, choices
from models.exchange_costs import LABELS, ExchangeCosts, table_error
from models.footprints import footprint_of
from models.forms import Form, Peaks
from models.machine import Cost, CostLabel, Footprint
from models.pair_costs import Pair, pair_of, shares
from models.power_law import Sheet
from models.profile_schema import KernelKind, ProfileFile
from models.table_works import (
    TABLE_HIDDEN,
    TABLE_INNER,
    Place,
    places_of,
    point_work,
    variant_of,
)
from models.tables import LogTable, Point
from models.work import EXCHANGE_KINDS, Grid, Work


@dataclass(frozen=True, slots=True)
class _Whole:
    """A time on all SMs with its label and error."""

    ns: float
    label: CostLabel
    error: float


class ProfileCosts:
    """`models.machine.Costs` of a hardware profile. Answers are remembered by value."""

    def __init__(self, profile: ProfileFile, points: Mapping[str, Sequence[Point]]) -> None:
        self._profile = profile
        self._points = points
        self._peaks = peaks_of(profile)
        self._exchanges = ExchangeCosts(profile, points)
        self._ratios: dict[str, LogTable] = {}
        self._alone: dict[tuple[Work, Grid, int], Cost] = {}
        self._unlimited: dict[tuple[Work, str], tuple[_Whole, Form, int, float]] = {}

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """Time of `work` alone on `sms` SMs. InputError for a kind or format that
        the profile does not list."""
        key = (work, grid, sms)
        cost = self._alone.get(key)
        if cost is None:
            cost = self._alone[key] = self._price(work, grid, sms)
        return cost

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """CTAs and resources of the launch."""
        if work.kind == "spin":
            return Footprint(work.dim("ctas"))
        return footprint_of(work, grid, self._entry(work.kind), self._peaks.sms)

    def _price(self, work: Work, grid: Grid, sms: int) -> Cost:
        if sms < 1:
            raise ValueError(f"{work.kind}: no time on {sms} SMs")
        if work.kind in EXCHANGE_KINDS and work.kind != "collective":
            return self._exchanges.alone(work, min(sms, self._peaks.sms))
        known = self._unlimited.get((work, grid.kind))
        if known is None:
            known = self._unlimited[work, grid.kind] = self._without_limit(work, grid)
        whole, form, most, full = known
        here = form.ns(work, self._peaks, min(sms, most), grid.kind)
        return Cost(max(1, round(whole.ns * here / full)), whole.label, whole.error)

    def _without_limit(self, work: Work, grid: Grid) -> tuple[_Whole, Form, int, float]:
        """Time on all SMs, its form, the SMs that it occupies there, and the form's time on those."""
        pair = pair_of(work)
        whole = self._pair_part(pair, work) if pair else self._whole(work)
        form = self._form(work)
        most = self._most_sms(work, grid)
        return whole, form, most, form.ns(work, self._peaks, most, grid.kind)

    def _most_sms(self, work: Work, grid: Grid) -> int:
        """SMs that the launch occupies when nothing limits it: what its table was measured on. A launch
        of few CTAs is no slower for holding no more SMs than it has CTAs."""
        return min(self._peaks.sms, self.footprint(work, Grid(kind=grid.kind)).ctas)

    def _whole(self, work: Work) -> _Whole:
        """Time on all SMs: the form, times the table's ratio to it where there is a table."""
        form = self._form(work)
        ns = form.ns(work, self._peaks, self._peaks.sms, "dynamic")
        for place in places_of(work):
            if place.table in self._points and place.x > 0 and min(place.key) > 0:
                return self._scaled(place, ns, form)
        return _Whole(ns, form.label, form.error)

    def _scaled(self, place: Place, ns: float, form: Form) -> _Whole:
        reading = self._ratio(place.table).at(place.key, place.x)
        ns *= math.exp(reading.value)
        section = self._profile.tables[place.table]
        if not place.same:
            return _Whole(ns, "fitted", max(section.transfer, form.error))
        label = LABELS[reading.where]
        error = table_error(section, label)
        return _Whole(ns, label, max(error, form.error) if label == "fitted" else error)

    def _ratio(self, name: str) -> LogTable:
        """Log of each point's time over the form's; repeated points are averaged."""
        table = self._ratios.get(name)
        if table is None:
            logs: dict[tuple[tuple[float, ...], float], list[float]] = {}
            for point in self._points[name]:
                size = point_work(name, point.key, point.x)
                expected = self._form(size).ns(size, self._peaks, self._peaks.sms, "dynamic")
                logs.setdefault((point.key, point.x), []).append(
                    math.log(point.us * 1e3 / expected)
                )
            means = {place: sum(values) / len(values) for place, values in logs.items()}
            table = self._ratios[name] = LogTable(means)
        return table

    def _pair_part(self, pair: Pair, work: Work) -> _Whole:
        """One kernel's share of the grouped GEMM pair that the table times as a whole."""
        form = self._form_named(pair.table)
        total = pair.work
        ns = form.ns(total, self._peaks, self._peaks.sms, "dynamic")
        same = (pair.hidden, pair.inner) == (TABLE_HIDDEN, TABLE_INNER)
        place = Place(pair.table, (pair.active,), pair.rows / max(1, pair.active), same)
        known = pair.rows > 0 and pair.table in self._points
        whole = self._scaled(place, ns, form) if known else _Whole(ns, form.label, form.error)
        act = self._form_named("elementwise")
        traffic = pair.rows * pair.inner * (4 + pair.bits / 8)
        act_ns = traffic / (act.memory * self._peaks.hbm_gbps)
        return _Whole(shares(pair, form.floor_ns, whole.ns, act_ns), whole.label, whole.error)

    def _entry(self, kind: str) -> KernelKind:
        entry = self._profile.kernels.get(kind)
        if entry is None:
            raise InputError(self._profile.name, "kernels", kind, choices(self._profile.kernels))
        return entry

    def _form(self, work: Work) -> Form:
        family, variant = self._entry(work.kind).form, variant_of(work)
        specific = f"{family}.{variant}"
        return self._form_named(specific if specific in self._profile.forms else family)

    def _form_named(self, name: str) -> Form:
        entry = self._profile.forms.get(name)
        if entry is None:
            raise InputError(self._profile.name, "forms", name, choices(self._profile.forms))
        return Form(
            entry.floor_us * 1e3, entry.compute, entry.memory, entry.p, entry.error, entry.label
        )


def peaks_of(profile: ProfileFile) -> Peaks:
    """The data-sheet figures that forms refer to."""
    gpu = profile.gpu
    rates = tuple((dtype, tflops * 1e3) for dtype, tflops in sorted(gpu.peak_tflops.items()))
    static = profile.static
    tails = tuple(sorted(static.kinds.items()))
    return Peaks(rates, gpu.hbm_gbps, gpu.sms, gpu.saturating_sms, static.tail, tails)


def sheet_of(profile: ProfileFile) -> Sheet:
    """The data-sheet rates that say what bounds a kernel."""
    peaks = peaks_of(profile)
    return Sheet(peaks.flops_per_ns, peaks.hbm_gbps, peaks.sms)
