"""Slack: how much later an op could end without the makespan growing.

The graph of the program (streams, events, host, exchanges, signals) is followed backwards over the
times of the timeline. Between two nodes the least lag is what was seen where the wait was binding:
an op's own time without its stalls, the launch gap after the predecessor, the whole wait for an
event that came last. Who waited for SMs also waits for the ops that freed them, and who took longer
than alone for those that ended beside it.

The slack is that of an op's end: an op that let others go on before its end (by SMs that it gave
back, by a signal) may be on the critical path and still have some.
"""

from __future__ import annotations

from dataclasses import replace

from schedules.graph import OWN, Graph, Node, build_graph
from schedules.merit.room import ROOM, Key, Room, own_ns
from schedules.program import Program
from schedules.timeline import Span, Timeline


def slack_ns(timeline: Timeline, program: Program) -> dict[Key, int]:
    """Slack of every op in ns by (rank, op name).

    Only ops of `program` that the timeline has spans of are listed. ValueError when the program has
    a cycle.
    """
    unfolded = _on_ranks(program, timeline.ranks)
    graph = build_graph(unfolded)
    keys = [_key(unfolded, node) for node in graph.nodes]
    spans = {(span.rank, span.op): span for span in timeline.spans}
    for number in graph.end.values():
        op = graph.nodes[number].op
        if op is not None and op.exchange is not None and keys[number] in spans:
            spans[keys[number]] = _from_placed(spans[keys[number]])
    room = Room(graph, keys, spans)
    room.add_edges()
    order, stuck = graph.order()
    if stuck:
        raise ValueError(f"program {program.name!r} has a cycle")
    makespan = timeline.makespan_ns
    latest = [makespan] * len(graph.nodes)
    lags = _Lags(graph, keys, spans, room.lags)
    for node in reversed(order):
        for earlier, reason in graph.into[node]:
            latest[earlier] = min(
                latest[earlier], latest[node] - lags.between(earlier, node, reason)
            )
    found = {
        keys[number]: max(0, latest[number] - spans[keys[number]].end_ns)
        for number in graph.end.values()
        if keys[number] in spans
    }
    return _ending_together(found, room)


def _ending_together(slack: dict[Key, int], room: Room) -> dict[Key, int]:
    """The kernels of one exchange that end together are late together: the least slack of theirs."""
    least: dict[tuple[str, str], int] = {}
    groups = {key: room.together(key) for key in slack}
    for key, group in groups.items():
        if group is not None:
            least[group] = min(slack[key], least.get(group, slack[key]))
    return {
        key: ns if (group := groups[key]) is None else least[group] for key, ns in slack.items()
    }


def _on_ranks(program: Program, ranks: tuple[int, ...]) -> Program:
    """The program with one class for each rank of the timeline."""
    wanted = set(ranks)
    classes = tuple(
        replace(cls, ranks=(rank,))
        for cls in program.classes
        for rank in cls.ranks
        if rank in wanted
    )
    return replace(program, classes=classes)


def _key(program: Program, node: Node) -> Key:
    if node.op is None:
        return -1, node.what
    return program.classes[node.cls].ranks[0], node.op.name


def _from_placed(span: Span) -> Span:
    """A kernel of an exchange does nothing before all its CTAs are placed: its span from there."""
    late = tuple(stall for stall in span.stalls if stall.cause == "sm_wait")
    stalls = tuple(stall for stall in span.stalls if stall.cause != "sm_wait")
    return replace(span, start_ns=span.placed_ns, waits=(*span.waits, *late), stalls=stalls)


class _Lags:
    """The least time between two nodes, as the timeline shows it."""

    def __init__(
        self,
        graph: Graph,
        keys: list[Key],
        spans: dict[Key, Span],
        room: dict[tuple[int, int], int],
    ) -> None:
        self.graph = graph
        self.keys = keys
        self.spans = spans
        self.room = room
        self.reached: dict[int, int] = {}
        for number in graph.order()[0]:
            if graph.nodes[number].op is None:
                self.reached[number] = self._met(number)

    def _met(self, number: int) -> int:
        """When the last one came to a meeting point, or all that the host waited for had ended."""
        return max((self._time(earlier) for earlier, _ in self.graph.into[number]), default=0)

    def _time(self, number: int) -> int:
        span = self.spans.get(self.keys[number])
        if span is None:
            return self.reached.get(number, 0)
        return span.start_ns if self.graph.nodes[number].what == "start" else span.end_ns

    def between(self, earlier: int, later: int, reason: str) -> int:
        span = self.spans.get(self.keys[later])
        if span is None:
            return 0
        if reason == ROOM:
            return self.room[earlier, later]
        if reason == OWN:
            return own_ns(span)
        if self.graph.nodes[earlier].exchange is not None:
            return self._after_meeting(earlier, span)
        if self.graph.nodes[later].what == "end":
            return self._after_signal(earlier, span)
        return self._before_start(earlier, span)

    def _before_start(self, earlier: int, span: Span) -> int:
        """The launch gap always; of other waits the one that came last, which was binding."""
        since = max(0, span.start_ns - self._time(earlier))
        rank, op = self.keys[earlier]
        for index, wait in enumerate(span.waits):
            binding = index == len(span.waits) - 1
            if self.graph.nodes[earlier].op is None:
                if binding and wait.cause == "host":
                    return since
            elif (wait.culprit, wait.culprit_rank) == (op, rank):
                if binding:
                    return since
                if wait.cause == "queued":
                    return min(wait.ns, since)
        return 0

    def _after_signal(self, raiser: int, span: Span) -> int:
        """What a polling kernel still did after the raising kernel's end, if it had to wait for it."""
        rank, op = self.keys[raiser]
        waited = any((s.culprit, s.culprit_rank) == (op, rank) for s in span.stalls)
        return max(0, span.end_ns - self._time(raiser)) if waited else 0

    def _after_meeting(self, meeting: int, span: Span) -> int:
        """What a kernel of an exchange does once it may: its own time, after the flight if it is a
        receive, after the last send's latency if that was what it waited for."""
        node, own = self.graph.nodes[meeting], own_ns(span)
        flight = self.spans.get((span.rank, f"{node.exchange}.flight"))
        if node.what == "flight":
            return own + own_ns(flight) if flight is not None else 0
        after = max(0, span.end_ns - max(self.reached[meeting], span.start_ns))
        if node.what == "arrival":
            by_send = flight is None or own_ns(flight) < flight.duration_ns
            if by_send and _stalled(span):
                return max(0, span.end_ns - self.reached[meeting])
        return min(after, own)


def _stalled(span: Span) -> bool:
    return any(stall.cause == "dependency" for stall in span.stalls)
