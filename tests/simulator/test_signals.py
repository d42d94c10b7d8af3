"""A polling kernel against the recurrence over its blocks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from models.machine import Interference
from schedules.program import Signal, Stream
from simulator import simulate
from tests.simulator.spinning import STATIC, US, exchange, host, kernel, machine, program, span


def last_block_end(blocks: int, *, raised_at: list[float], start: float, block_us: float) -> float:
    """Each block takes `block_us` once it is complete and the block before it is done."""
    end = start
    for block in range(blocks):
        end = max(end, raised_at[block]) + block_us
    return end


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.integers(1, 50),
    st.integers(5, 200),
    st.integers(1, 400),
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from((1.0, 1.5, 3.0)),
)
def test_the_end_is_that_of_the_last_block(
    blocks: int, gemm_us: int, send_us: int, late_us: int, disturbed: bool, polling: float
) -> None:
    """On the send's 8 SMs polling makes it `polling` times as long, on the GEMM's 100 signals cost nothing."""
    gemm = kernel("gemm", 100, gemm_us, grid=STATIC, raises="done", read_bytes=gemm_us * 10**6)
    send = kernel("c.send", 8, send_us, "alt", exchange="c", role="send", polls="done")
    # A third kernel slows the GEMM twice, from 3 us on for 8 us.
    other = kernel("other", 8, 4, "third", read_bytes=4 * 10**6)
    rules = Interference(1000.0)
    scene = program(
        [gemm, host(3), *([other] if disturbed else []), host(late_us), send],
        streams=[Stream("main"), Stream("alt"), Stream("third")],
        exchanges=[exchange("c", ((0,),), flight_us=0)],
        signals=[Signal("done", blocks, 1)],
    )
    signalled = (("spin", 1, 8, polling), ("spin", 1, 100, 1.0))
    timeline = simulate(scene, replace(machine(interference=rules), signalled=signalled))

    def gemm_time(work_us: float) -> float:
        """When the GEMM has done so many us of its work."""
        if not disturbed or work_us <= 3:
            return work_us
        return work_us + min(work_us - 3, 4)

    raised = [gemm_time(gemm_us * (block + 1) / blocks) for block in range(blocks)]
    block_us = polling * send_us / blocks
    end = last_block_end(blocks, raised_at=raised, start=3 + late_us, block_us=block_us)
    assert abs(span(timeline, "gemm").end_ns / US - raised[-1]) < 0.002
    assert abs(span(timeline, "c.send").end_ns / US - end) < 0.002
