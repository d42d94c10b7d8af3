"""`moe-overlap validate`: predicted beside measured, schedule by schedule."""

from __future__ import annotations

from pathlib import Path
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
from moe_overlap.commands.view import PERFETTO
from moe_overlap.errors import Refused

if TYPE_CHECKING:
    from moe_overlap.uncertain import Prediction
    from scenarios.resolve import Resolved
    from schedules.timeline import Timeline
    from viz.validate_page import Pairs

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


ELSEWHERE = "`validate --measured FILE` compares what `run -o FILE` wrote on a machine that has it"


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
    """Predict and run schedules; print predicted against measured, and write both on one axis: a page, or
    a trace (-o NAME.pftrace)."""
    from moe_overlap.output import check_writable, print_json, stdout, tell, writable
    from moe_overlap.validation import document, lines, ops_of, table_rows, worst_lines

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
    made = {
        name: _predicted(resolved, name, timeline, allow_refused)
        for name, (timeline, _) in runs.items()
    }
    pairs = {name: (made[name][1], timeline) for name, (timeline, _) in runs.items()}
    rows = table_rows({n: p for n, (p, _) in made.items()}, {n: t for n, (_, t) in runs.items()})
    if output is not None:
        _write(writable(output), f"{scenario}: predicted and measured", pairs)
    ops = ops_of(pairs)
    if as_json:
        print_json(document(scenario, rows, ops))
    else:
        stdout().print("\n".join([*lines(rows), *worst_lines(ops)]), soft_wrap=True)


def _write(target: Path, heading: str, pairs: Pairs) -> None:
    """A page, or by its ending a trace with a predicted and a measured track for each schedule."""
    from moe_overlap.errors import MachineLacks
    from viz.extra import MissingExtra
    from viz.perfetto import write_perfetto
    from viz.validate_page import write_validation

    if target.suffix not in PERFETTO:
        write_validation(target, heading, pairs)
        return
    tracks = {f"{name}, {one.origin}": one for name, pair in pairs.items() for one in pair}
    try:
        write_perfetto(target, tracks)
    except MissingExtra as error:
        raise MachineLacks(str(error)) from error


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
        raise Refused(f"--measured: {error}") from None
    for file, timeline in zip(files, timelines, strict=True):
        if timeline.origin != "measured":
            raise Refused(f"--measured: {file}: is {timeline.origin}; allowed: what `run -o` wrote")
    return {
        name: (timeline, (timeline.makespan_ns,))
        for name, timeline in zip(names, timelines, strict=True)
    }


def _ran(
    resolved: Resolved, names: list[str], repeats: int, layers: int, allow_refused: bool
) -> dict[str, tuple[Timeline, tuple[int, ...]]] | None:
    from moe_overlap.commands.run import measure
    from moe_overlap.errors import MachineLacks
    from moe_overlap.output import progress

    found = {}
    with progress() as report:
        for name in names:
            report(f"running {name}")
            try:
                result = measure(
                    resolved,
                    name,
                    kernels="production",
                    repeats=repeats,
                    layers=layers,
                    allow_refused=allow_refused,
                )
            except MachineLacks as error:
                raise MachineLacks(f"{error}; {ELSEWHERE}") from None
            if result is None:
                return None
            found[name] = (result.timeline, result.makespans_ns)
    return found


def _predicted(
    resolved: Resolved, name: str, measured: Timeline, allow_refused: bool
) -> tuple[Prediction, Timeline]:
    """The prediction for as many layers as were measured, behind a gate as they were."""
    from models.errors import InputError
    from moe_overlap.gated import ungated
    from moe_overlap.prediction import build
    from moe_overlap.uncertain import prediction

    layers = len({span.layer for span in measured.spans if span.layer >= 0}) or 1
    program = build(resolved, name, layers=layers, fold=False, allow_refused=allow_refused)
    if measured.program != program.name:
        raise InputError(
            "--measured",
            f"schedule of {name}'s file",
            measured.program,
            f"{program.name}, in order",
        )
    found, timeline = prediction(program, resolved.deployment.machine)
    return found, ungated(timeline)
