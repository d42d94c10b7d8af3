"""Slack: how much later an op could end without the makespan growing.

The graph of the program (streams, events, host, exchanges, signals) is followed backwards over the
times of the timeline. Between two nodes the least lag is what was seen where the wait was binding:
an op's own time without its stalls, the launch gap after the predecessor, the whole wait for an
event that came last. Who waited for SMs also waits for the op that freed them.

The slack is that of an op's end: an op that let others go on before its end (by SMs that it gave
back, by a signal) may be on the critical path and still have some.
"""

from __future__ import annotations

from dataclasses import replace

from schedules.graph import OWN, Graph, Node, build_graph
from schedules.program import Program
from schedules.timeline import Span, Timeline

Key = tuple[int, str]


def slack_ns(timeline: Timeline, program: Program) -> dict[Key, int]:
    """Slack of every op in ns by (rank, op name).

    Only ops of `program` that the timeline has spans of are listed. ValueError when the program has
    a cycle.
    """
    spans = {(span.rank, span.op): span for span in timeline.spans}
    unfolded = _on_ranks(program, timeline.ranks)
    graph = build_graph(unfolded)
    keys = [_key(unfolded, node) for node in graph.nodes]
    _wait_for_sms(graph, keys, spans)
    order, stuck = graph.order()
    if stuck:
        raise ValueError(f"program {program.name!r} has a cycle")
    makespan = timeline.makespan_ns
    latest = [makespan] * len(graph.nodes)
    lags = _Lags(graph, keys, spans)
    for node in reversed(order):
        for earlier, reason in graph.into[node]:
            latest[earlier] = min(
                latest[earlier], latest[node] - lags.between(earlier, node, reason)
            )
    found: dict[Key, int] = {}
    for number in graph.end.values():
        key = keys[number]
        if key in spans:
            found[key] = max(0, latest[number] - spans[key].end_ns)
    return found


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


def _wait_for_sms(graph: Graph, keys: list[Key], spans: dict[Key, Span]) -> None:
    """A kernel that waited for SMs comes after the end of the kernel that freed them, or, where that
    gave some back at a turnover and went on, so long after its start."""
    starts = {keys[number]: number for number in graph.start.values()}
    ends = {keys[number]: number for number in graph.end.values()}
    for number in graph.start.values():
        span = spans.get(keys[number])
        if span is None:
            continue
        for wait in span.waits:
            key = (wait.culprit_rank or 0, wait.culprit or "")
            if wait.cause == "sm_wait" and key in spans and key in ends:
                ended = spans[key].end_ns <= span.start_ns
                if ended or spans[key].start_ns < span.start_ns:
                    graph.edge((ends if ended else starts)[key], number, "sm_wait")


class _Lags:
    """The least time between two nodes, as the timeline shows it."""

    def __init__(self, graph: Graph, keys: list[Key], spans: dict[Key, Span]) -> None:
        self.graph = graph
        self.keys = keys
        self.spans = spans
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
        if reason == OWN:
            return _own_ns(span)
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
        node, own = self.graph.nodes[meeting], _own_ns(span)
        flight = self.spans.get((span.rank, f"{node.exchange}.flight"))
        if node.what == "flight":
            return own + _own_ns(flight) if flight is not None else 0
        after = max(0, span.end_ns - max(self.reached[meeting], span.start_ns))
        if node.what == "arrival":
            by_send = flight is None or _own_ns(flight) < flight.duration_ns
            if by_send and _stalled(span):
                return max(0, span.end_ns - self.reached[meeting])
        return min(after, own)


def _own_ns(span: Span) -> int:
    """A span without its stalls for peers, data and signals."""
    stalls = sum(stall.ns for stall in span.stalls if stall.cause in ("peer_wait", "dependency"))
    return max(0, span.duration_ns - stalls)


def _stalled(span: Span) -> bool:
    return any(stall.cause == "dependency" for stall in span.stalls)
