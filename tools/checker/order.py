"""Graphs of operations that must come before others: by the data, by a session, or by real time.

The clock gives an edge between any two operations of which one ended before the other began. These edges are too many.
So an operation has an edge to the next *moment* after its end, a vertex that is not an operation, and each moment has
edges to the next moment and to the operations that begin there.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import networkx as nx

from tools.checker.evidence import RW, Edge
from tools.checker.history import Operation

SESSION, TIME = "session", "time"
Graph: TypeAlias = (
    "nx.DiGraph[int]"  # operations are their ids, moments are negative; the data of an edge is a map: kind -> key
)
Allowed = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Cycle:
    """Operations that must all come before themselves; ``edges`` lead from each to the next and back to the first."""

    edges: tuple[Edge, ...]

    @property
    def kinds(self) -> set[str]:
        return {edge.kind for edge in self.edges}

    @property
    def operations(self) -> tuple[int, ...]:
        """The operations of the cycle, each once."""
        return tuple(dict.fromkeys(edge.before for edge in self.edges))

    def is_fork(self) -> bool:
        """Return whether the cycle is a long fork: two rw edges or more, and no two of them in a row."""
        marks = [edge.kind == RW for edge in self.edges]
        return sum(marks) > 1 and not any(
            one and other for one, other in zip(marks, marks[1:] + marks[:1], strict=True)
        )

    def __str__(self) -> str:
        steps = [f"T{edge.before} -{edge.kind}{' ' + edge.key if edge.key else ''}→ " for edge in self.edges]
        return "".join(steps) + f"T{self.edges[0].before}"


def data_graph(operations: Iterable[int], edges: Iterable[Edge]) -> Graph:
    """Return the graph of the data edges between some operations."""
    graph: Graph = nx.DiGraph()
    graph.add_nodes_from(operations)
    for edge in edges:
        if edge.before in graph and edge.after in graph:
            add(graph, edge)
    return graph


def add(graph: Graph, edge: Edge) -> None:
    """Add an edge; between two operations there may be one of each kind."""
    if graph.has_edge(edge.before, edge.after):
        graph.edges[edge.before, edge.after].setdefault(edge.kind, edge.key)
    else:
        graph.add_edge(edge.before, edge.after, **{edge.kind: edge.key})


def add_session(graph: Graph, operations: Sequence[Operation]) -> None:
    """Add edges between the successive operations of a session."""
    for before, after in pairwise(operations):
        add(graph, Edge(before.id, after.id, SESSION, ""))


def add_time(graph: Graph, operations: Iterable[Operation]) -> None:
    """Add an edge from each acknowledged operation to each one that was invoked later."""
    events: list[tuple[float, bool, int]] = []
    for operation in operations:
        events.append((operation.begin, False, operation.id))
        if operation.outcome == "ok":  # any other operation may take effect later
            events.append((operation.end, True, operation.id))
    moment, used = 0, True
    for _, is_end, id_ in sorted(events):  # at the same time, begins come first: they are not after the end
        if not is_end:
            if moment:
                graph.add_edge(moment, id_, **{TIME: ""})
            used = True
            continue
        if used:
            moment -= 1
            if moment < -1:
                graph.add_edge(moment + 1, moment, **{TIME: ""})
            used = False
        graph.add_edge(id_, moment, **{TIME: ""})


def knots(graph: Graph) -> list[Graph]:
    """Return the strongly connected parts of a graph, in which every operation comes before itself."""
    found = [part for part in nx.strongly_connected_components(graph) if len(part) > 1]
    return [graph.subgraph(part).copy() for part in sorted(found, key=len)]


def path(graph: Graph, start: int, goal: int, allowed: Allowed, *, spread: bool = False) -> Cycle | None:
    """Return a shortest path from one operation to another over edges of allowed kinds.

    Args:
        allowed: whether a kind of edge may be used.
        spread: never take two rw edges in a row, and begin and end with an edge of another kind.
    """
    came: dict[tuple[int, bool], tuple[tuple[int, bool], str] | None] = {(start, spread): None}
    queue = deque(came)
    while queue:
        here = queue.popleft()
        for after, kinds in graph.adj[here[0]].items():
            for kind in kinds:
                if not allowed(kind) or (spread and kind == RW and here[1]):
                    continue
                there = (after, spread and kind == RW)
                if there in came:
                    continue
                came[there] = (here, kind)
                if after == goal and not there[1]:
                    return _collect_path(graph, came, there)
                queue.append(there)
    return None


def _collect_path(
    graph: Graph, came: dict[tuple[int, bool], tuple[tuple[int, bool], str] | None], end: tuple[int, bool]
) -> Cycle:
    edges: list[Edge] = []
    here = end
    while (step := came[here]) is not None:
        before, kind = step
        edges.append(Edge(before[0], here[0], kind, graph.edges[before[0], here[0]][kind]))
        here = before
    return Cycle(tuple(reversed(edges)))


def close(edge: Edge, back: Cycle) -> Cycle:
    """Return the cycle of an edge and a path from its end back to its beginning, without moments."""
    edges: list[Edge] = []
    for one in (edge, *back.edges):
        if edges and one.before < 0:
            edges[-1] = Edge(edges[-1].before, one.after, TIME, "")
        else:
            edges.append(one)
    return Cycle(tuple(edges))
