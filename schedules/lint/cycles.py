"""Cycles: ops that wait for each other over streams, events, the host, exchanges and signals."""

from __future__ import annotations

from collections.abc import Iterator

from schedules.graph import OWN, Graph, build_graph
from schedules.lint.finding import Finding, finding
from schedules.program import Program


def cycle_findings(program: Program) -> Iterator[Finding]:
    """One cycle, if there is any, with a line for each wait in it."""
    graph = build_graph(program)
    _, stuck = graph.order()
    if stuck:
        cycle = _cycle(graph, set(stuck))
        lines = tuple(_lines(program, graph, cycle))
        yield finding("cycle", f"{len(lines)} waits form a cycle", cycle=lines)


def _cycle(graph: Graph, stuck: set[int]) -> list[int]:
    """Nodes of one cycle, each waiting for the next one. Every stuck node waits for another one."""
    seen: dict[int, int] = {}
    path: list[int] = []
    node = min(stuck)
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = next(earlier for earlier, _ in graph.into[node] if earlier in stuck)
    return path[seen[node] :]


def _lines(program: Program, graph: Graph, cycle: list[int]) -> Iterator[str]:
    """`the end of A (rank 0) waits for the start of B (rank 1): exchange X`."""
    for node, earlier in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        reason = next(reason for other, reason in graph.into[node] if other == earlier)
        if reason != OWN:
            waits = f"{_name(program, graph, node)} waits for {_name(program, graph, earlier)}"
            yield f"{waits}: {reason}"


def _name(program: Program, graph: Graph, number: int) -> str:
    node = graph.nodes[number]
    if node.op is None:
        return f"the {node.what} of {node.exchange}" if node.exchange else f"the {node.what}"
    return f"the {node.what} of {node.op.name} (rank {program.classes[node.cls].ranks[0]})"
