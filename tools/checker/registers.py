"""Registers: a read shows one value, and its version number if the table has one; the order of values is derived.

The order of two values of a register is known if a transaction read the one and wrote the other, if both have version
numbers, or if the one was acknowledged before the other was asked for.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tools.checker.evidence import RW, WR, WW, Evidence
from tools.checker.history import Operation

NOTHING = None  # the value of a register that was never written


@dataclass
class _Key:
    """The facts about one register."""

    reads: dict[int, int | None] = field(default_factory=dict)  # operation -> value read before its own writes
    writes: dict[int, int] = field(default_factory=dict)  # operation -> its last written value
    versions: dict[int, int] = field(default_factory=dict)  # value -> version
    next: dict[int | None, set[int]] = field(default_factory=lambda: defaultdict(set))  # value -> later values


def judge_registers(evidence: Evidence) -> None:
    """Add the findings and dependencies of the registers to the evidence."""
    keys: dict[str, _Key] = defaultdict(_Key)
    for operation in evidence.operations.values():
        if operation.id in evidence.happened:
            _read_steps(evidence, operation, keys)
    for key, known in keys.items():
        _judge_reads(evidence, key, known)
        _order(evidence, known)
        _link(evidence, key, known)


def _read_steps(evidence: Evidence, operation: Operation, keys: dict[str, _Key]) -> None:
    ok = operation.outcome == "ok"
    for step in operation.steps:
        if step.kind == "write":
            assert step.value is not None
            keys[step.key].writes[operation.id] = step.value
        elif step.kind == "read" and ok:
            known = keys[step.key]
            mine = known.writes.get(operation.id)
            before = known.reads.get(operation.id, step.value) if mine is None else mine
            if before != step.value:
                text = f"T{operation.id} read {step.value} in {step.key}, where it had left or read {before}"
                evidence.find("internal inconsistency", text, operation.id)
            elif mine is None:
                known.reads[operation.id] = step.value
        if ok and step.kind in ("read", "write") and step.value is not None and step.version is not None:
            _number(evidence, keys[step.key], operation.id, step.key, step.value, step.version)


def _number(evidence: Evidence, known: _Key, reader: int, key: str, value: int, version: int) -> None:
    if known.versions.setdefault(value, version) != version:
        text = f"T{reader} saw {value} in {key} as version {version}; it was version {known.versions[value]} before"
        evidence.find("duplicate write", text, reader)


def _judge_reads(evidence: Evidence, key: str, known: _Key) -> None:
    said: set[tuple[str, int]] = set()
    for reader, value in known.reads.items():
        operation = evidence.operations[reader]
        if value is None or (operation.level, value) in said:
            continue
        if evidence.judge_value(operation, key, value):
            evidence.judge_last(operation, key, value)
        else:
            said.add((operation.level, value))
    numbered: dict[int, list[int]] = defaultdict(list)
    for value, version in known.versions.items():
        numbered[version].append(value)
    for version, values in numbered.items():
        if len(values) > 1:
            writers = [writer for value in values if (writer := evidence.writer(key, value)) is not None]
            evidence.find("lost update", f"{values} in {key} are all version {version}", *writers)
    same: dict[int | None, list[int]] = defaultdict(list)
    for reader, value in known.reads.items():
        if reader in known.writes:
            same[value].append(reader)
    for value, readers in same.items():
        evidence.judge_updates(key, "nothing" if value is None else str(value), readers)


def _order(evidence: Evidence, known: _Key) -> None:
    """Find the order of the values, as far as it can be known."""
    for operation, value in known.writes.items():
        if operation in known.reads and known.reads[operation] != value:
            known.next[known.reads[operation]].add(value)
    numbered = sorted((version, value) for value, version in known.versions.items())
    for (old, before), (new, after) in pairwise(numbered):
        if old < new:
            known.next[before].add(after)
    for before, after in _in_time(evidence.operations[one] for one in known.writes):
        known.next[known.writes[before]].add(known.writes[after])
    later = set().union(*known.next.values()) if known.next else set()
    known.next[NOTHING] |= set(known.writes.values()) - later


def _in_time(writers: Iterable[Operation]) -> list[tuple[int, int]]:
    """Return the pairs of writes that followed each other directly by the clock: no third write lies completely between
    them.
    """
    found: list[tuple[int, int]] = []
    begun = sorted(writers, key=lambda one: one.begin)
    ended = sorted((one for one in begun if one.outcome == "ok"), key=lambda one: one.end)
    before: list[Operation] = []
    count = 0
    for operation in begun:
        while count < len(ended) and ended[count].end < operation.begin:
            newest = max([ended[count].begin, *(one.begin for one in before)])
            before = [one for one in [*before, ended[count]] if one.end >= newest]
            count += 1
        found += [(one.id, operation.id) for one in before]
    return found


def _link(evidence: Evidence, key: str, known: _Key) -> None:
    readers: dict[int | None, list[int]] = defaultdict(list)
    for reader, value in known.reads.items():
        readers[value].append(reader)
        if value is not None and (writer := evidence.writer(key, value)) is not None:
            evidence.link(writer, reader, WR, key)
    for before, afters in known.next.items():
        writer = None if before is None else evidence.writer(key, before)
        for after in afters:
            overwriter = evidence.writer(key, after)
            if overwriter is None:
                continue
            if writer is not None:
                evidence.link(writer, overwriter, WW, key)
            for reader in readers[before]:
                evidence.link(reader, overwriter, RW, key)
