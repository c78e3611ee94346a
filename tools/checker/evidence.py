"""The facts about a history that need no order: the writer of each value, and the operations that took effect."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tools.checker.history import APPEND, HistoryError, Operation

WW, WR, RW = "ww", "wr", "rw"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str  # the usual name of the anomaly
    text: str  # its description
    operations: tuple[int, ...] = ()  # the ids of its operations


@dataclass(frozen=True, slots=True)
class Edge:
    """A dependency: the first operation wrote a value that the second one overwrote (ww) or read (wr), or read a value
    that the second one overwrote (rw).
    """

    before: int
    after: int
    kind: str
    key: str


@dataclass
class Evidence:
    """The facts about a history that need no order of its operations."""

    operations: dict[int, Operation]  # the operations, by id
    # Ids of operations that took effect: acknowledged, or of unknown outcome and seen by a reader.
    happened: set[int] = field(default_factory=set)
    # Key -> value -> (operation, the number of its later writes to this key).
    writers: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)  # dependencies by key
    findings: list[Finding] = field(default_factory=list)  # violations
    _found: set[tuple[str, frozenset[int] | str]] = field(default_factory=set)

    def find(self, name: str, text: str, *operations: int) -> None:
        """Add a finding, unless it was added before."""
        key = (name, frozenset(operations) or text)
        if key not in self._found:
            self._found.add(key)
            self.findings.append(Finding(name, text, tuple(dict.fromkeys(operations))))

    def link(self, before: int, after: int, kind: str, key: str) -> None:
        """Record an order between two operations, if both happened and they are not the same."""
        if before != after and before in self.happened and after in self.happened:
            self.edges.append(Edge(before, after, kind, key))

    def writer(self, key: str, value: int) -> int | None:
        """Return the operation that wrote a value, if any did."""
        found = self.writers.get(key, {}).get(value)
        return None if found is None else found[0]

    def judge_value(self, reader: Operation, key: str, value: int) -> None:
        """Add a finding if no transaction that may be committed wrote a value that was read."""
        writer = self.writer(key, value)
        if writer is None:
            self.find(
                "value from nowhere", f"T{reader.id} read {value} in {key}, which no transaction wrote", reader.id
            )
        elif self.operations[writer].outcome == "fail" and reader.level == "final":
            text = f"{value} is in {key} at the end, and T{writer} was told that it did not happen"
            self.find("rolled back but present", text, writer)
        elif self.operations[writer].outcome == "fail":
            text = f"T{reader.id} read {value} in {key} from T{writer}, which did not happen"
            self.find("G1a (aborted read)", text, reader.id, writer)

    def judge_last(self, reader: Operation, key: str, value: int) -> None:
        """Add a finding if the newest value that was read of a key is not the last one that its writer wrote there."""
        writer, later = self.writers[key][value]
        if writer != reader.id and later:
            text = f"T{reader.id} read {value} in {key}, and T{writer} wrote to it {later} more times after that"
            self.find("G1b (intermediate read)", text, reader.id, writer)

    def judge_updates(self, key: str, version: str, readers: Iterable[int]) -> None:
        """Report operations that read the same version of a key and then wrote the key, if there are several."""
        both = list(readers)
        if len(both) > 1:
            names = " and ".join(f"T{one}" for one in both)
            self.find("lost update", f"{names} all read {version} in {key} and then wrote {key}", *both)


def collect(history: Iterable[Operation]) -> Evidence:
    """Return the writers of all values, and the operations that happened.

    Raises:
        HistoryError: two operations have one id, or appended the same value.
    """
    evidence = Evidence({})
    for operation in history:
        if operation.id in evidence.operations:
            raise HistoryError(f"two operations have the id {operation.id}")
        evidence.operations[operation.id] = operation
        left: dict[str, int] = defaultdict(int)
        for step in reversed(operation.steps):
            if step.kind != APPEND:
                continue
            assert step.value is not None
            values = evidence.writers.setdefault(step.key, {})
            if step.value in values:
                raise HistoryError(f"T{operation.id}: {step.value} was appended to {step.key} by another operation")
            values[step.value] = (operation.id, left[step.key])
            left[step.key] += 1
    for operation in evidence.operations.values():
        if operation.outcome != "ok":
            continue
        evidence.happened.add(operation.id)
        for step in operation.steps:
            for value in step.values:
                writer = evidence.writer(step.key, value)
                if writer is not None and evidence.operations[writer].outcome == "unknown":
                    evidence.happened.add(writer)
    return evidence
