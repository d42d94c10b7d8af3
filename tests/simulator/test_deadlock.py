"""Programs that cannot end, and the circle that says why; each with a near miss that ends."""

from __future__ import annotations

import pytest

from schedules.program import HostWait, Program, Record, Signal, Step
from simulator import Deadlock, simulate
from tests.simulator.spinning import STATIC, exchange, kernel, machine, program

PAIR = ((0, 1000), (1000, 0))
X_AND_Y = (exchange("x", PAIR), exchange("y", PAIR))


def whole(name: str, ctas: int, stream: str = "main") -> object:
    """The transfer kernel of an exchange."""
    return kernel(f"{name}.whole", ctas, 10, stream, exchange=name, role="whole")


def test_two_exchanges_in_different_orders_where_one_fits() -> None:
    first = [whole("x", 100), whole("y", 100, "alt")]
    second = [whole("y", 100), whole("x", 100, "alt")]
    with pytest.raises(Deadlock) as caught:
        simulate(program(first, second, exchanges=X_AND_Y), machine())
    assert sorted(caught.value.cycle) == [
        "x.whole (rank 0)",
        "x.whole (rank 1)",
        "y.whole (rank 0)",
        "y.whole (rank 1)",
    ]
    text = str(caught.value)
    assert "x.whole (rank 0) waits for its peer x.whole (rank 1)" in text
    assert "x.whole (rank 1) waits for SMs of y.whole (rank 1)" in text


def test_the_same_where_both_fit() -> None:
    first = [whole("x", 66), whole("y", 66, "alt")]
    second = [whole("y", 66), whole("x", 66, "alt")]
    assert simulate(program(first, second, exchanges=X_AND_Y), machine()).makespan_ns == 10_000


def test_hosts_that_wait_for_each_other() -> None:
    first = [whole("x", 1), Record("E", "main"), HostWait("E"), whole("y", 1)]
    second = [whole("y", 1), Record("E", "main"), HostWait("E"), whole("x", 1)]
    with pytest.raises(Deadlock) as caught:
        simulate(program(first, second, exchanges=X_AND_Y), machine())
    assert len(caught.value.cycle) == 8
    assert "host of rank 1 waits for event E (rank 1)" in str(caught.value)
    assert simulate(program(first, first, exchanges=X_AND_Y), machine()).spans


def test_a_rank_that_never_joins() -> None:
    only = [whole("x", 1), kernel("A", 1, 10)]
    with pytest.raises(Deadlock) as caught:
        simulate(program(only, [kernel("A", 1, 10)], exchanges=X_AND_Y), machine())
    assert caught.value.cycle == ()
    assert caught.value.stuck == (
        "A (rank 0) is in its stream behind x.whole (rank 0)",
        "whole of rank 1, never launched is up to the host of rank 1",
        "x.whole (rank 0) waits for its peer whole of rank 1, never launched",
    )


@pytest.mark.parametrize("ctas", [132, 108])
def test_a_consumer_that_starves_its_producer(ctas: int) -> None:
    gang = type(STATIC)(kind="static", gang=True)
    send = kernel("c.send", 24, 50, "alt", exchange="c", role="send", polls="done")
    gemm = kernel("gemm", ctas, 100, grid=gang, raises="done")

    def scene(*steps: Step) -> Program:
        exchanges = [exchange("c", ((0,),), flight_us=0)]
        return program(steps, exchanges=exchanges, signals=[Signal("done", 10, 1)])

    if ctas == 108:
        assert simulate(scene(send, gemm), machine()).makespan_ns == 105_000
        return
    # Both are ready at 0: what is launched first is placed first, and the send waits for the GEMM ...
    assert simulate(scene(gemm, send), machine()).makespan_ns == 150_400
    # ... or holds SMs that all of the GEMM needs.
    with pytest.raises(Deadlock) as caught:
        simulate(scene(send, gemm), machine())
    assert sorted(caught.value.cycle) == ["c.send (rank 0)", "gemm (rank 0)"]


def test_a_signal_that_nobody_raises() -> None:
    send = kernel("c.send", 24, 50, "alt", exchange="c", role="send", polls="done")
    scene = program(
        [send], exchanges=[exchange("c", ((0,),), flight_us=0)], signals=[Signal("done", 10, 1)]
    )
    with pytest.raises(Deadlock, match="polls a signal not launched by the host of rank 0"):
        simulate(scene, machine())
