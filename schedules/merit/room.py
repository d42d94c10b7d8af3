"""Who waited for whose SMs, as edges of the graph that slack is computed on.

A timeline names one op that freed SMs; others may have been needed too. Every op that ended while
somebody lacked SMs therefore counts, so that slack is rather too small than too large.
"""

from __future__ import annotations

from schedules.graph import Graph
from schedules.timeline import Span

Key = tuple[int, str]
ROOM = "room"


def own_ns(span: Span) -> int:
    """A span without its stalls for peers, data and signals."""
    stalls = sum(stall.ns for stall in span.stalls if stall.cause in ("peer_wait", "dependency"))
    return max(0, span.duration_ns - stalls)


class Room:
    """Edges from those who held SMs to those who lacked them; `lags` has their ns by both nodes."""

    def __init__(self, graph: Graph, keys: list[Key], spans: dict[Key, Span]) -> None:
        self.graph = graph
        self.starts = {keys[number]: number for number in graph.start.values()}
        self.ends = {keys[number]: number for number in graph.end.values()}
        self.spans = {key: spans[key] for key in self.ends if key in spans}
        self.of_rank: dict[int, list[Span]] = {}
        self.lags: dict[tuple[int, int], int] = {}
        self.slowest: dict[tuple[str, str], int] = {}
        for key, span in self.spans.items():
            self.of_rank.setdefault(span.rank, []).append(span)
            together = self.together(key)
            if together is not None:
                self.slowest[together] = max(span.alone_ns, self.slowest.get(together, 0))

    def together(self, key: Key) -> tuple[str, str] | None:
        """Exchange and role of a kernel that ends together with its peers."""
        op = self.graph.nodes[self.ends[key]].op
        if op is None or op.exchange is None or op.role in ("send", "recv"):
            return None
        return op.exchange, op.role or "whole"

    def add_edges(self) -> None:
        """Add the edges into every kernel."""
        for spans in self.of_rank.values():
            for span in spans:
                self._before(span)
                if own_ns(span) > self._alone_ns(span):
                    self._beside(span)

    def _alone_ns(self, span: Span) -> int:
        """Time alone, with peers that nothing disturbs."""
        together = self.together((span.rank, span.op))
        return span.alone_ns if together is None else self.slowest[together]

    def _before(self, span: Span) -> None:
        """A kernel that waited for SMs comes after the ends of all who ended meanwhile, as long as the
        last of them needed; or, where that one gave some back and went on, so long after its start."""
        waits = [wait for wait in span.waits if wait.cause == "sm_wait"]
        if not waits:
            return
        since, freed = span.start_ns - sum(wait.ns for wait in waits), 0
        node = self.starts[span.rank, span.op]
        last = self.spans.get((span.rank, waits[-1].culprit or ""))
        if last is not None and last.end_ns <= span.start_ns:
            freed = last.end_ns
            self._edge(self.ends, last, node, span.start_ns - freed)
        elif last is not None and last.start_ns < span.start_ns:
            self._edge(self.starts, last, node, span.start_ns - last.start_ns)
        for other in self.of_rank[span.rank]:
            if since <= other.end_ns <= span.start_ns and own_ns(other):
                self._edge(self.ends, other, node, span.start_ns - max(freed, other.end_ns))

    def _beside(self, span: Span) -> None:
        """A kernel that lacked SMs, or was slowed, ends so long after those that ended meanwhile."""
        node = self.ends[span.rank, span.op]
        for other in self.of_rank[span.rank]:
            if span.start_ns <= other.end_ns < span.end_ns and own_ns(other):
                self._edge(self.ends, other, node, span.end_ns - other.end_ns)

    def _edge(self, nodes: dict[Key, int], earlier: Span, later: int, lag_ns: int) -> None:
        pair = nodes[earlier.rank, earlier.op], later
        self.lags[pair] = max(lag_ns, self.lags.get(pair, 0))
        self.graph.edge(*pair, ROOM)
