"""`moe-overlap calibrate`: measure this machine's GPUs and write their hardware profile."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from moe_overlap.errors import MachineLacks, Refused, RunFailed

if TYPE_CHECKING:
    from executor.calibrate.store import Record
    from executor.job import GpuSet
    from models.calibrated_profile import Calibrated, Earlier

ProfileOption = Annotated[
    Path, typer.Option("-o", "--output", help="Profile to write (YAML).", show_default=False)
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="A coarser grid: about a third of the time.")
]
MinutesOption = Annotated[
    float, typer.Option("--minutes", min=0.0, help="Stop after this long; 0 measures nothing.")
]
GpusOption = Annotated[int, typer.Option("--gpus", min=0, help="GPUs to use; 0: all there are.")]
BaseOption = Annotated[
    str, typer.Option("--base", help="Library profile to build on. Default: by the GPU's name.")
]
RecordsOption = Annotated[
    Path | None,
    typer.Option("--records", help="File of raw records; goes on from what it holds."),
]
AgainstOption = Annotated[
    Path | None,
    typer.Option(
        "--against",
        help="Profile of another calibration, or its points alone (.csv): how far the points of a kind "
        "differ together is stated as what their errors share, how far the power laws differ as theirs.",
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, help="Seed of the hold-out and of weights.")
]
PrefillOption = Annotated[
    str, typer.Option("--prefill", help="Scenario whose prefill layers are measured.")
]
CompileOption = Annotated[
    bool,
    typer.Option(
        "--compile/--no-compile",
        help="Compile GEMMs ahead, in many processes; not needed when DeepGEMM's cache has them.",
    ),
]
DecodeOption = Annotated[
    str, typer.Option("--decode", help="Scenario whose decode layers are measured.")
]
KernelsOption = Annotated[
    str, typer.Option("--kernels", help="Kernel set to measure: production or triton.")
]


def calibrate(
    output: ProfileOption,
    quick: QuickOption = False,
    minutes: MinutesOption = 10.0,
    gpus: GpusOption = 0,
    base: BaseOption = "",
    records: RecordsOption = None,
    against: AgainstOption = None,
    seed: SeedOption = 0,
    prefill: PrefillOption = "deepseek-v3-h200-ep2-prefill",
    decode: DecodeOption = "deepseek-v3-h200-ep2-decode",
    compile_ahead: CompileOption = True,
    kernels: KernelsOption = "production",
) -> None:
    """Measure this machine's GPUs and write their hardware profile."""
    from moe_overlap.output import stdout, writable
    from schedules.files import write_beside

    target = writable(output)
    store = records or target.with_suffix(".records.jsonl")
    _require_apart(target, store, against)
    _require_fit_library()
    earlier = _earlier(against)
    failed: tuple[str, ...] = ()
    if minutes:
        if store.exists():
            _records(store)
        scenarios = {"prefill": prefill, "decode": decode}
        asked = Asked(scenarios, minutes, quick, seed, compile_ahead, _on_gpu(kernels), base)
        failed = _measured(store, gpus, asked)
    made = _fitted(store, target, base, seed, earlier)
    write_beside(writable(target.with_name(made.points_file)), made.points)
    write_beside(target, made.profile)
    console = stdout()
    for line in (*_summary(made), *(f"not measured: {name}" for name in failed)):
        console.print(line, soft_wrap=True)
    console.print(f"profile: {target}", soft_wrap=True)


def _require_apart(target: Path, store: Path, against: Path | None) -> None:
    """What is read may not be written over: the profile, or the points beside it."""
    from models.profile import POINTS_SUFFIX

    points = target.with_name(target.stem + POINTS_SUFFIX)
    for name, read in (("--records", store), ("--against", against)):
        for written in (target, points):
            if read is not None and read.resolve() == written.resolve():
                raise Refused(f"-o {target}: would write over {written}, the file of {name}")


def _require_fit_library() -> None:
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise MachineLacks(
            "fitting needs scipy; install it with: pip install 'moe-overlap[calibrate]'"
        )


class Asked(NamedTuple):
    """What to measure, for how long."""

    scenarios: dict[str, str]
    minutes: float
    quick: bool
    seed: int
    compile_ahead: bool
    kernels: GpuSet
    base: str


def _on_gpu(kernels: str) -> GpuSet:
    from executor.job import ON_GPU
    from models.errors import InputError

    for name in ON_GPU:
        if name == kernels:
            return name
    raise InputError("--kernels", "kernels", kernels, ", ".join(ON_GPU))


def _measured(store: Path, gpus: int, asked: Asked) -> tuple[str, ...]:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MachineLacks(
            "measuring needs torch; install it with: pip install 'moe-overlap[executor]'"
        )
    import torch

    from executor.calibrate.bench import Options, calibrate_gpus
    from executor.calibrate.run import Progress
    from executor.kernel_set import ExecutorError, MissingResource
    from models.calibrated_profile import base_profile
    from moe_overlap.output import progress

    ranks = gpus or torch.cuda.device_count()
    if not ranks or ranks > torch.cuda.device_count():
        raise MachineLacks(
            f"calibrate needs {ranks or 'at least one'} CUDA GPU(s); "
            f"this machine has {torch.cuda.device_count()}"
        )
    began = time.monotonic()
    base = asked.base or base_profile(torch.cuda.get_device_name(), ranks)
    options = Options(store, ranks, *asked[:-1], base)
    with progress() as report:

        def told(state: Progress) -> None:
            trouble = f", {len(state.failed)} failed" if state.failed else ""
            line = f"{state.done}/{state.total} {state.now}{trouble}"
            report(line)
            if not sys.stderr.isatty():
                typer.echo(f"[{time.monotonic() - began:6.1f} s] {line}", err=True)

        try:
            return calibrate_gpus(options, told)
        except MissingResource as error:
            raise MachineLacks(str(error)) from error
        except ExecutorError as error:
            raise RunFailed(str(error)) from error


def _earlier(file: Path | None) -> Earlier:
    from models.calibrated_profile import Earlier
    from models.measured import read_points
    from models.profile import load_calibration

    if file is None:
        return Earlier()
    return Earlier(read_points(file)) if file.suffix == ".csv" else Earlier(*load_calibration(file))


def _records(store: Path) -> tuple[Record, ...]:
    """The file's records, each of which may be one; a last line that was cut off is told."""
    from executor.calibrate.store import Store
    from executor.kernel_set import ExecutorError
    from models.calibration_schema import checked
    from moe_overlap.output import tell

    if not store.exists():
        raise Refused(f"{store}: there are no records to make a profile of")
    try:
        kept = Store(store)
    except ExecutorError as error:
        raise Refused(str(error)) from error
    if kept.cut_off:
        tell([f"{store}:{kept.cut_off}: cut off, so that its task counts as not measured"])
    return checked(kept.records(), str(store), kept.places())


def _fitted(store: Path, target: Path, base: str, seed: int, earlier: Earlier) -> Calibrated:
    from models.calibrated_profile import base_profile, calibrated
    from models.calibration_records import machine_of, sorted_out
    from models.costs import sheet_of
    from models.profile import load_profile

    raw = _records(store)
    if not any(record.get("what") == "alone" for record in raw):
        raise Refused(f"{store}: holds no kernel's time; measure for longer")
    machine = machine_of(raw)
    base = base or base_profile(machine.get("gpu", ""), machine.get("ranks", 1))
    records = sorted_out(raw, seed, str(store), sheet_of(load_profile(base)[0]))
    return calibrated(
        records,
        name=target.stem,
        base=base,
        seed=seed,
        source=_source(records.machine),
        earlier=earlier,
    )


def _source(machine: dict[str, object]) -> str:
    """Where the figures come from, in a line."""
    libraries = machine.get("libraries")
    versions = libraries if isinstance(libraries, dict) else {}
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    ours = " --kernels triton" if machine.get("kernels") == "triton" else ""
    return (
        f"moe-overlap calibrate{ours} on {machine.get('ranks', 1)} x "
        f"{machine.get('gpu', 'unknown GPU')}; "
        f"torch {machine.get('torch', 'unknown')}, CUDA {machine.get('cuda', 'unknown')}"
        + (f", {names}" if names else "")
    )


def _summary(made: Calibrated) -> list[str]:
    """Held-out errors, a line each."""
    lines = ["held out, relative error:        count  median   worst"]
    for title, entries in (("alone", made.kernels), ("beside", made.pairs)):
        lines += [
            f"  {title:<7}{entry.name:<24}{entry.count:>5}{entry.median:>8.1%}{entry.worst:>8.1%}"
            for entry in entries
        ]
    return lines
