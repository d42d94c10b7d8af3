"""The steps of one layer, without a layer in their names yet, from stream lines.

Every schedule is written in the grammar of `schedules.stream_lines`, with two conveniences that the
lists of `models/rules` use: an entry without a colon is a run of operation letters on main, and the
letters of an exchange stand for the lines of the backend's halves. `Ga` and `Ra` are the collectives of a
layer without an all-to-all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from models.deployment import Deployment, LayerKernels
from models.sglang_rules import Halves
from models.work import EXCHANGE_KINDS
from schedules.program import HostWait, Launch, Record, Step, Wait
from schedules.stream_lines import Catalogue, layer_catalogue

LETTERS = ("P", "Q", "C", "M", "G", "T", "Da", "Db", "X", "Ca", "Cb", "S", "O", "Z")
COLLECTIVES = ("Ga", "Ra")
GROUPED = ("grouped_gemm_masked", "grouped_gemm_contiguous")


def catalogue_of(layer: LayerKernels) -> Catalogue:
    """What lines may launch: kernels, dotted prefixes, letters (also those without kernels), the
    routed experts up to their down GEMM (`experts.up`) and the rest (`experts.down`), and the
    transfer of a normal-mode exchange apart from its notify (`dispatch.transfer`)."""
    found = dict.fromkeys(LETTERS + COLLECTIVES, ()) | layer_catalogue(layer)
    names = [launch.op.name for launch in found["X"]]
    cut = names.index("gemm2") if "gemm2" in names else len(names)
    found["experts.up"], found["experts.down"] = found["X"][:cut], found["X"][cut:]
    for exchange in ("dispatch", "combine"):
        launches = found.get(exchange, ())
        found[f"{exchange}.transfer"] = tuple(x for x in launches if x.op.name == exchange)
    return found


def expand(entries: Iterable[str], halves: Halves) -> tuple[str, ...]:
    """Stream lines of a layer's entries."""
    lines: list[str] = []
    for entry in entries:
        if ":" in entry:
            lines.append(entry)
            continue
        for letter in entry.split():
            lines += letter_lines(letter, halves)
    return tuple(lines)


def letter_lines(letter: str, halves: Halves) -> tuple[str, ...]:
    """Stream lines of one operation letter."""
    lines = halves.lines(letter)
    return (f"main: {letter}",) if lines is None else lines


def drop_idle_streams(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Without the events of streams that launch nothing: a model without a shared expert does not
    fork, for example."""
    busy = {step.op.stream for step in steps if isinstance(step, Launch)} | {"main"}
    recorded = {s.event for s in steps if isinstance(s, Record) and s.stream in busy}
    awaited = {s.event for s in steps if isinstance(s, Wait) and s.stream in busy}
    awaited |= {step.event for step in steps if isinstance(step, HostWait)}
    kept = recorded & awaited
    return tuple(
        step
        for step in steps
        if not isinstance(step, Record | Wait) or (step.event in kept and step.stream in busy)
    )


def on_one_stream(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Everything on main, with the events that the host waits for and no others."""
    host_events = {step.event for step in steps if isinstance(step, HostWait)}
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Launch):
            kept.append(replace(step, op=replace(step.op, stream="main")))
        elif isinstance(step, Record) and step.event in host_events:
            kept.append(replace(step, stream="main"))
        elif not isinstance(step, Record | Wait):
            kept.append(step)
    return tuple(kept)


def capped(steps: tuple[Step, ...], sms: int) -> tuple[Step, ...]:
    """With `sms` as the budget of every kernel that is not part of an exchange."""
    return tuple(
        replace(step, op=replace(step.op, grid=replace(step.op.grid, sm_budget=sms)))
        if isinstance(step, Launch) and step.op.work.kind not in EXCHANGE_KINDS
        else step
        for step in steps
    )


def honest(steps: tuple[Step, ...], deployment: Deployment) -> tuple[Step, ...]:
    """With the budgets of kernels that have no way to keep them marked as ignored.

    Only DeepGEMM's kernels take a number of SMs (dense GEMMs of block-scaled FP8 weights, grouped
    GEMMs of a runner that does), and the kernels of an exchange.
    """
    return tuple(
        replace(step, op=replace(step.op, grid=replace(step.op.grid, limited_by="ignored")))
        if isinstance(step, Launch)
        and step.op.grid.sm_budget is not None
        and step.op.grid.limited_by == "grid"
        and not _takes_budget(step.op.work.kind, deployment)
        else step
        for step in steps
    )


def _takes_budget(kind: str, deployment: Deployment) -> bool:
    if kind in GROUPED:
        return deployment.moe_runner in ("deep_gemm", "flashinfer_cutedsl")
    if kind == "gemm":
        return deployment.quantization.weights == "fp8_block"
    return kind in EXCHANGE_KINDS


def ranks_key(layers: Mapping[str, LayerKernels]) -> tuple[object, ...]:
    """A key that is equal for ranks with equal kernels."""
    return tuple(
        (child, letter, kernels)
        for child, layer in layers.items()
        for letter, kernels in layer.groups.items()
    )
