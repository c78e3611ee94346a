"""The checker: finds the anomalies in a history, by their usual names.

``python -m tools.checker.check HISTORY`` judges a file. It tests two conditions for the operations that happened:

- One order of all writing transactions and all strict reads explains all results, and has every operation that was
  acknowledged before another one began before that one (strict serializability).
- For each session, one order of all writing transactions and of the session's own reads explains all results, and has
  the session's operations in their own order (serializable, causal, possibly stale).

Each condition is a graph that must have no cycle. A cycle is named by the kinds of its edges, as in Adya's thesis.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.checker.evidence import RW, WR, WW, Edge, Evidence, Finding, collect
from tools.checker.history import HistoryError, Operation, read_history
from tools.checker.lists import judge_lists
from tools.checker.order import SESSION, TIME, Cycle, Graph, add_session, add_time, close, data_graph, knots, path

TRIES = 200  # first edges that a search tries in a knot; a knot in which no search finds a cycle is a finding, too
Kinds = frozenset[str]
_WRITES, _WRITTEN, _OVERWRITTEN = frozenset({WW}), frozenset({WW, WR}), frozenset({RW})
_DATA, _EVERYTHING = frozenset({WW, WR, RW}), frozenset({WW, WR, RW, SESSION, TIME})
SEARCHES: tuple[tuple[Kinds, Kinds, bool], ...] = (
    (_WRITES, _WRITES, False),  # G0
    (_WRITTEN, _WRITTEN, False),  # G1c
    (_OVERWRITTEN, _WRITTEN, False),
    (_OVERWRITTEN, _DATA, True),
    (_DATA, _DATA, False),
    (_OVERWRITTEN, _EVERYTHING - _OVERWRITTEN, False),
    (_OVERWRITTEN, _EVERYTHING, True),
    (_EVERYTHING, _EVERYTHING, False),
)
"""The worst cycles first: the kinds of one edge, those of all other edges, and whether they are spread (``path``)."""


@dataclass(frozen=True, slots=True)
class Report:
    findings: list[Finding]  # the anomalies; empty if all is well
    counts: dict[str, int]  # the numbers of operations by level and outcome, edges by kind, vertices and sessions
    operations: dict[int, Operation]  # the history, by id

    @property
    def names(self) -> set[str]:
        return {finding.name for finding in self.findings}

    def describe(self, limit: int = 10) -> str:
        """Return the findings as text, with the operations that take part in the first ones."""
        lines = [", ".join(f"{count} × {name}" for name, count in Counter(f.name for f in self.findings).most_common())]
        for finding in self.findings[:limit]:
            lines.append(f"{finding.name}: {finding.text}")
            lines += [f"    {self.operations[one]}" for one in finding.operations[:8]]
        return "\n".join(lines)


def check(history: Iterable[Operation]) -> Report:
    """Judge a history.

    Raises:
        HistoryError: the history is malformed, see ``collect``.
    """
    evidence = collect(history)
    judge_lists(evidence)
    happened = [evidence.operations[one] for one in sorted(evidence.happened)]
    strict = _judge_all(evidence, [one for one in happened if one.level != "session"])
    sessions = 0
    updates = [one.id for one in happened if one.level == "update"]
    for client in sorted({one.client for one in happened if one.level == "session"}):
        _judge_session(evidence, client, updates)
        sessions += 1
    counts = Counter(f"{one.level} {one.outcome}" for one in evidence.operations.values())
    counts |= Counter(edge.kind for edge in evidence.edges)
    counts |= Counter({"nodes": len(strict), "sessions": sessions})
    return Report(evidence.findings, dict(counts), evidence.operations)


def _judge_all(evidence: Evidence, operations: list[Operation]) -> Graph:
    graph = data_graph((one.id for one in operations), evidence.edges)
    add_time(graph, operations)
    for knot in knots(graph):
        _name_knot(evidence, knot)
    return graph


def _judge_session(evidence: Evidence, client: str, updates: list[int]) -> None:
    mine = [one for one in evidence.operations.values() if one.client == client and one.outcome == "ok"]
    mine = [one for one in mine if one.level != "final"]
    mine.sort(key=lambda one: one.begin)
    reads = {one.id for one in mine if one.level != "update"}
    graph = data_graph([*updates, *reads], evidence.edges)
    add_session(graph, mine)
    for knot in knots(graph):
        if any(SESSION in kinds for _, _, kinds in knot.edges(data=True)) or not reads.isdisjoint(knot):
            _name_knot(evidence, knot)


# --- names ---


def _name_knot(evidence: Evidence, knot: Graph) -> None:
    """Add a finding for the worst cycle in a knot."""
    for first, rest, spread in SEARCHES:
        cycle = _shortest(knot, first, rest, spread=spread)
        if cycle is not None:
            evidence.find(_name(evidence, cycle), str(cycle), *cycle.operations)
            return
    members = [one for one in knot if one >= 0]
    evidence.find("cycle", f"{len(members)} operations come before themselves", *members)


def _shortest(knot: Graph, first: Kinds, rest: Kinds, *, spread: bool) -> Cycle | None:
    """Return a short cycle that has an edge of one kind, followed by edges of other kinds."""
    best: Cycle | None = None
    for tries, edge in enumerate(_edges(knot, first.__contains__)):
        if tries >= TRIES:
            break
        back = path(knot, edge.after, edge.before, rest.__contains__, spread=spread)
        if back is not None and (best is None or len(back.edges) + 1 < len(best.edges)):
            best = close(edge, back)
            if len(best.edges) == 2:
                break
    return best


def _edges(knot: Graph, allowed: Callable[[str], bool]) -> Iterator[Edge]:
    for before, after, kinds in knot.edges(data=True):
        for kind, key in kinds.items():
            if before >= 0 and after >= 0 and allowed(kind):
                yield Edge(before, after, kind, key)


def _name(evidence: Evidence, cycle: Cycle) -> str:
    kinds = cycle.kinds
    if SESSION in kinds:
        return _session_name(evidence, cycle)
    if TIME in kinds:
        return "stale read (real-time violation)" if RW in kinds else "real-time violation"
    if RW not in kinds:
        return "G1c (circular information flow)" if WR in kinds else "G0 (dirty write)"
    if sum(edge.kind == RW for edge in cycle.edges) == 1:
        return "G-single (read skew)"
    return "long fork" if cycle.is_fork() else "G2-item (anti-dependency cycle)"


def _session_name(evidence: Evidence, cycle: Cycle) -> str:
    """Return the name of the broken session guarantee, by whether the session's earlier operation wrote or read."""
    edges = cycle.edges
    for place, edge in enumerate(edges):
        before = edges[place - 1]
        if edge.kind == SESSION and before.kind != SESSION:
            wrote = defaultdict(bool, {one: evidence.operations[one].level == "update" for one in cycle.operations})
            last = next(e for e in (edges * 2)[place:] if e.kind != SESSION)
            if wrote[edge.before] and last.kind == RW and not wrote[last.before]:
                return "session violation (read your writes)"
            if not wrote[edge.before] and not wrote[last.before]:
                return "session violation (monotonic reads)"
    return "session violation"


def main(arguments: list[str]) -> int:
    """Judge the history files that the command line names."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m tools.checker.check HISTORY.jsonl…")
        return 2
    status = 0
    for name in arguments:
        try:
            report = check(read_history(Path(name)))
        except (HistoryError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{name}: {', '.join(f'{count} {what}' for what, count in sorted(report.counts.items()))}")
        if report.findings:
            print(report.describe())
            status = 1
        else:
            print("no anomaly")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
