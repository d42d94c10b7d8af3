"""Figures of merit on small timelines made by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schedules.merit import (
    cost_shares,
    critical_path,
    exposed_by_layer_ns,
    exposed_ns,
    kind_ns,
    layer_ns,
    sm_resident_fraction,
    sm_spinning_fraction,
    steady,
    stream_times,
)
from schedules.merit.intervals import minus, total, union
from schedules.timeline import CAUSES, Cause, Counter, Span, Timeline, Waited

_INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def _timeline(*spans: Span, counters: tuple[Counter, ...] = ()) -> Timeline:
    ordered = sorted(spans, key=lambda s: (s.start_ns, s.rank, s.lane, s.op))
    return Timeline("p", "m", "predicted", tuple(ordered), counters)


def _span(
    op: str, start: int, end: int, *waits: Waited, lane: str = "main", rank: int = 0, **more: object
) -> Span:
    fields: dict[str, object] = {"kind": "gemm", "waits": waits, **more}
    return Span(op, rank, lane, start, start, end, **fields)  # type: ignore[arg-type]


@given(_INTERVALS, _INTERVALS)
def test_union_and_difference_are_those_of_sets(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    def points(intervals: list[tuple[int, int]]) -> set[int]:
        return {at for start, end in intervals for at in range(start, end)}

    assert points(union(one)) == points(one)
    assert total(union(one)) == len(points(one))
    assert points(minus(union(one), union(other))) == points(one) - points(other)


def test_bubbles_of_one_stream_by_cause() -> None:
    timeline = _timeline(
        _span("a", 10, 30, Waited("host", 10)),
        _span(
            "b", 47, 60, Waited("queued", 5, "a", 0), Waited("dependency", 8), Waited("sm_wait", 4)
        ),
        _span("c", 62, 70, lane="alt"),
    )
    main, alt = sorted(stream_times(timeline), key=lambda times: times.stream, reverse=True)
    assert main.busy_ns == 20 + 13
    nonzero = {cause: ns for cause, ns in main.bubbles_ns.items() if ns}
    assert nonzero == {"host": 10, "queued": 5, "dependency": 8, "sm_wait": 4, "drained": 10}
    assert alt.busy_ns == 8
    assert {cause: ns for cause, ns in alt.bubbles_ns.items() if ns} == {"unexplained": 62}


def test_bubbles_of_a_window_are_cut_at_its_edges() -> None:
    waits = (Waited("queued", 5), Waited("dependency", 10))
    timeline = _timeline(_span("a", 0, 10), _span("b", 25, 40, *waits))
    (main,) = stream_times(timeline, (12, 30))
    assert {cause: ns for cause, ns in main.bubbles_ns.items() if ns} == {
        "queued": 3,
        "dependency": 10,
    }
    assert main.busy_ns == 5


_GAPS = st.lists(
    st.tuples(st.sampled_from(CAUSES), st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


@given(_GAPS, st.integers(0, 40), st.integers(0, 40))
def test_busy_plus_bubbles_is_the_makespan(
    gaps: list[tuple[Cause, int, int, int]], one: int, other: int
) -> None:
    spans, now = [], 0
    for number, (cause, wait, length, hidden) in enumerate(gaps):
        now += wait + hidden
        spans.append(_span(f"op{number}", now, now + length, Waited(cause, wait)))
        now += length
    timeline = _timeline(*spans, _span("end", now, now + 7, lane="alt"))
    for times in stream_times(timeline):
        assert times.busy_ns + sum(times.bubbles_ns.values()) == timeline.makespan_ns
    window = (min(one, other), max(one, other) + 1)
    for times in stream_times(timeline, window):
        assert times.busy_ns + sum(times.bubbles_ns.values()) == window[1] - window[0]


def _communication() -> Timeline:
    return _timeline(
        _span("L0.gemm", 0, 20, layer=0),
        _span("L0.dispatch", 10, 50, lane="comm", kind="dispatch", layer=0),
        _span("L0.flight", 40, 60, lane="flight", kind="flight", layer=0),
        _span("L1.combine", 55, 90, lane="comm", kind="combine", layer=1),
        _span("L1.gemm", 70, 80, layer=1),
        _span("other", 0, 100, rank=1),
        _span("L0.dispatch", 20, 30, lane="comm", kind="dispatch", layer=0, rank=1),
    )


def test_exposed_communication_is_what_no_kernel_covers() -> None:
    # rank 0: communication covers 10 to 90, compute 0 to 20 and 70 to 80: 80 - 10 - 10.
    assert exposed_ns(_communication()) == {0: 60, 1: 0}
    assert exposed_ns(_communication(), (0, 50)) == {0: 30, 1: 0}


def test_exposed_communication_goes_to_the_layer_that_began_first() -> None:
    # layer 0 is on until 60; from there layer 1, without 70 to 80.
    assert exposed_by_layer_ns(_communication(), 0) == {0: 40, 1: 20}


@given(_INTERVALS, _INTERVALS, _INTERVALS)
def test_exposed_communication_of_the_layers_adds_up(
    first: list[tuple[int, int]], second: list[tuple[int, int]], compute: list[tuple[int, int]]
) -> None:
    spans = []
    for layer, (kind, intervals) in enumerate(
        [("dispatch", first), ("flight", second), ("gemm", compute)]
    ):
        for number, (one, other) in enumerate(intervals):
            start, end = min(one, other), max(one, other)
            spans.append(_span(f"{kind}{number}", start, end, kind=kind, layer=layer))
    timeline = _timeline(*spans, _span("last", 50, 60))
    by_layer = exposed_by_layer_ns(timeline, 0)
    assert sum(by_layer.values()) == exposed_ns(timeline)[0]


def test_time_by_kind_and_share_by_label() -> None:
    spans = (
        _span("a", 0, 30, alone_ns=30, label="measured"),
        _span("b", 30, 40, alone_ns=10, label="roofline", kind="norm"),
        _span("c", 0, 5, lane="alt", kind="norm"),
    )
    assert kind_ns(_timeline(*spans), 0) == {"gemm": 30, "norm": 15}
    assert cost_shares(_timeline(*spans)) == {"measured": 0.75, "roofline": 0.25}
    assert cost_shares(_timeline(spans[2])) == {}


def test_fractions_of_sms_over_time_and_ranks() -> None:
    resident = (
        Counter("sms_resident", 0, ((0, 100.0), (50, 20.0))),
        Counter("sms_resident", 1, ((0, 0.0), (60, 40.0))),
    )
    timeline = _timeline(_span("a", 0, 100), counters=resident)
    # rank 0: 100 * 50 + 20 * 50; rank 1: 40 * 40; of 100 SMs * 100 ns * 2 ranks
    assert sm_resident_fraction(timeline, 100) == (6000 + 1600) / 20000
    assert sm_resident_fraction(timeline, 100, (40, 60)) == (1000 + 200) / 4000
    assert sm_spinning_fraction(timeline, 100) is None


def _layers(*ends: int) -> Timeline:
    spans = [_span("embed", 0, 5), _span("dense", 5, 9, layer=0)]
    for layer, end in enumerate(ends, start=1):
        spans.append(_span(f"L{layer}.x", end - 5, end, layer=layer, kind="combine", lane="comm"))
    return _timeline(*spans)


def test_the_steady_layer_leaves_out_the_first_and_the_last() -> None:
    assert layer_ns(_layers(100, 140, 190, 400)) == 45
    assert steady(_layers(100, 140, 190, 400)) is not None
    assert layer_ns(_layers(100, 140, 190)) == 45
    assert layer_ns(_layers(100, 140)) == 40
    assert layer_ns(_layers(100)) == 5
    assert layer_ns(_timeline(_span("a", 0, 9, layer=0))) is None


def test_the_path_through_streams_gaps_and_the_host() -> None:
    timeline = _timeline(
        _span("a", 10, 30, Waited("host", 10)),
        _span("b", 35, 60, Waited("queued", 5, "a", 0)),
        _span("c", 66, 90, Waited("dependency", 66, "b", 0), lane="alt"),
        _span("d", 62, 70, Waited("queued", 2, "b", 0)),
    )
    assert [(item.op, item.rank, item.ns) for item in critical_path(timeline)] == [
        ("host", 0, 10),
        ("a", 0, 20),
        ("b", 0, 30),
        ("c", 0, 30),
    ]


def test_the_path_goes_to_the_peer_that_came_late() -> None:
    late = _span("x", 50, 90, Waited("queued", 2, "slow", 1), rank=1, kind="dispatch")
    early = _span(
        "x", 20, 92, Waited("host", 20), stalls=(Waited("peer_wait", 30, "x", 1),), kind="dispatch"
    )
    slow = _span("slow", 4, 48, Waited("host", 4), rank=1)
    items = critical_path(_timeline(late, early, slow))
    assert [(item.op, item.rank, item.ns) for item in items] == [
        ("host", 1, 4),
        ("slow", 1, 44),
        ("x", 1, 2),
        ("x", 0, 42),
    ]


def test_the_path_goes_through_the_flight_to_the_send() -> None:
    stall = (Waited("dependency", 60, "L0.d.send", 0),)
    timeline = _timeline(
        _span("L0.d.send", 0, 10, kind="dispatch_send", layer=0),
        _span("L0.d.flight", 0, 70, lane="flight", kind="flight", layer=0),
        _span("L0.d.recv", 12, 80, kind="dispatch_recv", layer=0, stalls=stall),
    )
    assert [(item.op, item.ns) for item in critical_path(timeline)] == [
        ("L0.d.flight", 70),
        ("L0.d.recv", 10),
    ]


def test_the_path_enters_a_send_when_its_last_ctas_were_placed() -> None:
    # Half of the send on rank 0 waits for "A"; the flights start, and rank 1 waits, until 34.
    parts = (Waited("sm_wait", 34, "A", 0),)
    late = (Waited("dependency", 38, "L0.d.send", 0),)
    spun = (Waited("peer_wait", 22, "L0.d.send", 0), Waited("dependency", 50, "L0.d.send", 0))
    sends = (
        _span("L0.d.send", 0, 44, stalls=parts, kind="dispatch_send"),
        _span("L0.d.send", 0, 10, rank=1, kind="dispatch_send"),
    )
    queued = Waited("queued", 2, "L0.d.send", 0)
    receives = (
        _span("L0.d.recv", 46, 90, queued, stalls=late, kind="dispatch_recv"),
        _span("L0.d.recv", 12, 90, stalls=spun, rank=1, kind="dispatch_recv"),
    )
    flights = (
        _span("L0.d.flight", 34, 84, lane="flight", kind="flight", rank=rank) for rank in (0, 1)
    )
    timeline = _timeline(_span("A", 0, 30, lane="alt"), *sends, *receives, *flights)
    assert [(item.op, item.rank, item.ns) for item in critical_path(timeline)] == [
        ("A", 0, 30),
        ("L0.d.send", 0, 4),
        ("L0.d.flight", 0, 50),
        ("L0.d.recv", 0, 6),
    ]


def test_the_path_enters_a_peer_when_its_last_ctas_were_placed() -> None:
    # The peer starts first, and has all its CTAs last: "A" gives SMs back on the way, and runs on.
    parts = (Waited("sm_wait", 34, "A", 1),)
    peer = (Waited("peer_wait", 29, "x", 1),)
    timeline = _timeline(
        _span("A", 0, 60, rank=1, lane="alt"),
        _span("x", 0, 80, rank=1, kind="dispatch", stalls=parts),
        _span("x", 5, 80, Waited("host", 5), kind="dispatch", stalls=peer),
    )
    assert [(item.op, item.rank, item.ns) for item in critical_path(timeline)] == [
        ("A", 1, 34),
        ("x", 0, 46),
    ]


def test_the_path_leaves_a_kernel_where_it_freed_sms() -> None:
    timeline = _timeline(
        _span("big", 0, 100),
        _span("small", 40, 120, Waited("sm_wait", 40, "big", 0), lane="alt"),
    )
    assert [(item.op, item.ns) for item in critical_path(timeline)] == [("big", 40), ("small", 80)]


def test_a_measured_path_takes_the_last_end_before() -> None:
    timeline = _timeline(
        _span("a", 5, 30), _span("b", 32, 60, lane="alt"), _span("c", 64, 70), _span("d", 40, 50)
    )
    assert [(item.op, item.ns) for item in critical_path(timeline)] == [
        ("start", 5),
        ("a", 25),
        ("b", 30),
        ("c", 10),
    ]


def test_a_window_of_the_path_is_cut_at_its_edges() -> None:
    timeline = _timeline(_span("a", 0, 30), _span("b", 35, 60, Waited("queued", 5, "a", 0)))
    items = critical_path(timeline, (20, 50))
    assert [(item.op, item.ns) for item in items] == [("a", 10), ("b", 20)]
    assert critical_path(_timeline()) == ()


_RANDOM = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["main", "alt"]),
        st.integers(0, 50),
        st.integers(0, 30),
        st.sampled_from(CAUSES),
        st.integers(0, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


@given(_RANDOM)
def test_any_path_adds_up_to_the_makespan(
    raw: list[tuple[int, str, int, int, Cause, int, bool]],
) -> None:
    """Whatever the culprits say, also nonsense: no gap, no overlap, no endless walk."""
    spans = []
    for number, (rank, lane, start, length, cause, culprit, inside) in enumerate(raw):
        other = culprit % len(raw)
        wait = Waited(cause, start + 1, f"op{other}", raw[other][0])
        stalls = (wait,) if inside else ()
        spans.append(
            _span(f"op{number}", start, start + length, wait, rank=rank, lane=lane, stalls=stalls)
        )
    timeline = _timeline(*spans)
    items = critical_path(timeline)
    assert sum(item.ns for item in items) == timeline.makespan_ns
    edges = [0, *(item.end_ns for item in items)]
    assert [item.start_ns for item in items] == edges[:-1]
