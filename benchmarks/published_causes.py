"""Why predictions differ from the published H100 rows: experiments that isolate one cause each.

    python -m benchmarks.published_causes [order] [alone] [step] [balance] [footprints] [prefill]

Without names all of them, as Markdown tables. Nothing here goes into a prediction: published figures are
put in to see whether the rest then follows (docs/published.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import moe_overlap as mo
from benchmarks.published import GROWN, Row, predicted
from benchmarks.published_changes import (
    Changed,
    longer,
    low_latency_lines,
    normal_lines,
    without_budget,
)
from benchmarks.published_classes import class_us, classes_in, layer_us, layers_of
from benchmarks.published_rows import (
    DECODE,
    LAYERS,
    OFF,
    ON,
    PREFILL,
    load,
    published,
    published_classes,
    published_ms,
)
from models.machine import Machine
from models.profile import load_machine
from moe_overlap.prediction import build
from simulator import simulate

ALPHA = 0.6
MOE_LAYERS = 58
MEASURED = "h200-2x-nvlink-measured"
BALANCES: Mapping[str, Sequence[str]] = {
    "uniform": ("routing.alpha=0",),
    "power law 0.6 (the prediction)": (),
    "power law 1.2": ("routing.alpha=1.2",),
    "power law 0.6 without EPLB": ("routing.eplb=false",),
}
EXCHANGES = ("Dispatch", "Combine")
DENSE, GROUPED = "gemm", "grouped_gemm_contiguous"


def order() -> Iterator[str]:
    """The same step in each reading of what ran."""
    own = {DECODE: low_latency_lines(), PREFILL: normal_lines()}
    yield "| ms of a step | off, own lines | sequential | baseline | on | on today |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in published():
        lines = own[row.scenario].replace("\n", "\\n")
        scenario = load(
            row.scenario, row.size, ALPHA, f'schedules=[{{name: off, lines: "{lines}"}}]'
        )
        found = mo.compare(scenario, fidelity="fast").document()["schedules"][0]["step_us"] / 1e3
        ours = predicted(row.scenario, row.size, ALPHA)
        ms = (found, ours.off_ms, ours.off_today_ms, ours.on_ms, ours.on_today_ms)
        yield f"| {row.scenario} at {row.size} | {' | '.join(_number(each) for each in ms)} |"


def in_service(scenario: str) -> dict[str, float]:
    """Times of the published off row over ours, by class: what a kernel takes in service over what its
    table says, when nothing else runs."""
    _, _, size, series = next(case for case in LAYERS if case[:2] == (scenario, OFF))
    ours, truth = class_us(scenario, OFF, size, ALPHA), published_classes(series)
    return {name: truth[name] / us for name, us in ours.items()}


def alone() -> Iterator[str]:
    """Two-batch overlap when every kernel takes alone what it took in the published off row."""
    names = tuple(in_service(DECODE))
    yield f"| µs a layer: ours of published | layer | {' | '.join(names)} |"
    yield "| --- " * (len(names) + 2) + "|"
    for scenario in (DECODE, PREFILL):
        factors = in_service(scenario)
        cells = (f"x{factors[name]:.2f}" for name in names)
        yield f"| {scenario}, in service over table | | {' | '.join(cells)} |"
        for _, name, size, series in (case for case in LAYERS if case[0] == scenario):
            program, resolved = layers_of(scenario, name, size, ALPHA)
            timeline = simulate(program, longer(resolved.deployment.machine, program, factors))
            ours, truth = classes_in(timeline), published_classes(series)
            cells = (f"{ours[key]:,.0f} of {truth[key]:,.0f}" for key in names)
            layer = f"{layer_us(timeline):,.0f} of {truth['Overall']:,.0f}"
            yield f"| {name} at {size} | {layer} | {' | '.join(cells)} |"


def step() -> Iterator[str]:
    """What a constant added to each step would have to be, row by row."""
    yield "| ms of a step | published | ours | constant | with the factors of 256 | constant then |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in published():
        if row.scenario != DECODE:
            continue
        ours = predicted(DECODE, row.size, ALPHA)
        for name, truth, ms in (("off", row.off_ms, ours.off_ms), ("on", row.on_ms, ours.on_ms)):
            served = _known(ms) + _service_ms(row.size, OFF if name == "off" else ON[DECODE])
            cells = (truth, ms, truth - _known(ms), served, truth - served)
            yield f"| {row.size} {name} | {' | '.join(_number(each) for each in cells)} |"
    yield from _outside(predicted(DECODE, 256, ALPHA))


def _outside(ours: Row) -> Iterator[str]:
    """What of a step at 256 lies outside its 58 MoE layers, published and ours."""
    row = next(row for row in published() if (row.scenario, row.size) == (DECODE, 256))
    for (_, name, size, series), truth, ms in zip(LAYERS[:2], (row.off_ms, row.on_ms), (ours.off_ms, ours.on_ms), strict=True):  # fmt: skip
        program, resolved = layers_of(DECODE, name, size, ALPHA)
        layer = layer_us(simulate(program, resolved.deployment.machine))
        there = truth - MOE_LAYERS * published_classes(series)["Overall"] / 1e3
        here = _known(ms) - MOE_LAYERS * layer / 1e3
        yield f"| {size} {name}, outside the MoE layers | {there:.2f} | {here:.2f} | {there - here:.2f} | | |"


def _service_ms(size: int, schedule: str) -> float:
    """What the in-service factors of batch 256 add to a decode step, in ms."""
    program, resolved = layers_of(DECODE, schedule, size, ALPHA)
    machine = resolved.deployment.machine
    service = longer(machine, program, in_service(DECODE))
    plain, served = (layer_us(simulate(program, each)) for each in (machine, service))
    return MOE_LAYERS * (served - plain) / 1e3


def balance() -> Iterator[str]:
    """The rows under other loads."""
    rows = (*((row.scenario, row.size) for row in published()), (PREFILL, 16384))
    names = (f"{'decode' if scenario == DECODE else 'prefill'} {size}" for scenario, size in rows)
    yield f"| ms off / on, on over off | {' | '.join(names)} |"
    yield "| --- " * (len(rows) + 1) + "|"
    truth = [_pair(row.off_ms, row.on_ms) for row in published()]
    late, level = (published_ms(f"lmsys_pf_16384_tbo{kind}") for kind in ("", "_balanced"))
    yield f"| published | {' | '.join(truth)} | – / {late:.0f}; perfect EPLB {level:.0f} |"
    for label, sets in BALANCES.items():
        cells = []
        for name, size in rows:
            found = mo.compare(load(name, size, ALPHA, *sets), fidelity="fast").document()
            ms = {each["name"]: each["step_us"] / 1e3 for each in found["schedules"]}
            cells.append(_pair(ms[OFF], ms[ON[name]]))
        yield f"| {label} | {' | '.join(cells)} |"


def _pair(off: float, on: float) -> str:
    return f"{off:.1f} / {on:.1f}, {off / on:.3f}"


def footprints() -> Iterator[str]:
    """The shared expert beside the low-latency send (baseline, decode at 256)."""
    resolved = mo.resolve(mo.load(DECODE))
    machine, measured = resolved.deployment.machine, load_machine(MEASURED)
    program = build(resolved, "baseline", layers=6)
    roomy = replace(machine.sm, registers=1 << 18, smem_bytes=1 << 20)
    machines = {
        "as predicted": machine,
        f"footprints of {MEASURED}": replace(machine, costs=Changed(machine.costs, like=measured.costs)),
        "SMs with room for both": replace(machine, sm=roomy),
    }  # fmt: skip
    yield "| baseline, decode at 256 | shared.gate_up, µs | layer, µs |"
    yield "| --- | --- | --- |"
    for name, each in machines.items():
        timeline = simulate(program, each)
        spans = [span for span in timeline.spans if span.op == "L3.shared.gate_up"]
        yield f"| {name} | {spans[-1].duration_ns / 1e3:.1f} | {layer_us(timeline):.1f} |"


class Variant(NamedTuple):
    """One reading of what prefill ran: exchanges so many times their table, kernels without a budget of
    SMs (whose tiles are then known), and whose interference is taken."""

    name: str
    exchanges: Mapping[str, float]
    uncapped: tuple[str, ...] = ()
    interference: str = ""


def variants() -> tuple[Variant, ...]:
    """The hypotheses, each of one or two changes."""
    service = {name: factor for name, factor in in_service(PREFILL).items() if name in EXCHANGES}
    return (
        Variant("as predicted", {}),
        Variant("exchanges x1.5", dict.fromkeys(EXCHANGES, 1.5)),
        Variant("exchanges as in service", service),
        Variant(f"interference of {MEASURED}", {}, interference=MEASURED),
        Variant("dense GEMMs without the cap", {}, (DENSE,)),
        Variant("no GEMM with a cap", {}, (DENSE, GROUPED)),
        Variant("exchanges in service, dense uncapped", service, (DENSE,)),
    )


def prefill() -> Iterator[str]:
    """Slowdowns of TBO's kernels over off, per kernel batch, under each hypothesis."""
    yield f"| TBO at 16384 over off at 8192 | {' | '.join(GROWN)} | layer off, on, ms |"
    yield "| --- " * (len(GROWN) + 2) + "|"
    cases = tuple(case for case in LAYERS if case[0] == PREFILL)
    off, on = (published_classes(series, barriers=False) for *_, series in cases)
    yield f"| published | {_growths(off, on)} | {off['Overall'] / 1e3:.1f}, {on['Overall'] / 1e3:.1f} |"
    for variant in variants():
        timelines = []
        for _, name, size, _ in cases:
            program, resolved = layers_of(PREFILL, name, size, ALPHA)
            program = without_budget(program, variant.uncapped)
            machine = _other(resolved.deployment.machine, variant)
            tiled = bool(variant.uncapped)
            timelines.append(
                simulate(program, longer(machine, program, variant.exchanges, tiles=tiled))
            )
        off, on = (classes_in(timeline) for timeline in timelines)
        ms = ", ".join(f"{layer_us(timeline) / 1e3:.1f}" for timeline in timelines)
        yield f"| {variant.name} | {_growths(off, on)} | {ms} |"  # fmt: skip


def _other(machine: Machine, variant: Variant) -> Machine:
    if not variant.interference:
        return machine
    return replace(machine, interference=load_machine(variant.interference).interference)


def _growths(off: Mapping[str, float], on: Mapping[str, float]) -> str:
    return " | ".join(f"x{on[name] / 2 / off[name]:.2f}" for name in GROWN)


def _known(ms: float | None) -> float:
    if ms is None:
        raise ValueError("a published row is refused here")
    return ms


def _number(ms: float | None) -> str:
    return "refused" if ms is None else f"{ms:,.2f}"


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    part.__name__: part for part in (order, alone, step, balance, footprints, prefill)
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The experiments that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="part")
    for name in parser.parse_args(arguments).parts or PARTS:
        print(f"\n{name}\n", *PARTS[name](), sep="\n")


if __name__ == "__main__":
    main()
