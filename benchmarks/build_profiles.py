"""Builds the point tables and fits of the library's hardware profiles from a folder of kernel timings.

    python -m benchmarks.build_profiles FOLDER

FOLDER holds CSV extracts of NVIDIA AIConfigurator's measured kernels (Apache-2.0, see NOTICE) and
`machines.csv`. Each GPU gets CSV tables beside `models/library/hardware/_GPU.yaml`, which is written
anew with the fitted forms, their mean error, and the error of table points left out.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from benchmarks.profile_tables import GPUS, Gpu, Table, tables_of
from models.forms import Form, Peaks
from models.table_works import point_work
from models.tables import Key, LogTable
from models.work import Work

HARDWARE = Path(__file__).parents[1] / "models" / "library" / "hardware"
ATTRIBUTION = "NVIDIA AIConfigurator core 0.12.0 (Apache-2.0)"
EXCHANGES = ("dispatch", "combine", "notify", "dispatch_ll", "combine_ll")
# Fewer SMs than this share of them cannot saturate HBM; an estimate, to be calibrated.
SATURATING_SHARE = 0.6
# Spread of one collection against the next, where both exist.
MEASURED_ERROR = 0.05
# A kernel of other fixed sizes than the table's; an estimate.
TRANSFER_ERROR = 0.2


def fitted(table: Table, name: str, peaks: Peaks) -> Form:
    """Least squares of log times over floor, efficiencies and p, within their bounds."""
    works = [(point_work(name, key, x), us) for (key, x), us in table.points.items()]

    def residuals(v: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        form = Form(math.exp(v[0]), v[1], v[2], v[3], 0.0, "fitted")
        return np.array([log_ratio(form, size, us, peaks) for size, us in works])

    start, low, high = [9.0, 0.6, 0.7, 2.0], [6.0, 0.05, 0.05, 0.7], [10.3, 1.0, 1.0, 6.0]
    best = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.2).x
    error = float(np.mean(np.abs(np.exp(residuals(best)) - 1)))
    floor, compute, memory, p = (float(value) for value in best)
    return Form(math.exp(floor), compute, memory, p, error, "fitted")


def log_ratio(form: Form, size: Work, us: float, peaks: Peaks) -> float:
    """Log of a point's time over the form's."""
    return math.log(us * 1e3 / form.ns(size, peaks, peaks.sms, "dynamic"))


Values = Mapping[tuple[Key, float], float]


def left_out_error(values: Values) -> float:
    """Mean relative error of the inner points of each series, each read from all others."""
    inner = [(key, x) for key, xs in _series(values).items() for x in xs[1:-1]]
    errors = []
    for held in inner:
        table = LogTable({place: value for place, value in values.items() if place != held})
        errors.append(abs(math.exp(table.at(*held).value - values[held]) - 1))
    return sum(errors) / len(errors)


def beyond_error(values: Values) -> float:
    """Mean relative error of the last fifth of each series, read from the rest."""
    series = _series(values).items()
    held = {(key, x) for key, xs in series if len(xs) > 2 for x in xs[-max(1, len(xs) // 5) :]}
    table = LogTable({place: value for place, value in values.items() if place not in held})
    errors = [abs(math.exp(table.at(*place).value - values[place]) - 1) for place in held]
    return sum(errors) / len(errors)


def _series(values: Values) -> dict[Key, list[float]]:
    """Places along each series, ascending."""
    series: dict[Key, list[float]] = {}
    for key, x in sorted(values):
        series.setdefault(key, []).append(x)
    return series


def linear_ratios(table: Table) -> dict[tuple[Key, float], float]:
    """Log of each point's time over a floor plus a rate fitted to its series."""
    ratios: dict[tuple[Key, float], float] = {}
    for key in {key for key, _ in table.points}:
        places = [place for place in table.points if place[0] == key]
        xs = np.array([x for _, x in places])
        us = np.array([table.points[place] for place in places])
        columns = np.stack([np.ones_like(xs), xs]).T / us[:, None]
        (floor, rate), *_ = np.linalg.lstsq(columns, np.ones_like(us), rcond=None)
        expected = np.maximum(floor + rate * xs, us.min())
        ratios |= dict(zip(places, (float(v) for v in np.log(us / expected)), strict=True))
    return ratios


def write_table(name: str, gpu: Gpu, kind: str, table: Table) -> str:
    """The CSV file of one table; returns its path as the profile names it."""
    file = HARDWARE / name / f"{kind.replace('.', '_')}.csv"
    file.parent.mkdir(exist_ok=True)
    lines = [f"# {ATTRIBUTION}, {gpu.system}/{table.source}", ",".join((*table.key, table.x, "us"))]
    for (key, x), us in table.points.items():
        lines.append(
            ",".join(f"{value:.5g}" if value < 1e5 else f"{value:.0f}" for value in (*key, x))
            + f",{us:.5g}"
        )
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{name}/{file.name}"


def peaks_of(row: Mapping[str, str]) -> Peaks:
    """Data-sheet figures of one row of `machines.csv`."""
    sms = int(row["sms"])
    rates = tuple((dtype, tflops * 1e3) for dtype, tflops in tflops_of(row).items())
    return Peaks(rates, float(row["hbm_gbps"]), sms, round(SATURATING_SHARE * sms))


def tflops_of(row: Mapping[str, str]) -> dict[str, float]:
    """Peaks by dtype; a GPU without a format has none."""
    found = {dtype: row[f"{dtype}_tflops"] for dtype in ("bf16", "fp8", "fp4")}
    return {dtype: float(text) for dtype, text in found.items() if text}


def gpu_lines(gpu: Gpu, row: Mapping[str, str], peaks: Peaks) -> list[str]:
    """The `gpu` section."""
    rates = ", ".join(f"{dtype}: {tflops:g}" for dtype, tflops in tflops_of(row).items())
    return [
        "gpu:",
        f"  name: {row['gpu']}",
        f"  sms: {row['sms']}",
        f"  compute_capability: [{gpu.capability[0]}, {gpu.capability[1]}]",
        f"  hbm_gib: {row['hbm_gib']}",
        f"  hbm_gbps: {row['hbm_gbps']}",
        f"  peak_tflops: {{{rates}}}",
        f"  saturating_sms: {peaks.saturating_sms}",
        f"  source: '{row['source']}; saturating_sms is an estimate'",
    ]


def form_line(name: str, form: Form, table: Table) -> str:
    """One entry of `forms`."""
    kind = name.replace(".absorbed", ".mla").replace(".plain", ".mla")
    return (
        f"  {kind}: {{floor_us: {form.floor_ns / 1e3:.2f}, compute: {form.compute:.3f}, "
        f"memory: {form.memory:.3f}, p: {form.p:.2f}, error: {form.error:.3f}, label: fitted, "
        f"source: fit of {len(table.points)} points of {table.source.split(',')[0]}}}"
    )


def table_line(name: str, file: str, table: Table, values: Values) -> str:
    """One entry of `tables`, with its errors from the points left out."""
    inner, outer = left_out_error(values), beyond_error(values)
    return (
        f"  {name}: {{file: {file}, key: [{', '.join(table.key)}], x: {table.x}, "
        f"measured: {MEASURED_ERROR}, error: {inner:.3f}, outside: {outer:.3f}, "
        f"transfer: {TRANSFER_ERROR}, "
        f'source: "{ATTRIBUTION}, {table.source}"}}'
    )


def build(folder: Path, name: str, gpu: Gpu, row: Mapping[str, str]) -> None:
    """All files of one GPU."""
    peaks = peaks_of(row)
    forms, tables = ["forms:"], ["tables:"]
    for kind, table in tables_of(folder, gpu).items():
        values = linear_ratios(table)
        if kind not in EXCHANGES:
            form = fitted(table, kind, peaks)
            forms.append(form_line(kind, form, table))
            values = {
                (key, x): log_ratio(form, point_work(kind, key, x), us, peaks)
                for (key, x), us in table.points.items()
            }
        tables.append(table_line(kind, write_table(name, gpu, kind, table), table, values))
    head = [
        f"# Written by benchmarks/build_profiles.py from {ATTRIBUTION}; do not edit.",
        f"base: {gpu.base}",
    ]
    lines = [*head, *gpu_lines(gpu, row, peaks), *forms, *tables]
    (HARDWARE / f"_{name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(folder: Path) -> None:
    """Build every GPU's files."""
    with (folder / "machines.csv").open(encoding="utf-8", newline="") as file:
        machines = {row["gpu"]: row for row in csv.DictReader(file)}
    for name, gpu in GPUS.items():
        build(folder, name, gpu, machines[gpu.machine])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
