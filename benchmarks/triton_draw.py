"""Whole programs on the Triton set that nobody has measured: drawn by a seed, predicted, then compared.

    python -m benchmarks.triton_draw draw --seed 44 -o benchmarks/validation_triton_unseen.yaml
    python -m benchmarks.triton_draw predict -o benchmarks/data/validation_triton_predicted.jsonl
    torchrun --nproc-per-node 2 -m benchmarks.validation_run --kernels triton \\
        --cases benchmarks/validation_triton_unseen.yaml --out measured.jsonl
    python -m benchmarks.triton_draw compare measured.jsonl
    python -m benchmarks.triton_draw hosts measured.jsonl

Batches come from strata, as in `benchmarks.validation_draw`; no batch or half of it is on the grid of the
set's calibration or among its earlier cases. `predict` is for before the measurement; `compare` takes the
predictions as they were written, and where the host was probed beside a case predicts it again with that
host, from the profile that was predicted with. `hosts` says what other hosts would have made of prefill.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.validation import PUBLIC, predict
from benchmarks.validation_cases import LAYERS, groups
from benchmarks.validation_causes import launched, times
from benchmarks.validation_document import predictors, table
from benchmarks.validation_draw import KV, SMS, Draw, batches_of
from benchmarks.validation_files import Record, matched, read
from benchmarks.validation_others import compared as on_probed_hosts
from benchmarks.validation_others import figures
from benchmarks.validation_outcome import cases, probes_of
from executor.calibrate.triton_plan import triton_plan
from models.errors import InputError
from models.host import on_host, with_host
from models.machine import Machine
from models.profile import load_machine
from moe_overlap.gated import makespan_ns
from moe_overlap.gated import predicted as timeline

CASES = Path(__file__).with_name("validation_triton_unseen.yaml")
EARLIER = Path(__file__).with_name("validation_triton.yaml")
PREDICTED = Path(__file__).with_name("data") / "validation_triton_predicted.jsonl"
PROFILE = "h200-2x-nvlink-triton-measured"
# Strata: sequences of a rank in decode, tokens of a rank in prefill.
DECODE = ((6, 28), (28, 66), (66, 96), (96, 127))
PREFILL = ((1600, 3000), (3200, 6000), (6400, 11000))
DECODE_SCHEDULES = "[sequential, baseline, sbo.v1, sbo.v2, tbo]"
PREFILL_SCHEDULES = "[sequential, baseline, tbo]"


def lines(seed: int) -> Iterator[str]:
    """The YAML file."""
    grid = {task.number("tokens") for task in triton_plan() if task.kind == "layers"}
    draw = Draw(seed, grid | batches_of(EARLIER))
    yield f"# Drawn by `python -m benchmarks.triton_draw draw --seed {seed}`; not to be edited. To be predicted"
    yield "# (`benchmarks/data/validation_triton_predicted.jsonl`) before any of them is measured."
    yield f"layers: {LAYERS}"
    yield "groups:"
    for bounds in DECODE:
        tokens, kv = draw.batch(bounds), draw.random.choice(KV)
        yield (
            f"  - {{name: decode {tokens} tokens {kv} KV, phase: decode, tokens: {tokens}, kv: {kv}, "
            f"schedules: {DECODE_SCHEDULES}}}"
        )
    for bounds, choice in zip(PREFILL, SMS, strict=True):
        count, sequence = draw.prompts(bounds)
        held = draw.random.choice(choice)
        yield (
            f"  - {{name: prefill {count} x {sequence} tokens {held} SMs, phase: prefill, "
            f"tokens: {count * sequence}, sequence: {sequence}, num_sms: {held}, "
            f"schedules: {PREFILL_SCHEDULES}}}"
        )


def predicted(file: Path, profile: str) -> Iterator[str]:
    """A JSON line a case; the first of a group is what its gains are over."""
    machine, public = load_machine(profile), load_machine(PUBLIC)
    for group in groups(file):
        for name in group.schedules:
            yield json.dumps(predict(group, name, machine, public) | {"unseen": True})


def compared(measured: Path, predictions: Path, file: Path) -> Iterator[str]:
    """Figures of fidelity and tables, in Markdown: as predicted, and with the hosts that were probed, as
    long as the profile is the one that was predicted with. InputError for files of other cases."""
    records, entries, told = matched(predictions, measured)
    own = cases(records, entries)
    try:
        hosted, changed = on_probed_hosts(measured, (file,), _profile(records)), ""
    except InputError as error:
        hosted, changed = own, f"With the probed hosts: not told, {error}"
    yield from (*([told, ""] if told else []), "As predicted:", "", *figures(own), "")
    if changed:
        yield from (changed, "")
    if any(case.host is not None for case in hosted):
        yield from ("With the probed hosts:", "", *figures(hosted), "")
    yield from (*table(hosted, own), "")
    yield from predictors([case for case in hosted if case.overlapped])


def _profile(records: Sequence[Record]) -> str:
    """Name of the profile that all were predicted with, if it is still the same."""
    name, sha256 = records[0]["profile"], load_machine(records[0]["profile"]).profile_sha256
    for record in records:
        if (record["profile"], record["sha256"]) != (name, sha256):
            allowed = f"{sha256}, of {name}: all cases predicted with that profile"
            raise InputError(f"case {record['group']}", "sha256", record["sha256"], allowed)
    return str(name)


def by_hosts(measured: Path, file: Path, profile: str) -> Iterator[str]:
    """Error of every prefill case with the host of the profile, of each probe and of both, of one run of
    the case, and with one that costs nothing; in Markdown."""
    machine = load_machine(profile)
    entries = {e["group"]: e for e in read(measured) if len(e.get("probe", ())) == 2}
    yield "| case | schedule | profile | first probe | last probe | both | own run | free |"
    yield "| --- | --- |" + " ---: |" * 6
    for group in groups(file):
        if group.batch.phase != "prefill" or group.name not in entries:
            continue
        entry = entries[group.name]
        for name in group.schedules:
            ns = median(entry["makespans_ns"][name])
            errors = (
                makespan_ns(timeline(group.on(host).program(name), host)) / ns - 1
                for host in _hosts(machine, entry, name)
            )
            yield f"| {group.name} | {name} | {' | '.join(f'{e:+.1%}' for e in errors)} |"


def _hosts(machine: Machine, entry: Mapping[str, Any], schedule: str) -> Iterator[Machine]:
    probes = probes_of(entry)
    yield machine
    for some in (probes[:1], probes[1:], probes):
        yield on_host(machine, some)[0]
    own, _ = with_host(machine.host, launched(entry["host"][schedule]))
    yield from (replace(machine, host=host) for host in (own, times(own, 0.0)))


def main(given: Sequence[str] | None = None) -> None:
    """Parse; draw, predict, compare or try hosts; one message where a file cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("draw", "predict", "compare", "hosts"))
    parser.add_argument("measured", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=44)
    parser.add_argument("--profile", default=PROFILE)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--predicted", type=Path, default=PREDICTED)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args(given)
    if arguments.what == "draw":
        text = lines(arguments.seed)
    elif arguments.what == "predict":
        text = predicted(arguments.cases, arguments.profile)
    elif arguments.measured is None:
        parser.error(f"{arguments.what} needs the file of measured cases")
    elif arguments.what == "hosts":
        text = by_hosts(arguments.measured, arguments.cases, arguments.profile)
    else:
        text = compared(arguments.measured, arguments.predicted, arguments.cases)
    try:
        whole = "\n".join(text) + "\n"
    except InputError as error:
        parser.error(str(error))
    if arguments.output:
        arguments.output.write_text(whole, encoding="utf-8")
    else:
        print(whole, end="")


if __name__ == "__main__":
    main()
