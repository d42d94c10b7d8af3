"""What holds of every timeline, on random programs."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from unittest import mock

from hypothesis import HealthCheck, given, settings

from models.machine import Footprint, Gaps
from schedules.merit import bounds, stream_times
from schedules.program import Launch, Program, Record, Wait
from schedules.timeline import Span, Timeline
from simulator import simulate
from simulator.placement import Room
from tests.simulator.random_programs import ops, programs
from tests.simulator.spinning import machine

SOME = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
MACHINE = machine(nvlink_gbps=100.0)


def spans_by_op(timeline: Timeline) -> dict[tuple[int, str], Span]:
    """Spans by (rank, op)."""
    return {(span.rank, span.op): span for span in timeline.spans}


def placed_ns(span: Span) -> int:
    """When the last CTA of a kernel begins: without a gang, CTAs may wait for room after the first."""
    return span.start_ns + sum(stall.ns for stall in span.stalls if stall.cause == "sm_wait")


@SOME
@given(programs())
def test_every_op_runs_once_and_streams_are_in_order(program: Program) -> None:
    spans = spans_by_op(simulate(program, MACHINE))
    last: dict[tuple[int, str], Span] = {}
    for rank, op in ops(program):
        span = spans.pop((rank, op.name))
        assert span.ready_ns <= span.start_ns <= span.end_ns
        before = last.get((rank, op.stream))
        assert before is None or before.end_ns <= span.start_ns
        last[rank, op.stream] = span
    assert all(span.lane == "flight" for span in spans.values())


@SOME
@given(programs())
def test_the_room_of_an_sm_is_never_exceeded(program: Program) -> None:
    take = Room.take

    def checked(
        room: Room, allocation: int, cta: Footprint, ctas: int, *, packed: bool = False
    ) -> int:
        sms = take(room, allocation, cta, ctas, packed=packed)
        groups = room._groups.values()
        assert all(min(group.free) >= 0 for group in groups)
        assert sum(group.count for group in groups) == room.num_sms
        return sms

    with mock.patch.object(Room, "take", checked):
        timeline = simulate(program, MACHINE)
    for counter in timeline.counters:
        if counter.name == "sms_resident":
            assert max(value for _, value in counter.points) <= 132
            assert counter.points[-1][1] == 0


@SOME
@given(programs())
def test_nothing_starts_before_its_events(program: Program) -> None:
    spans = spans_by_op(simulate(program, MACHINE))
    for cls in program.classes:
        rank = cls.ranks[0]
        ended: defaultdict[str, int] = defaultdict(int)  # by stream: end of the work so far
        recorded: dict[str, int] = {}
        allowed: defaultdict[str, int] = defaultdict(int)  # by stream: start of the work to come
        for step in cls.steps:
            if isinstance(step, Launch):
                span = spans[rank, step.op.name]
                assert span.start_ns >= allowed[step.op.stream]
                ended[step.op.stream] = span.end_ns
            elif isinstance(step, Record):
                recorded[step.event] = max(ended[step.stream], allowed[step.stream])
            elif isinstance(step, Wait) and step.event in recorded:
                allowed[step.stream] = max(allowed[step.stream], recorded[step.event])


@SOME
@given(programs())
def test_an_exchange_progresses_only_when_every_kernel_is_placed(program: Program) -> None:
    spans = spans_by_op(simulate(program, MACHINE))
    for exchange in program.exchanges:
        whole = [s for (_, op), s in spans.items() if op == f"{exchange.name}.whole"]
        if whole:
            assert len({span.end_ns for span in whole}) == 1
            assert whole[0].end_ns >= max(placed_ns(s) + s.alone_ns for s in whole) - 1
            continue
        for rank in exchange.ranks:
            sends = [spans[other, f"{exchange.name}.send"] for other in exchange.ranks]
            receive = spans[rank, f"{exchange.name}.recv"]
            assert receive.end_ns >= max(send.end_ns for send in sends) + receive.alone_ns - 1
            if exchange.flight is not None:
                flight = spans[rank, f"{exchange.name}.flight"]
                assert flight.start_ns == max(placed_ns(send) for send in sends)
                assert flight.duration_ns >= flight.alone_ns - 1
                assert receive.end_ns >= flight.end_ns + receive.alone_ns - 1


@SOME
@given(programs(own_sm=True, max_ranks=1))
def test_work_is_conserved(program: Program) -> None:
    timeline = simulate(program, machine(gaps=Gaps(reaction=0)))
    resident = [c.points for c in timeline.counters if c.name == "sms_resident"]
    held = sum(
        (until - since) * value
        for points in resident
        for (since, value), (until, _) in pairwise(points)
    )
    # Each CTA fills an SM for its time; the kernels of exchanges hold theirs while they wait.
    due = 0
    for span in timeline.spans:
        if span.lane == "flight":
            continue
        op = next(op for _, op in ops(program) if op.name == span.op)
        if op.exchange is not None:
            due += span.sms * span.duration_ns
        else:
            due += op.work.dim("ctas") * op.work.dim("cta_ns")
    # A kernel on few SMs ends within a ns of a whole number of waves.
    assert abs(held - due) <= 132 * len(timeline.spans)


@SOME
@given(programs())
def test_no_timeline_beats_a_bound(program: Program) -> None:
    assert simulate(program, MACHINE).makespan_ns >= bounds(program, MACHINE).largest_ns - 1


@SOME
@given(programs())
def test_busy_and_bubbles_add_up_to_the_makespan(program: Program) -> None:
    timeline = simulate(program, MACHINE)
    for stream in stream_times(timeline):
        assert stream.busy_ns + sum(stream.bubbles_ns.values()) == timeline.makespan_ns
        assert stream.bubbles_ns["unexplained"] == 0


@SOME
@given(programs())
def test_waits_end_at_the_start_and_stalls_lie_within(program: Program) -> None:
    ends: defaultdict[tuple[int, str], int] = defaultdict(int)
    for span in simulate(program, MACHINE).spans:
        if span.lane != "flight":
            assert ends[span.rank, span.lane] + sum(w.ns for w in span.waits) == span.start_ns
            ends[span.rank, span.lane] = span.end_ns
        assert all(wait.ns > 0 for wait in (*span.waits, *span.stalls))
        assert sum(stall.ns for stall in span.stalls) <= span.duration_ns


@SOME
@given(programs())
def test_the_same_input_gives_the_same_timeline(program: Program) -> None:
    assert repr(simulate(program, MACHINE, skew_ns=50_000, seed=7)) == repr(
        simulate(program, MACHINE, skew_ns=50_000, seed=7)
    )
