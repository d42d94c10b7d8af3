"""Cohorts of CTAs against every CTA by itself, on random kernels that fight for SMs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from models.machine import Gaps
from models.work import Grid, GridKind
from schedules.program import Program, RankClass, Stream
from simulator import simulate
from tests.simulator.single_ctas import simulate_ctas
from tests.simulator.spinning import kernel, machine

NUM_SMS = 12
KINDS: tuple[GridKind, ...] = ("wave", "wave", "static", "dynamic")
STREAMS = ("main", "alt", "third")


@st.composite
def contended(draw: st.DrawFn) -> Program:
    """Plain kernels and gangs of every kind on three streams of some priorities. No two CTAs share an SM, since which
    of two equally empty SMs takes a CTA is nobody's rule."""
    steps = []
    for index in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(KINDS))
        gang = draw(st.sampled_from([False, False, True]))
        budget = draw(st.sampled_from([None, 5, 9])) if kind != "wave" else None
        steps.append(
            kernel(
                f"k{index}",
                draw(st.integers(1, NUM_SMS if gang and kind == "wave" else 50)),
                draw(st.integers(1, 30)),
                draw(st.sampled_from(STREAMS)),
                Grid(budget, kind=kind, gang=gang),
                smem_bytes=draw(st.sampled_from([204800, 120000])),  # never two on an SM
            )
        )
    streams = tuple(Stream(name, draw(st.integers(-2, 0))) for name in STREAMS)
    return Program("contended", streams, (RankClass((0,), tuple(steps)),))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(contended(), st.sampled_from([0, 400]))
def test_cohorts_are_what_single_ctas_make(program: Program, reaction: int) -> None:
    gaps = Gaps(reaction=reaction)
    timeline = simulate(program, machine(num_sms=NUM_SMS, gaps=gaps))
    found = {span.op: (span.start_ns, span.end_ns) for span in timeline.spans}
    assert found == simulate_ctas(program, gaps, NUM_SMS)
