"""Timelines worked out by hand: exchanges, links and signals. Times in us."""

from __future__ import annotations

from models.machine import Interference
from schedules.program import Signal, Stream
from simulator import simulate
from tests.simulator.spinning import (
    STATIC,
    US,
    exchange,
    host,
    kernel,
    machine,
    program,
    span,
    times,
)

MB = 1_000_000
PAIR = ((0, 4 * MB), (4 * MB, 0))


def whole(name: str, us: float, stream: str = "main", ctas: int = 24) -> object:
    """The transfer kernel of an exchange of that name."""
    return kernel(f"{name}.whole", ctas, us, stream, exchange=name, role="whole")


def test_a_late_peer_holds_up_both() -> None:
    early = [whole("x", 100)]
    late = [kernel("A", 132, 300), whole("x", 100, "alt")]
    timeline = simulate(program(early, late, exchanges=[exchange("x", PAIR)]), machine())
    # Rank 1 has no SM for its kernel before 300.4; rank 0 holds 24 SMs from 0 on.
    assert times(timeline, "x.whole", 0) == (0.0, 400.4)
    assert times(timeline, "x.whole", 1) == (300.4, 400.4)
    (stall,) = span(timeline, "x.whole", 0).stalls
    assert (stall.cause, stall.ns, stall.culprit_rank) == ("peer_wait", 300_400, 1)
    spinning = next(c for c in timeline.counters if c.name == "sms_spinning")
    assert (spinning.rank, spinning.points) == (0, ((0, 24), (300_000, 0)))


def test_an_exchange_goes_at_the_pace_of_its_slowest_rank() -> None:
    ranks = [[whole("x", 100)], [whole("x", 170)]]
    timeline = simulate(program(*ranks, exchanges=[exchange("x", PAIR)]), machine())
    assert times(timeline, "x.whole", 0) == times(timeline, "x.whole", 1) == (0.0, 170.0)


def test_two_exchanges_share_a_port() -> None:
    steps = [whole("x", 20), whole("y", 40, "alt")]
    exchanges = [exchange("x", PAIR), exchange("y", ((0, 6 * MB), (6 * MB, 0)))]
    scene = program(steps, steps, exchanges=exchanges)
    timeline = simulate(scene, machine(nvlink_gbps=240.0))
    # Alone x asks for 4 MB / 20 us = 200 GB/s and y for 150; 240 in fair shares are 120 each: x at
    # 0.6 of its pace ends at 33.33. y at 0.8 has 40 - 26.67 = 13.33 us left then, and goes on alone.
    assert times(timeline, "x.whole") == (0.0, 33.333)
    assert times(timeline, "y.whole") == (0.0, 46.667)
    assert [(s.cause, s.ns) for s in span(timeline, "x.whole").stalls] == [("link_wait", 13_333)]
    assert [(s.cause, s.ns) for s in span(timeline, "y.whole").stalls] == [("link_wait", 6_667)]


def test_an_exchange_alone_is_no_faster_than_its_port() -> None:
    scene = program([whole("x", 20)], [whole("x", 20)], exchanges=[exchange("x", PAIR)])
    # 4 MB in 20 us are 200 GB/s: a port of as much lets it go on at its own pace, one of half does not.
    assert times(simulate(scene, machine(nvlink_gbps=200.0)), "x.whole") == (0.0, 20.0)
    slow = simulate(scene, machine(nvlink_gbps=100.0))
    assert times(slow, "x.whole") == (0.0, 40.0)
    assert [(s.cause, s.ns) for s in span(slow, "x.whole").stalls] == [("link_wait", 20_000)]


def test_loopback_crosses_no_link() -> None:
    matrix = ((9 * MB, 2 * MB), (2 * MB, 9 * MB))
    steps = [whole("x", 20), whole("y", 20, "alt")]
    scene = program(steps, steps, exchanges=[exchange("x", matrix), exchange("y", matrix)])
    # 2 x 2 MB / 20 us = 200 GB/s: enough. With the diagonal it would be 1100.
    assert times(simulate(scene, machine(nvlink_gbps=200.0)), "x.whole") == (0.0, 20.0)


def test_ranks_on_different_nodes_use_their_nics() -> None:
    steps = [whole("x", 20), whole("y", 20, "alt")]
    scene = program(steps, steps, exchanges=[exchange("x", PAIR), exchange("y", PAIR)])
    fast_nic = machine(nvlink_gbps=1.0, nic_gbps=400.0, gpus_per_node=1)
    assert times(simulate(scene, fast_nic), "x.whole") == (0.0, 20.0)
    slow_nic = machine(nvlink_gbps=999.0, nic_gbps=200.0, gpus_per_node=1)
    assert times(simulate(scene, slow_nic), "x.whole") == (0.0, 40.0)


def low_latency(send_us: float, recv_us: float, *between: object) -> list[object]:
    """Send, something, receive on one stream."""
    send = kernel("x.send", 64, send_us, exchange="x", role="send")
    return [send, *between, kernel("x.recv", 64, recv_us, exchange="x", role="recv")]


def test_a_flight_holds_no_sms_and_starts_with_the_last_send() -> None:
    ranks = [low_latency(10, 5), [host(30), *low_latency(10, 5)]]
    timeline = simulate(
        program(*ranks, exchanges=[exchange("x", PAIR, flight_us=50)]),
        machine(),
    )
    assert times(timeline, "x.send", 0) == (0.0, 10.0)
    assert times(timeline, "x.send", 1) == (30.0, 40.0)
    assert times(timeline, "x.flight", 0) == (30.0, 80.0)
    # The receive kernel is placed at 11.8 and spins; its own 5 us follow the flight.
    assert times(timeline, "x.recv", 0) == (11.8, 85.0)
    stalls = [(s.cause, s.ns / US, s.culprit_rank) for s in span(timeline, "x.recv", 0).stalls]
    assert stalls == [("peer_wait", 18.2, 1), ("dependency", 50.0, 1)]
    resident = next(c for c in timeline.counters if c.name == "sms_resident" and c.rank == 0)
    assert resident.points == ((0, 64), (10_000, 0), (11_800, 64), (85_000, 0))


def test_a_flight_starts_when_the_last_send_has_all_its_ctas() -> None:
    # On rank 0 compute leaves 32 SMs: half of the send waits for it, and the reaction time of 0.4.
    busy = [kernel("A", 100, 30, "alt"), *low_latency(10, 5)]
    timeline = simulate(
        program(busy, low_latency(10, 5), exchanges=[exchange("x", PAIR, flight_us=50)]),
        machine(),
    )
    assert times(timeline, "x.send", 0) == (0.0, 40.4)
    assert times(timeline, "x.send", 1) == (0.0, 10.0)
    for rank in (0, 1):
        assert times(timeline, "x.flight", rank) == (30.4, 80.4)
    assert times(timeline, "x.recv", 1) == (11.8, 85.4)
    stalls = [(s.cause, s.ns / US, s.culprit_rank) for s in span(timeline, "x.recv", 1).stalls]
    assert stalls == [("peer_wait", 18.6, 0), ("dependency", 50.0, 0)]


def test_a_flight_ends_no_earlier_than_the_last_send_and_a_latency() -> None:
    ranks = [low_latency(10, 5), low_latency(60, 5)]
    timeline = simulate(
        program(*ranks, exchanges=[exchange("x", PAIR, flight_us=20)]),
        machine(),
    )
    assert times(timeline, "x.flight", 0) == (0.0, 61.0)  # 60 + 1 of latency
    assert times(timeline, "x.recv", 0) == (11.8, 66.0)
    assert times(timeline, "x.recv", 1) == (61.8, 66.8)


def test_compute_hides_a_flight() -> None:
    ranks = [low_latency(10, 5, kernel("A", 132, 80))] * 2
    timeline = simulate(
        program(*ranks, exchanges=[exchange("x", PAIR, flight_us=50)]),
        machine(),
    )
    assert times(timeline, "A") == (11.8, 91.8)
    assert times(timeline, "x.recv") == (93.6, 98.6)
    assert span(timeline, "x.recv").stalls == ()


def test_a_rank_that_receives_less_has_a_shorter_flight() -> None:
    matrix = ((0, 4 * MB), (1 * MB, 0))
    timeline = simulate(
        program(
            low_latency(1, 5), low_latency(1, 5), exchanges=[exchange("x", matrix, flight_us=40)]
        ),
        machine(),
    )
    assert times(timeline, "x.flight", 0) == (0.0, 10.0)
    assert times(timeline, "x.flight", 1) == (0.0, 40.0)


def test_without_a_flight_the_receive_waits_for_the_sends() -> None:
    ranks = [low_latency(10, 5), low_latency(30, 5)]
    scene = program(*ranks, exchanges=[exchange("x", PAIR, family="low_latency")])
    timeline = simulate(scene, machine())
    assert times(timeline, "x.recv", 0) == (11.8, 36.0)  # 30 + 1 of latency, then 5
    assert all(s.lane != "flight" for s in timeline.spans)


def test_sends_that_copy_in_line_share_links() -> None:
    steps = low_latency(10, 5)
    other = kernel("y.send", 24, 10, "alt", exchange="y", role="send")
    exchanges = [exchange(name, PAIR, family="low_latency") for name in "xy"]
    scene = program([*steps, other], [*steps, other], exchanges=exchanges)
    # 4 MB / 10 us = 400 GB/s each; the port has 500: 250 each, 16 us.
    assert times(simulate(scene, machine(nvlink_gbps=500.0)), "x.send") == (0.0, 16.0)


SIGNAL = Signal("done", blocks=10, threshold=1)


def signalled(gemm_us: float, send_us: float, *, first: str = "gemm") -> list[object]:
    """A grouped GEMM on 108 SMs that raises ten blocks, and a send that polls them."""
    gemm = kernel("gemm", 108, gemm_us, grid=STATIC, raises="done")
    send = kernel("c.send", 24, send_us, "alt", exchange="c", role="send", polls="done")
    return [gemm, send] if first == "gemm" else [send, gemm]


def test_a_combine_follows_the_blocks_of_its_producer() -> None:
    exchanges = [exchange("c", ((0,),), flight_us=0)]
    scene = program(signalled(100, 50), exchanges=exchanges, signals=[SIGNAL])
    timeline = simulate(scene, machine())
    # Blocks are complete at 10, 20, .. 100; each takes 5 to send: the last is sent at 105.
    assert times(timeline, "c.send") == (0.0, 105.0)
    (stall,) = span(timeline, "c.send").stalls
    assert (stall.cause, stall.ns, stall.culprit) == ("dependency", 55 * US, "gemm")


def test_a_slow_combine_starts_with_the_first_block() -> None:
    exchanges = [exchange("c", ((0,),), flight_us=0)]
    scene = program(signalled(100, 300), exchanges=exchanges, signals=[SIGNAL])
    # The first block is complete at 10, from then on the send has work: 10 + 300.
    assert times(simulate(scene, machine()), "c.send") == (0.0, 310.0)


def test_the_consumer_placed_first_slows_its_producer() -> None:
    gemm = kernel("gemm", 132, 100, grid=STATIC, raises="done")
    send = kernel("c.send", 24, 50, "alt", exchange="c", role="send", polls="done")
    exchanges = [exchange("c", ((0,),), flight_us=0)]
    scene = program([send, gemm], exchanges=exchanges, signals=[SIGNAL])
    timeline = simulate(scene, machine())
    # 24 CTAs of the static producer are placed when the others end at 100 and run their list then;
    # every block has tiles of theirs, so that the blocks are complete at 110, 120, .. 200.
    assert times(timeline, "gemm") == (0.0, 200.0)
    assert times(timeline, "c.send") == (0.0, 205.0)
    timeline = simulate(program([gemm, send], exchanges=exchanges, signals=[SIGNAL]), machine())
    assert times(timeline, "c.send") == (100.4, 150.4)


def test_memory_pressure_slows_communication() -> None:
    # c0 = 0.2, c1 = 0.5; the neighbour holds 66 of 132 SMs and moves 100 MB in 50 us = 2000 GB/s
    # of 4000: rho = 0.5, slowdown 1 + 0.2 x 0.5 + 0.5 x 1 = 1.6.
    rules = Interference(4000.0, (("normal", 0.2, 0.5),))
    steps = [kernel("A", 66, 50, read_bytes=100 * MB), whole("x", 40, "alt")]
    scene = program(steps, exchanges=[exchange("x", ((0,),))])
    timeline = simulate(scene, machine(interference=rules))
    assert times(timeline, "A") == (0.0, 50.0)
    # 50 / 1.6 = 31.25 done beside A, the other 8.75 alone.
    assert times(timeline, "x.whole") == (0.0, 58.75)


def test_three_kernels_share_hbm_by_demand() -> None:
    rules = Interference(1000.0)
    steps = [kernel(n, 40, 100, f"s{n}", read_bytes=60 * MB) for n in "abc"]
    streams = [Stream(f"s{n}") for n in "abc"]
    timeline = simulate(program(steps, streams=streams), machine(interference=rules))
    # 3 x 600 GB/s on 1000: all 1.8 times slower.
    assert {times(timeline, n) for n in "abc"} == {(0.0, 180.0)}
