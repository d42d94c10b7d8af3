"""Slack: how much later an op could end without the makespan growing.

The graph of the program (streams, events, host, exchanges, signals) is followed backwards over the
times of the timeline. Between two nodes the least lag is what was seen where the wait was binding:
an op's own time without its stalls, the launch gap after the predecessor, the whole wait for an
event that came last. Who waited for SMs also waits for the op that freed them.
"""

from __future__ import annotations

from dataclasses import replace

from schedules.graph import OWN, Graph, Node, build_graph
from schedules.program import Program
from schedules.timeline import Span, Timeline

Key = tuple[int, str]


def slack_ns(timeline: Timeline, program: Program) -> dict[Key, int]:
    """Slack of every op in ns by (rank, op name); 0 on the critical path.

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
    ends = {keys[number]: number for number in graph.end.values()}
    for number in graph.start.values():
        span = spans.get(keys[number])
        for wait in span.waits if span else ():
            freed = ends.get((wait.culprit_rank or 0, wait.culprit or ""))
            if wait.cause == "sm_wait" and freed is not None:
                freer = spans.get(keys[freed])
                if freer is not None and span is not None and freer.end_ns <= span.start_ns:
                    graph.edge(freed, number, "sm_wait")


class _Lags:
    """The least time between two nodes, as the timeline shows it."""

    def __init__(self, graph: Graph, keys: list[Key], spans: dict[Key, Span]) -> None:
        self.graph = graph
        self.keys = keys
        self.spans = spans
        self.opened: dict[int, int] = {}
        for number, node in enumerate(graph.nodes):
            if node.exchange is not None:
                self.opened[number] = self._met(number)

    def _met(self, number: int) -> int:
        """When the last one came to a meeting point."""
        return max((self._time(earlier) for earlier, _ in self.graph.into[number]), default=0)

    def _time(self, number: int) -> int:
        span = self.spans.get(self.keys[number])
        if span is None:
            return self.opened.get(number, 0)
        return span.start_ns if self.graph.nodes[number].what == "start" else span.end_ns

    def between(self, earlier: int, later: int, reason: str) -> int:
        span = self.spans.get(self.keys[later])
        if span is None:
            return 0
        if reason == OWN:
            stalls = sum(s.ns for s in span.stalls if s.cause in ("peer_wait", "dependency"))
            return max(0, span.duration_ns - stalls)
        if earlier in self.opened:
            return self._work_after(earlier, later, span)
        if self.graph.nodes[later].what == "end":
            return 0
        rank, op = self.keys[earlier]
        last = len(span.waits) - 1
        for index, wait in enumerate(span.waits):
            if (wait.culprit, wait.culprit_rank) == (op, rank):
                binding = wait.cause == "queued" or index == last
                return min(wait.ns, max(0, span.start_ns - self._time(earlier))) if binding else 0
        return 0

    def _work_after(self, meeting: int, later: int, span: Span) -> int:
        """What a kernel of an exchange still did once it was open: never more than its own time."""
        after = span.end_ns - max(self.opened[meeting], span.start_ns)
        return max(0, min(after, self.between(later, later, OWN)))
