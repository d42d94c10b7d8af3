"""What waits for what in a whole program: the graph behind deadlock cycles and the longest chain.

Every launch has two nodes, its start and its end. An edge leads from what happens first to what
waits for it and says why: its own work, a stream, an event, the host, an exchange, a signal.

* A stream starts a kernel when the one before has ended; an awaited event stands for what its
  stream held when the host recorded it last before the wait.
* After the host has waited for an event, everything that it launches later comes after it.
* Kernels of one role (notify, whole) of an exchange end after all ranks' kernels of that role have
  started. A receive ends after all ranks' sends have ended, and after the flight, which starts
  after all of them have started.
* A polling kernel ends after the raising kernel, since its last block comes from there.

A class of ranks has one node for all its ranks, since they take the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from schedules.program import HostWait, Launch, Op, Program, RankClass, Record, Wait

Edge = tuple[int, str]
OWN = "work"


@dataclass(frozen=True, slots=True)
class Node:
    """A start or an end of an op on the ranks of a class, or (op None) a meeting point: of an
    exchange (`what` is its role, or `flight` or `arrival` of a low-latency one), or of the host."""

    cls: int
    op: Op | None
    what: str
    exchange: str | None = None


@dataclass
class Graph:
    """Nodes, and for each the edges into it as (earlier node, reason)."""

    nodes: list[Node] = field(default_factory=list)
    into: list[list[Edge]] = field(default_factory=list)
    start: dict[tuple[int, int], int] = field(default_factory=dict)
    end: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """A new node; returns its number."""
        self.nodes.append(node)
        self.into.append([])
        return len(self.nodes) - 1

    def edge(self, earlier: int, later: int, reason: str) -> None:
        """`later` waits for `earlier`."""
        self.into[later].append((earlier, reason))

    def order(self) -> tuple[list[int], list[int]]:
        """Nodes in an order that respects all edges, and the nodes that a cycle keeps out of it."""
        out: list[list[int]] = [[] for _ in self.nodes]
        missing = [len(edges) for edges in self.into]
        for later, edges in enumerate(self.into):
            for earlier, _ in edges:
                out[earlier].append(later)
        ready = [node for node, count in enumerate(missing) if not count]
        for node in ready:
            for later in out[node]:
                missing[later] -= 1
                if not missing[later]:
                    ready.append(later)
        return ready, [node for node, count in enumerate(missing) if count]

    def longest(self, weight: Callable[[int, int, str], int]) -> tuple[int, list[int]]:
        """Length of the longest path and its nodes, with `weight(earlier, later, reason)` per edge.

        ValueError when the graph has a cycle.
        """
        order, stuck = self.order()
        if stuck:
            raise ValueError("a program with a cycle has no longest chain")
        length = [0] * len(self.nodes)
        via = [-1] * len(self.nodes)
        for node in order:
            for earlier, reason in self.into[node]:
                reached = length[earlier] + weight(earlier, node, reason)
                if reached > length[node] or via[node] < 0:
                    length[node], via[node] = max(reached, length[node]), earlier
        if not order:
            return 0, []
        last = max(order, key=lambda node: (length[node], -node))
        path = [last]
        while via[path[-1]] >= 0:
            path.append(via[path[-1]])
        return length[last], path[::-1]


def build_graph(program: Program) -> Graph:
    """The graph of all ranks of a program. Names that do not exist lead to no edge; `lint` finds
    those."""
    graph = Graph()
    for number, cls in enumerate(program.classes):
        _Host(graph, number, cls).walk()
    _exchanges(program, graph)
    _signals(program, graph)
    return graph


class _Host:
    """Walks one host thread: which node is the tail of each stream, and what each event stands for."""

    def __init__(self, graph: Graph, number: int, cls: RankClass) -> None:
        self.graph = graph
        self.number = number
        self.cls = cls
        self.tails: dict[str, int] = {}
        self.pending: dict[str, list[Edge]] = {}
        self.events: dict[str, list[int]] = {}
        self.host = -1

    def walk(self) -> None:
        for index, step in enumerate(self.cls.steps):
            match step:
                case Launch(op=op):
                    self._launch(index, op)
                case Record(event=event, stream=stream):
                    self.events[event] = self._snapshot(stream)
                case Wait(event=event, stream=stream):
                    waits = [(node, f"event {event}") for node in self.events.get(event, ())]
                    self.pending.setdefault(stream, []).extend(waits)
                case HostWait(event=event):
                    self._host_wait(event)
                case _:
                    pass

    def _snapshot(self, stream: str) -> list[int]:
        nodes = [node for node, _ in self.pending.get(stream, ())]
        if stream in self.tails:
            nodes.append(self.tails[stream])
        return nodes

    def _launch(self, index: int, op: Op) -> None:
        graph = self.graph
        start = graph.add(Node(self.number, op, "start"))
        end = graph.add(Node(self.number, op, "end"))
        graph.edge(start, end, OWN)
        if op.stream in self.tails:
            graph.edge(self.tails[op.stream], start, f"stream {op.stream}")
        for node, reason in self.pending.pop(op.stream, ()):
            graph.edge(node, start, reason)
        if self.host >= 0:
            graph.edge(self.host, start, "host")
        self.tails[op.stream] = end
        graph.start[self.number, index] = start
        graph.end[self.number, index] = end

    def _host_wait(self, event: str) -> None:
        node = self.graph.add(Node(self.number, None, f"host wait {event}"))
        for earlier in self.events.get(event, ()):
            self.graph.edge(earlier, node, f"event {event}")
        if self.host >= 0:
            self.graph.edge(self.host, node, "host")
        self.host = node


def _exchanges(program: Program, graph: Graph) -> None:
    """One meeting point per role and exchange, so that edges grow with ranks, not their square."""
    meetings: dict[tuple[str, str], int] = {}

    def meeting(name: str, what: str) -> int:
        if (name, what) not in meetings:
            meetings[name, what] = graph.add(Node(-1, None, what, name))
        return meetings[name, what]

    for key, start in graph.start.items():
        op, end = graph.nodes[start].op, graph.end[key]
        if op is None or op.exchange is None:
            continue
        reason = f"exchange {op.exchange}"
        if op.role == "send":
            graph.edge(start, meeting(op.exchange, "flight"), reason)
            graph.edge(end, meeting(op.exchange, "arrival"), reason)
        elif op.role == "recv":
            graph.edge(meeting(op.exchange, "arrival"), end, reason)
            graph.edge(meeting(op.exchange, "flight"), end, reason)
        else:
            graph.edge(start, meeting(op.exchange, op.role or "whole"), reason)
            graph.edge(meeting(op.exchange, op.role or "whole"), end, reason)


def _signals(program: Program, graph: Graph) -> None:
    raised = {}
    for key, start in graph.start.items():
        op = graph.nodes[start].op
        if op is not None and op.raises is not None:
            raised[key[0], op.raises] = graph.end[key]
    for key, start in graph.start.items():
        op = graph.nodes[start].op
        if op is not None and op.polls is not None and (key[0], op.polls) in raised:
            graph.edge(raised[key[0], op.polls], graph.end[key], f"signal {op.polls}")
