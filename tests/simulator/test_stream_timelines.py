"""Timelines worked out by hand: streams, events, graphs and the host. Times in us."""

from __future__ import annotations

import pytest

from models.machine import Gaps
from models.spin import spin_machine
from schedules.program import Begin, End, HostWait, HostWork, Record, Stream, Wait
from schedules.timeline import Timeline
from simulator import simulate
from tests.simulator.spinning import US, host, kernel, machine, program, span, times


def causes(timeline: Timeline, op: str) -> list[tuple[str, float, str | None]]:
    """The waits of an op: cause, us, culprit."""
    return [(w.cause, w.ns / US, w.culprit) for w in span(timeline, op).waits]


def test_gaps_on_one_stream() -> None:
    steps = [kernel("A", 1, 10), kernel("B", 1, 10), Record("E", "main"), kernel("C", 1, 10)]
    timeline = simulate(program(steps), machine())
    assert times(timeline, "B") == (11.8, 21.8)  # 10 + 1.8
    assert times(timeline, "C") == (25.6, 35.6)  # 21.8 + 3.8, an event lies between
    assert causes(timeline, "C") == [("queued", 3.8, "B")]


def test_an_event_across_streams() -> None:
    steps = [
        kernel("A", 1, 10),
        Record("E", "main"),
        Wait("E", "alt"),
        kernel("B", 1, 10, "alt"),
        Record("F", "alt"),
        Wait("F", "main"),
        kernel("C", 1, 5),
    ]
    timeline = simulate(program(steps), machine())
    assert times(timeline, "B") == (11.7, 21.7)  # 10 + 1.7
    assert causes(timeline, "B") == [("dependency", 11.7, "A")]
    # main's own gap ends at 10 + 3.8; B's event opens at 21.7 + 1.7.
    assert times(timeline, "C") == (23.4, 28.4)
    assert causes(timeline, "C") == [("queued", 3.8, "A"), ("dependency", 9.6, "B")]


def test_a_record_behind_a_wait_passes_the_wait_on() -> None:
    steps = [
        kernel("A", 1, 10),
        Record("E", "main"),
        Wait("E", "alt"),
        Record("F", "alt"),
        Wait("F", "third"),
        kernel("B", 1, 10, "third"),
    ]
    streams = [Stream("main"), Stream("alt"), Stream("third")]
    timeline = simulate(program(steps, streams=streams), machine())
    assert times(timeline, "B") == (13.4, 23.4)  # 10 + 1.7 + 1.7
    graph = [Begin("graph", "g"), *steps, End("graph", "g")]
    timeline = simulate(program(graph, streams=streams), machine())
    assert times(timeline, "B") == (20.8, 30.8)  # launched at 10; one edge of 0.8 after A


def test_a_wait_for_an_event_not_yet_recorded_is_ignored() -> None:
    steps = [Wait("E", "alt"), kernel("B", 1, 10, "alt"), kernel("A", 1, 10), Record("E", "main")]
    assert times(simulate(program(steps), machine()), "B") == (0.0, 10.0)


def test_a_graph_is_paid_once_and_its_gaps_are_small() -> None:
    inside = [kernel("A", 1, 10), kernel("B", 1, 10), Record("E", "main"), Wait("E", "alt")]
    steps = [Begin("graph", "g"), *inside, kernel("C", 1, 10, "alt"), kernel("D", 1, 5)]
    scene = program([*steps, End("graph", "g"), kernel("F", 1, 5)])
    timeline = simulate(scene, spin_machine(host_ns=7 * US))
    assert times(timeline, "A") == (10.0, 20.0)  # the launch of the graph
    assert times(timeline, "B") == (20.8, 30.8)  # a node
    assert times(timeline, "C") == (31.6, 41.6)  # an edge across streams
    assert times(timeline, "D") == (31.6, 36.6)  # a node: records cost a graph nothing
    assert times(timeline, "F") == (38.4, 43.4)  # behind the graph, launched at 17
    assert causes(timeline, "F") == [("queued", 1.8, "D")]


def test_a_host_bound_stream() -> None:
    steps = [kernel(name, 1, 5) for name in "ABC"]
    timeline = simulate(program(steps), spin_machine(host_ns=9 * US))
    assert [times(timeline, name) for name in "ABC"] == [(9.0, 14.0), (18.0, 23.0), (27.0, 32.0)]
    # 1.8 of the 4 us between two kernels are the launch gap, the rest is the host's.
    assert causes(timeline, "B") == [("queued", 1.8, "A"), ("host", 2.2, None)]


def test_a_host_wait_stalls_what_follows() -> None:
    steps = [
        kernel("A", 1, 50),
        Record("counts", "main"),
        HostWait("counts"),
        host(12),
        kernel("B", 1, 10),
        kernel("C", 1, 10, "alt"),
    ]
    timeline = simulate(program(steps), machine())
    # The event completes at 50, the host works 12 us, then launches.
    assert times(timeline, "B") == (62.0, 72.0)
    assert times(timeline, "C") == (62.0, 72.0)
    assert causes(timeline, "B") == [("queued", 3.8, "A"), ("host", 8.2, "A")]
    assert causes(timeline, "C") == [("host", 62.0, "A")]


def test_a_host_that_is_ahead_pays_nothing_for_its_wait() -> None:
    steps = [kernel("A", 1, 5), Record("E", "main"), host(20), HostWait("E"), kernel("B", 1, 5)]
    timeline = simulate(program(steps), machine())
    assert times(timeline, "B") == (20.0, 25.0)
    assert causes(timeline, "B") == [("queued", 3.8, "A"), ("host", 11.2, None)]


def test_waits_and_spans_of_a_stream_fill_the_time() -> None:
    steps = [kernel("A", 132, 50), host(20), kernel("B", 24, 5, "alt"), kernel("C", 132, 9, "alt")]
    timeline = simulate(program(steps), machine())
    alt = [s for s in timeline.spans if s.lane == "alt"]
    assert sum(s.duration_ns + sum(w.ns for w in s.waits) for s in alt) == alt[-1].end_ns


def test_an_unknown_host_class_is_an_error() -> None:
    with pytest.raises(KeyError, match="no host cost for class 'yoga'"):
        simulate(program([HostWork("yoga")]), machine())


THREE = (Stream("main"), Stream("alt"), Stream("third"))
TURNS = Gaps(event=1800, turn=1300)


def test_streams_that_share_a_front_end_wait_for_its_turn() -> None:
    first = [kernel("A", 1, 10), kernel("B", 1, 10)]
    other = [kernel("T", 1, 100, "third"), kernel("U", 1, 10, "third")]
    timeline = simulate(program([*first, *other], streams=THREE), machine(gaps=TURNS))
    # main and third share the first of two front ends; U is still to be started when A ends.
    assert times(timeline, "B") == (13.1, 23.1)  # 10 + 1.8 + 1.3
    assert causes(timeline, "B") == [("queued", 3.1, "A")]
    assert times(timeline, "U") == (101.8, 111.8)  # nothing is pending on main any more
    # T alone is started already; alt has the other front end.
    beside = [kernel("T", 1, 100, "third"), kernel("U", 1, 100, "alt"), kernel("V", 1, 10, "alt")]
    timeline = simulate(program([*first, *beside], streams=THREE), machine(gaps=TURNS))
    assert times(timeline, "B") == (11.8, 21.8)


def test_a_front_end_starts_what_one_event_releases_a_turn_apart() -> None:
    steps = [
        kernel("A", 1, 10),
        Record("E", "main"),
        Wait("E", "alt"),
        kernel("C", 1, 10, "alt"),
        Wait("E", "third"),
        kernel("D", 1, 10, "third"),
        kernel("B", 1, 10),
    ]
    timeline = simulate(program(steps, streams=THREE), machine(gaps=TURNS))
    assert times(timeline, "C") == (11.7, 21.7)  # alone on its front end
    assert times(timeline, "B") == (13.1, 23.1)  # measured on an H200: 1.7, 2.9 and 4.4 after A
    assert times(timeline, "D") == (14.4, 24.4)
    assert causes(timeline, "D") == [("dependency", 14.4, "A")]
