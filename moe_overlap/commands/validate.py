"""`moe-overlap validate`: predicted beside measured, schedule by schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from moe_overlap.errors import Refused
from moe_overlap.formats import PAGES, PERFETTO

if TYPE_CHECKING:
    from moe_overlap.uncertain import Prediction
    from moe_overlap.validation import HostChoice, OwnHost, Row
    from scenarios.resolve import Resolved
    from schedules.timeline import Timeline
    from viz.validate_page import Pairs

    # Measured timelines and makespans of the repeats in ns, by schedule.
    Runs = dict[str, tuple[Timeline, tuple[int, ...]]]

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

HostOption = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="HOST",
        help="Predict with the host's speed as it was `measured` beside each schedule by a probe, or as "
        "the `profile` has it.",
    ),
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
    host: HostOption = "measured",
) -> None:
    """Predict and run schedules; print predicted against measured, and write both on one axis: a page, or
    a trace (-o NAME.pftrace)."""
    from moe_overlap.output import check_writable, print_json, stdout, tell, writable
    from moe_overlap.validation import document, host_lines, lines, ops_of, worst_lines

    wanted = _host_choice(host)
    resolved = _resolved(scenario, check_settings(settings), profile, other_gpu)
    tell(resolved.notes())
    if output is not None:
        check_writable(output, (*PAGES, *PERFETTO))
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
    rows, pairs = _compared(resolved, runs, allow_refused, wanted)
    hosts = host_lines(rows, wanted)
    if output is not None:
        ratios = {row.schedule: row.host_ratio for row in rows if row.host_ratio is not None}
        _write(writable(output), f"{scenario}: predicted and measured", pairs, hosts, ratios)
    ops = ops_of(pairs)
    if as_json:
        print_json(document(scenario, rows, ops))
    else:
        stdout().print("\n".join([*lines(rows), *hosts, *worst_lines(ops)]), soft_wrap=True)


def _compared(
    resolved: Resolved, runs: Runs, allow_refused: bool, host: HostChoice
) -> tuple[list[Row], Pairs]:
    """A row of each schedule, and its predicted and measured timelines."""
    from moe_overlap.validation import table_rows

    made = {
        name: _predicted(resolved, name, timeline, allow_refused, host)
        for name, (timeline, _) in runs.items()
    }
    rows = table_rows(
        {name: found for name, (found, *_) in made.items()},
        {name: times for name, (_, times) in runs.items()},
        {name: own for name, (*_, own) in made.items() if own is not None},
    )
    return rows, {name: (made[name][1], timeline) for name, (timeline, _) in runs.items()}


def _host_choice(host: str) -> HostChoice:
    from models.errors import InputError

    if host == "measured":
        return "measured"
    if host != "profile":
        raise InputError("--host", "host", host, "measured, profile")
    return "profile"


def _write(
    target: Path, heading: str, pairs: Pairs, notes: Sequence[str], ratios: Mapping[str, float]
) -> None:
    """A page, or by its ending a trace with a predicted and a measured track for each schedule; both say
    whose host was predicted with."""
    from moe_overlap.errors import MachineLacks
    from viz.extra import MissingExtra
    from viz.perfetto import write_perfetto
    from viz.validate_page import write_validation

    if target.suffix not in PERFETTO:
        write_validation(target, heading, pairs, notes)
        return
    tracks: dict[str, Timeline] = {}
    for name, (predicted, measured) in pairs.items():
        host = f" (host {ratios[name]:.2f} of the profile's)" if name in ratios else ""
        tracks |= {f"{name}, predicted{host}": predicted, f"{name}, measured": measured}
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


def _given(names: list[str], files: list[Path]) -> Runs:
    from executor.job import RECORDING, REFERENCE
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
        if not timeline.makespan_ns:
            raise Refused(f"--measured: {file}: lasts no time; allowed: what `run -o` wrote")
        if timeline.machine in (RECORDING, REFERENCE):
            raise Refused(
                f"--measured: {file}: is of the {timeline.machine} kernels, which time nothing; "
                "allowed: what `run -o` wrote with --kernels production or triton"
            )
    return {
        name: (timeline, (timeline.makespan_ns,))
        for name, timeline in zip(names, timelines, strict=True)
    }


def _ran(
    resolved: Resolved, names: list[str], repeats: int, layers: int, allow_refused: bool
) -> Runs | None:
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
    resolved: Resolved, name: str, measured: Timeline, allow_refused: bool, host: HostChoice
) -> tuple[Prediction, Timeline, OwnHost | None]:
    """The prediction for as many layers as were measured, behind a gate as they were; and of what host,
    if it was probed and not the profile's is wanted."""
    from models.errors import InputError
    from models.host import on_host, slowest
    from moe_overlap.gated import makespan_ns, predicted, ungated
    from moe_overlap.prediction import build
    from moe_overlap.uncertain import prediction
    from moe_overlap.validation import OwnHost

    layers = len({span.layer for span in measured.spans if span.layer >= 0}) or 1
    program = build(resolved, name, layers=layers, fold=False, allow_refused=allow_refused)
    if measured.program != program.name:
        raise InputError(
            "--measured",
            f"schedule of {name}'s file",
            measured.program,
            f"{program.name}, in order",
        )
    profile = resolved.deployment.machine
    probes = measured.host_probes if host == "measured" else ()
    machine, ratio = on_host(profile, probes)
    found, timeline = prediction(program, machine)
    own = None
    if ratio is not None:
        own = OwnHost(ratio, slowest(probes).rank, makespan_ns(predicted(program, profile)))
    return found, ungated(timeline), own
