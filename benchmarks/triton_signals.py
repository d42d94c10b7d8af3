"""The down GEMM and the combine, in turn and with signals, as the engine predicts them.

    python -m benchmarks.triton_signals
    python -m benchmarks.triton_signals --measured triton_ratios_rank0.jsonl
    python -m benchmarks.triton_signals --earlier --gemm measured --causes

The three programs are those that `benchmarks.triton_ratios --parts signals` times: calls in one CUDA
graph, both ranks at once; a time is rank 0's for one call, without the replay's launch. `--gemm measured`
gives the GEMM the time that the measured one had on the whole GPU, and whole rounds of its tiles on
fewer SMs: for records of another form of the GEMM than the profile knows. `--causes` leaves out what
signals and neighbours cost, one at a time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from models.errors import InputError
from models.forms import tiles
from models.machine import Cost, Costs, Footprint, Interference, Machine
from models.profile import load_machine
from models.work import Grid, Work
from scenarios import load
from scenarios.resolve import Resolved, resolve
from schedules.builders.request import Request
from schedules.builders.single import LayerPlan, build_single
from schedules.program import Program
from simulator import simulate

PROFILE = "h200-2x-nvlink-triton-measured"
SCENARIO = "deepseek-v3-h200-ep2-decode"
TOKENS, SMS = (8, 32, 64, 128), (4, 8, 16, 32)
CALLS = 4  # in one graph, as they are timed
GEMM, SEND = "grouped_gemm_masked", "combine_send"
# A measured gain that moves so much from one run to the next has no sign below it (the page's two runs).
REPEATS_WITHIN = 0.02

# One call of each way; `schedules.stream_lines` has the grammar.
WHOLE, BUDGETS, SIGNALS = "whole GPU, in turn", "budgets, in turn", "signals"
WAYS: Mapping[str, tuple[str, ...]] = {
    WHOLE: ("main: gemm2", "main: combine.send", "main: combine.recv"),
    BUDGETS: ("main: gemm2 @comp", "main: combine.send @comm", "main: combine.recv"),
    SIGNALS: (
        "main: rec experts",
        "alt: wait experts",
        "main: gemm2 @comp +down",
        "alt: combine.send @comm ?down",
        "alt: wait main",
        "alt: combine.recv",
        "main: wait alt",
    ),
}


class Shape(NamedTuple):
    """Tokens of each rank, and the SMs of the send; the GEMM has the others."""

    tokens: int
    comm_sms: int


class Times(NamedTuple):
    """us of a call by each way."""

    whole: float
    budgets: float
    signals: float

    @property
    def gain(self) -> float:
        """Relative change by signals of the same budgets; negative is faster."""
        return self.signals / self.budgets - 1


# What two H200 measured with the halved form of the GEMM: docs/measurements/triton-kernels.md, "Down
# GEMM and combine, with and without signals".
EARLIER: Mapping[Shape, Times] = {
    Shape(32, 4): Times(237, 261, 249),
    Shape(32, 8): Times(238, 262, 263),
    Shape(64, 4): Times(244, 284, 255),
    Shape(64, 8): Times(244, 273, 262),
    Shape(64, 16): Times(244, 275, 277),
    Shape(128, 4): Times(255, 331, 264),
    Shape(128, 8): Times(255, 298, 263),
    Shape(128, 16): Times(256, 289, 278),
    Shape(128, 32): Times(255, 314, 308),
}


@dataclass(frozen=True)
class RoundsOf:
    """Costs of a machine with another GEMM: `whole_ns` on all SMs, and whole rounds of tiles on fewer."""

    costs: Costs
    num_sms: int
    whole_ns: float

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """Of the masked GEMM by rounds, of the others as they are."""
        if work.kind != GEMM:
            return self.costs.alone(work, grid, sms)
        count = tiles(work)
        return Cost(round(self.whole_ns * -(-count // sms) / -(-count // self.num_sms)), "measured")

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """As it is."""
        return self.costs.footprint(work, grid)


@cache
def resolved(tokens: int) -> Resolved:
    """Two ranks of so many tokens each, 32 experts on each, n 7168 and k 2048."""
    return resolve(load(SCENARIO, [f"phase.decode.batch_per_rank={tokens}"]))


def program(way: str, shape: Shape, machine: Machine) -> Program:
    """Calls of one way after one another in a graph, on two ranks with their own routing."""
    case = resolved(shape.tokens)
    budgets = {"comp": machine.num_sms - shape.comm_sms, "comm": shape.comm_sms}
    deployment = replace(case.deployment, machine=machine)
    request = Request(way, deployment, case.batch, case.routing, layers=CALLS, fold=False)
    return build_single(request, LayerPlan(WAYS[way], budgets))


def call_us(way: str, shape: Shape, machine: Machine) -> float:
    """Time of a call on rank 0."""
    spans = simulate(program(way, shape, machine), machine, counters=False).spans
    own = [span for span in spans if span.rank == 0]
    whole_ns = max(span.end_ns for span in own) - min(span.start_ns for span in own)
    return whole_ns / CALLS / 1e3


def predict(shape: Shape, machine: Machine) -> Times:
    """A call of each way."""
    return Times(*(call_us(way, shape, machine) for way in WAYS))


def with_gemm_of(whole_us: float, shape: Shape, machine: Machine) -> Machine:
    """The machine with a GEMM that makes a call on the whole GPU take `whole_us`; in turn the rest adds
    to it."""
    some = RoundsOf(machine.costs, machine.num_sms, whole_us * 1e3)
    rest_us = call_us(WHOLE, shape, replace(machine, costs=some)) - whole_us
    return replace(machine, costs=replace(some, whole_ns=(whole_us - rest_us) * 1e3))


def without(machine: Machine) -> Mapping[str, Machine]:
    """The machine without one cost of signals or neighbours each, and without any of them."""
    rules = machine.interference
    kinds = tuple(entry for entry in rules.by_kind if entry[0] != GEMM)
    free = Interference(rules.achievable_hbm_gbps)
    return {
        "raising": _unsignalled(machine, GEMM),
        "polling": _unsignalled(machine, SEND),
        "send slowed": replace(
            machine, interference=replace(rules, by_family=(), by_exchange=(), by_size=())
        ),
        "GEMM slowed": replace(
            machine, interference=replace(rules, by_kind=(*kinds, (GEMM, 0.0, 0.0)))
        ),
        "either slowed": replace(machine, interference=free),
        "any": replace(machine, interference=free, signalled=()),
    }


def _unsignalled(machine: Machine, kind: str) -> Machine:
    return replace(machine, signalled=tuple(e for e in machine.signalled if e[0] != kind))


def measured(lines: Iterable[str]) -> dict[Shape, Times]:
    """Records of `benchmarks.triton_ratios` by shape; InputError for a shape that lacks a way."""
    found: dict[Shape, dict[str, float]] = {}
    for record in map(json.loads, lines):
        if record["what"] == "signals":
            shape = Shape(record["tokens"], record["comm_sms"])
            found.setdefault(shape, {})[record["schedule"]] = record["us"]
    for shape, ways in found.items():
        if set(ways) != set(WAYS):
            allowed = f"each of {', '.join(WAYS)}"
            raise InputError(f"records of {shape}", "schedule", ", ".join(sorted(ways)), allowed)
    return {shape: Times(*(ways[way] for way in WAYS)) for shape, ways in found.items()}


def agreement(predicted: Mapping[Shape, Times], found: Mapping[Shape, Times]) -> str:
    """How many gains have the measured sign: of all, and of those beyond what a repetition moves."""
    right = {s: (predicted[s].gain < 0) == (times.gain < 0) for s, times in found.items()}
    clear = [right[s] for s, times in found.items() if abs(times.gain) > REPEATS_WITHIN]
    return (
        f"Signs right: {sum(right.values())} of {len(right)}; {sum(clear)} of {len(clear)} of the "
        f"gains beyond {REPEATS_WITHIN:.0%}."
    )


def table(predicted: Mapping[Shape, Times], found: Mapping[Shape, Times]) -> Iterator[str]:
    """Predicted calls and gains, with the measured ones beside them where there are any; Markdown."""
    ways = ("whole GPU", "budgets", "signals", "gain")
    heads = [*ways, *(f"{way}, measured" for way in ways if found), *(["sign"] if found else [])]
    yield _row("tokens", "SMs", *heads)
    yield _row(*["---:"] * (2 + len(heads)))
    for shape, times in predicted.items():
        cells = _cells(times)
        if shape in found:
            same = (times.gain < 0) == (found[shape].gain < 0)
            cells += [*_cells(found[shape]), "right" if same else "wrong"]
        yield _row(*shape, *cells, *[""] * (len(heads) - len(cells)))


def causes(machines: Mapping[Shape, Machine], predicted: Mapping[Shape, Times]) -> Iterator[str]:
    """Gains without one cost at a time; Markdown."""
    names = without(next(iter(machines.values())))
    yield _row("tokens", "SMs", "gain", *(f"without {name}" for name in names))
    yield _row(*["---:"] * (3 + len(names)))
    for shape, machine in machines.items():
        gains = (predict(shape, other).gain for other in without(machine).values())
        yield _row(*shape, *(f"{100 * gain:+.1f} %" for gain in (predicted[shape].gain, *gains)))


def _cells(times: Times) -> list[str]:
    return [*(f"{us:.0f}" for us in times), f"{100 * times.gain:+.1f} %"]


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def page(arguments: argparse.Namespace, found: Mapping[Shape, Times]) -> Iterator[str]:
    """All that was asked for, in Markdown."""
    machine = load_machine(arguments.profile)
    as_measured = arguments.gemm == "measured"
    every = {Shape(tokens, sms) for tokens in TOKENS for sms in SMS}
    shapes = sorted(found if as_measured else every | set(found))
    machines = {
        shape: with_gemm_of(found[shape].whole, shape, machine) if as_measured else machine
        for shape in shapes
    }
    predicted = {shape: predict(shape, at) for shape, at in machines.items()}
    yield from table(predicted, found)
    if found:
        yield from ("", agreement(predicted, found))
    if arguments.causes:
        yield from ("", *causes(machines, predicted))


def main(given: Sequence[str] | None = None) -> None:
    """Parse and print; one message where records cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--profile", default=PROFILE)
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument("--measured", type=Path, help="records of one rank, JSON lines")
    beside.add_argument("--earlier", action="store_true", help="the page's nine shapes")
    parser.add_argument("--gemm", choices=("profile", "measured"), default="profile")
    parser.add_argument("--causes", action="store_true")
    arguments = parser.parse_args(given)
    found = EARLIER if arguments.earlier else {}
    try:
        if arguments.measured is not None:
            found = measured(arguments.measured.read_text(encoding="utf-8").splitlines())
        if arguments.gemm == "measured" and not found:
            parser.error("--gemm measured needs the measured times: --measured or --earlier")
        print("\n".join(page(arguments, found)))
    except (InputError, OSError, json.JSONDecodeError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
