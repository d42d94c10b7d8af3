"""A step extrapolated from a few layers against the step simulated in full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_overlap.prediction import program_of
from scenarios.load import load
from scenarios.resolve import resolve
from schedules.program import Launch, Program, RankClass, Record, Step, Wait
from simulator import simulate, simulate_step
from simulator.steady import Pattern, extrapolate, find_pattern
from tests.simulator.spinning import STATIC, exchange, host, kernel, machine, program

MB = 1_000_000
PAIR = ((0, 4 * MB), (3 * MB, 0))


def in_layer(step: Step, layer: int) -> Step:
    """The same launch as part of a layer."""
    return Launch(replace(step.op, layer=layer)) if isinstance(step, Launch) else step


def layered(layers: int, *, us_of_layer: int = 0) -> Program:
    """Two ranks of unequal load; each layer has a GEMM that waits for SMs, a shared expert beside an
    exchange, and a host that is a little late. With `us_of_layer` the layers grow longer."""
    ranks: list[list[Step]] = []
    for rank in range(2):
        steps: list[Step] = []
        for layer in range(layers):
            name = f"L{layer}"
            gemm_us = 90 + 30 * rank + us_of_layer * layer
            whole = kernel(f"{name}.x", 24, 35, exchange=name, role="whole")
            one: list[Step] = [
                *host(7),
                kernel(f"{name}.attn", 300, 30),
                Record(f"{name}.E", "main"),
                Wait(f"{name}.E", "alt"),
                kernel(f"{name}.shared", 132, 55, "alt", STATIC, read_bytes=40 * MB),
                whole,
                kernel(f"{name}.gemm", 132, gemm_us, grid=STATIC),
            ]
            steps += [in_layer(step, layer) for step in one]
        ranks.append(steps)
    exchanges = [exchange(f"L{layer}", PAIR) for layer in range(layers)]
    return program(*ranks, exchanges=exchanges)


def test_the_extrapolated_step_is_the_full_step() -> None:
    step = simulate_step(layered, machine(), 30)
    assert step.simulated < 30
    assert step.ns == simulate(layered(30), machine()).makespan_ns


def test_layers_that_do_not_repeat_are_simulated_in_full() -> None:
    def growing(layers: int) -> Program:
        return layered(layers, us_of_layer=10)

    step = simulate_step(growing, machine(), 12)
    assert step.simulated == 12
    assert step.ns == simulate(growing(12), machine()).makespan_ns


def test_a_pattern_of_two_layers() -> None:
    steps = [in_layer(kernel(f"L{layer}", 1, 10 + 5 * (layer % 2)), layer) for layer in range(8)]
    timeline = simulate(
        Program("two", program(()).streams, (RankClass((0,), tuple(steps)),)), machine()
    )
    assert find_pattern(timeline) == Pattern(2, 10_000 + 15_000 + 2 * 1800)
    assert extrapolate(timeline, 4) == timeline.makespan_ns + 2 * 28_600
    with pytest.raises(ValueError, match="3 more layers are no multiple of 2"):
        extrapolate(timeline, 3)


def test_too_few_layers_show_no_pattern() -> None:
    timeline = simulate(layered(2), machine())
    assert find_pattern(timeline) is None
    with pytest.raises(ValueError, match="do not repeat yet"):
        extrapolate(timeline, 10)


@pytest.mark.parametrize("schedule", ["baseline", "tbo"])
@pytest.mark.parametrize("name", ["deepseek-v3-h200-ep8-prefill", "deepseek-v3-h100-ep72-decode"])
def test_library_scenarios(name: str, schedule: str) -> None:
    resolved = resolve(load(name, []))
    choice, sms = resolved.choice(schedule), resolved.deployment.machine

    def build(layers: int) -> Program:
        return program_of(resolved, choice, layers=layers, whole_step=True)

    step = simulate_step(build, sms, 14)
    assert step.simulated < 14
    assert step.ns == simulate(build(14), sms, counters=False).makespan_ns
