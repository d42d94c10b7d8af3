"""`moe-overlap run`: one schedule of a scenario on this machine."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moe_overlap.commands.arguments import (
    AllowRefused,
    JsonOption,
    OutputOption,
    ScenarioArgument,
    ScheduleOption,
    SetOption,
    check_settings,
)
from moe_overlap.formats import JSON

if TYPE_CHECKING:
    from executor.job import Measured
    from models.deployment import Deployment
    from scenarios.resolve import Resolved

KernelsOption = Annotated[
    str,
    typer.Option(
        "--kernels",
        help="production or triton (GPUs), reference (CPU, checked) or recording (a log).",
    ),
]
RepeatsOption = Annotated[int, typer.Option("--repeats", min=1, max=1000)]
LayersOption = Annotated[int, typer.Option("--layers", min=1, max=64, help="MoE layers to run.")]
FlushOption = Annotated[bool, typer.Option("--flush-l2", help="Flush L2 before every repeat.")]


def run(
    scenario: ScenarioArgument,
    schedule: ScheduleOption,
    output: OutputOption = None,
    kernels: KernelsOption = "production",
    repeats: RepeatsOption = 7,
    layers: LayersOption = 2,
    flush: FlushOption = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
    allow_refused: AllowRefused = False,
) -> None:
    """Run one schedule on this machine's GPUs; write its measured timeline (-o NAME.json)."""
    from moe_overlap.output import check_writable, print_json, progress, stdout, tell, writable
    from scenarios import load
    from scenarios.resolve import resolve
    from schedules.files import save_timeline

    resolved = resolve(load(scenario, check_settings(settings)))
    tell(resolved.notes())
    if output is not None:
        check_writable(output, JSON)
    with progress() as report:
        report(f"running {schedule}")
        measured = measure(
            resolved,
            schedule,
            kernels=kernels,
            repeats=repeats,
            layers=layers,
            flush=flush,
            allow_refused=allow_refused,
        )
    if measured is None:
        return
    if output is not None:
        save_timeline(measured.timeline, writable(output))
    if as_json:
        print_json(document(schedule, measured))
    else:
        stdout().print(summary(schedule, measured, output), soft_wrap=True)


def measure(
    resolved: Resolved,
    schedule: str,
    *,
    kernels: str,
    repeats: int,
    layers: int,
    flush: bool = False,
    allow_refused: bool = False,
) -> Measured | None:
    """The measured schedule, None on ranks other than 0. What the executor raises becomes the
    command's error: MachineLacks, Refused or RunFailed."""
    from executor.job import KERNEL_SETS, Job
    from executor.kernel_set import ExecutorError, MissingKernel, MissingResource, PeerLost
    from executor.ranks import run as run_ranks
    from models.errors import InputError
    from moe_overlap.errors import MachineLacks, Refused, RunFailed
    from moe_overlap.prediction import build

    chosen = next((name for name in KERNEL_SETS if name == kernels), None)
    if chosen is None:
        raise InputError("--kernels", "kernels", kernels, ", ".join(KERNEL_SETS))
    program = build(resolved, schedule, layers=layers, fold=False, allow_refused=allow_refused)
    job = Job(
        program,
        _deployment(resolved, schedule),
        resolved.batch,
        resolved.routing,
        layers,
        chosen,
        repeats=repeats,
        flush=flush,
    )
    try:
        return run_ranks(job)
    except MissingResource as error:
        raise MachineLacks(str(error)) from None
    except MissingKernel as error:
        raise Refused(str(error)) from None
    except PeerLost as error:
        raise RunFailed(str(error)) from None
    except ExecutorError as error:
        raise Refused(str(error)) from None


def _deployment(resolved: Resolved, schedule: str) -> Deployment:
    """The deployment with the fusion that the schedule's suffix asks for."""
    from schedules.builders.fused import prepare
    from schedules.builders.request import Request

    request = Request(
        resolved.built_name(resolved.choice(schedule)),
        resolved.deployment,
        resolved.batch,
        resolved.routing,
        layers=1,
        rules=resolved.rules,
    )
    return prepare(request).request.deployment


def document(schedule: str, measured: Measured) -> dict[str, Any]:
    """The result as JSON: microseconds of the repeats (null where nothing was timed: a checked or a
    recorded run), the error where it was checked, the facts."""
    from executor.job import RECORDING

    times = sorted(measured.makespans_ns)
    timed = measured.error is None and measured.timeline.machine != RECORDING
    return {
        "schema": 1,
        "schedule": schedule,
        "machine": measured.timeline.machine,
        "makespan_us": {
            "median": median(times) / 1000,
            "min": times[0] / 1000,
            "max": times[-1] / 1000,
        }
        if timed
        else None,
        "repeats": len(times),
        "clock_error_us": measured.timeline.clock_error_ns / 1000,
        "relative_error": measured.error,
        "facts": measured.facts,
    }


def summary(schedule: str, measured: Measured, output: object) -> str:
    """One line for the terminal."""
    from executor.job import RECORDING

    if measured.error is not None:
        text = f"{schedule}: output differs from the plain model by {measured.error:.2g} (relative)"
    elif measured.timeline.machine == RECORDING:
        text = f"{schedule}: {len(measured.timeline.spans)} ops recorded, nothing was run"
    else:
        times = sorted(measured.makespans_ns)
        text = (
            f"{schedule}: median {median(times) / 1000:.1f} µs of {len(times)} runs "
            f"[{times[0] / 1000:.1f}, {times[-1] / 1000:.1f}] on {measured.timeline.machine}"
        )
    return text if output is None else f"{text}, {output}"
