"""`moe-overlap validate`: predicted beside measured, schedule by schedule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from moe_overlap.commands.arguments import (
    AllowRefused,
    JsonOption,
    OutputOption,
    ScenarioArgument,
    SetOption,
    check_settings,
)
from moe_overlap.commands.run import LayersOption, RepeatsOption
from moe_overlap.errors import Refused

if TYPE_CHECKING:
    from scenarios.resolve import Resolved
    from schedules.timeline import Timeline

SchedulesOption = Annotated[
    list[str] | None,
    typer.Option("--schedule", "-s", help="A schedule's name; the scenario's own by default."),
]
MeasuredOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="Timelines that `run -o` wrote, one a schedule in the same order; nothing is run.",
    ),
]
ProfileOption = Annotated[
    str,
    typer.Option("--profile", help="Predict with this profile instead of the scenario's hardware."),
]
OtherGpuOption = Annotated[
    bool, typer.Option("--other-gpu", help="Take a profile of another GPU all the same.")
]


@dataclass(frozen=True)
class Row:
    """One schedule: microseconds of all layers, predicted and measured, and both gains over the
    first schedule, `t / t_first - 1`; `call` says whether the measured gain is outside the noise."""

    schedule: str
    predicted_us: float
    measured_us: float
    low_us: float
    high_us: float
    error: float
    predicted_gain: float
    measured_gain: float
    call: str


def validate(
    scenario: ScenarioArgument,
    schedules: SchedulesOption = None,
    measured: MeasuredOption = None,
    output: OutputOption = None,
    repeats: RepeatsOption = 7,
    layers: LayersOption = 2,
    settings: SetOption = None,
    as_json: JsonOption = False,
    allow_refused: AllowRefused = False,
    profile: ProfileOption = "",
    other_gpu: OtherGpuOption = False,
) -> None:
    """Predict and run schedules; print predicted against measured, and write both on one axis."""
    from moe_overlap.output import check_writable, print_json, stdout, tell, writable

    resolved = _resolved(scenario, check_settings(settings), profile, other_gpu)
    tell(resolved.idle_keys())
    if output is not None:
        check_writable(output)
    names = schedules or _runnable(resolved, allow_refused)
    if not names:
        raise Refused(
            f"{scenario}: the rules refuse every schedule of it; --allow-refused runs them"
        )
    runs = (
        _given(names, measured)
        if measured
        else _ran(resolved, names, repeats, layers, allow_refused)
    )
    if runs is None:
        return
    pairs = {
        name: (_predicted(resolved, name, timeline, allow_refused), timeline)
        for name, (timeline, _) in runs.items()
    }
    rows = table_rows({n: p for n, (p, _) in pairs.items()}, {n: t for n, (_, t) in runs.items()})
    if output is not None:
        from viz.validate_page import write_validation

        write_validation(writable(output), f"{scenario}: predicted and measured", pairs)
    if as_json:
        print_json({"schema": 1, "scenario": scenario, "schedules": [asdict(row) for row in rows]})
    else:
        stdout().print("\n".join(lines(rows)), soft_wrap=True)


def _resolved(scenario: str, settings: list[str], profile: str, other_gpu: bool) -> Resolved:
    """The scenario, on the machine of `profile` if there is one."""
    from models.profile_match import load_same_gpu
    from scenarios import load
    from scenarios.resolve import resolve

    loaded = load(scenario, settings)
    if not profile:
        return resolve(loaded)
    own = resolve(loaded).deployment.machine
    return resolve(loaded, machine=load_same_gpu(profile, own, other_gpu=other_gpu))


def _runnable(resolved: Resolved, allow_refused: bool) -> list[str]:
    """The scenario's schedules that the rules let run."""
    from moe_overlap.prediction import refusal_of

    return [
        choice.name
        for choice in resolved.schedules
        if allow_refused or refusal_of(resolved, choice) is None
    ]


def _given(names: list[str], files: list[Path]) -> dict[str, tuple[Timeline, tuple[int, ...]]]:
    from models.errors import InputError
    from schedules.files import load_timeline

    if len(names) != len(files):
        raise InputError(
            "--measured", "files", len(files), f"one for each of {len(names)} schedules: {names}"
        )
    try:
        timelines = [load_timeline(file) for file in files]
    except ValueError as error:
        raise InputError("--measured", "file", "", str(error)) from None
    return {
        name: (timeline, (timeline.makespan_ns,))
        for name, timeline in zip(names, timelines, strict=True)
    }


def _ran(
    resolved: Resolved, names: list[str], repeats: int, layers: int, allow_refused: bool
) -> dict[str, tuple[Timeline, tuple[int, ...]]] | None:
    from moe_overlap.commands.run import measure
    from moe_overlap.output import progress

    found = {}
    with progress() as report:
        for name in names:
            report(f"running {name}")
            result = measure(
                resolved,
                name,
                kernels="production",
                repeats=repeats,
                layers=layers,
                allow_refused=allow_refused,
            )
            if result is None:
                return None
            found[name] = (result.timeline, result.makespans_ns)
    return found


def _predicted(resolved: Resolved, name: str, measured: Timeline, allow_refused: bool) -> Timeline:
    """The prediction for as many layers as were measured."""
    from moe_overlap.prediction import simulate

    layers = len({span.layer for span in measured.spans if span.layer >= 0}) or 1
    return simulate(resolved, name, layers=layers, fold=False, allow_refused=allow_refused)


def table_rows(predicted: dict[str, Timeline], measured: dict[str, tuple[int, ...]]) -> list[Row]:
    """A row a schedule; the first one is what gains are over. A measured gain is too close to call
    when the two schedules' repeats overlap."""
    first = next(iter(predicted))
    base, base_times = predicted[first].makespan_ns, measured[first]
    rows = []
    for name, timeline in predicted.items():
        times = measured[name]
        middle = median(times)
        apart = max(times) < min(base_times) or min(times) > max(base_times)
        rows.append(
            Row(
                schedule=name,
                predicted_us=timeline.makespan_ns / 1000,
                measured_us=middle / 1000,
                low_us=min(times) / 1000,
                high_us=max(times) / 1000,
                error=timeline.makespan_ns / middle - 1,
                predicted_gain=timeline.makespan_ns / base - 1,
                measured_gain=middle / median(base_times) - 1,
                call="" if name == first else "clear" if apart else "too close to call",
            )
        )
    return rows


def lines(rows: list[Row]) -> list[str]:
    """The table, and the worst error of a gain."""
    text = [
        f"{'schedule':<14}{'predicted µs':>14}{'measured µs':>13}{'repeats µs':>21}{'error':>9}"
        f"{'gain pred.':>12}{'gain meas.':>12}"
    ]
    for r in rows:
        text.append(
            f"{r.schedule:<14}{r.predicted_us:>14.1f}{r.measured_us:>13.1f}"
            f"{f'[{r.low_us:.1f}, {r.high_us:.1f}]':>21}{r.error:>+9.1%}"
            f"{r.predicted_gain:>+12.1%}{r.measured_gain:>+12.1%}  {r.call}"
        )
    worst = max(rows, key=lambda r: abs(r.predicted_gain - r.measured_gain))
    points = worst.predicted_gain - worst.measured_gain
    text.append(f"worst error of a gain: {worst.schedule}, {100 * points:+.1f} points")
    return text
