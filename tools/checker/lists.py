"""Lists that are only ever appended to: a read shows the whole order of the writes before it."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from tools.checker.evidence import RW, WR, WW, Evidence
from tools.checker.history import Operation


@dataclass
class _Key:
    longest: tuple[int, ...] = ()
    longest_by: int = 0
    seen: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # operation and values of every read
    reads: dict[int, tuple[int, ...]] = field(default_factory=dict)  # operation -> values read, without its own appends


def judge_lists(evidence: Evidence) -> None:
    """Add the findings and dependencies of the lists to the evidence."""
    keys: dict[str, _Key] = defaultdict(_Key)
    for operation in evidence.operations.values():
        if operation.outcome == "ok":
            _read_steps(evidence, operation, keys)
    for key, known in keys.items():
        _judge_reads(evidence, key, known)
        _link(evidence, key, known)
        _judge_missing(evidence, key, known)


def _read_steps(evidence: Evidence, operation: Operation, keys: dict[str, _Key]) -> None:
    own: dict[str, tuple[int, ...]] = defaultdict(tuple)
    for step in operation.steps:
        if step.kind == "append":
            assert step.value is not None
            own[step.key] += (step.value,)
        elif step.kind == "list":
            known, mine = keys[step.key], own[step.key]
            known.seen.append((operation.id, step.values))
            cut = len(step.values) - len(mine)
            before = known.reads.get(operation.id)
            if cut < 0 or step.values[cut:] != mine:
                text = f"T{operation.id} appended {list(mine)} to {step.key} and then read {list(step.values)}"
                evidence.find("internal inconsistency", text, operation.id)
            elif before is not None and before != step.values[:cut]:
                text = f"T{operation.id} read {step.key} twice: {list(before)}, then {list(step.values[:cut])}"
                evidence.find("internal inconsistency", text, operation.id)
            else:
                known.reads[operation.id] = step.values[:cut]


def _judge_reads(evidence: Evidence, key: str, known: _Key) -> None:
    """Check that every list that was read is a prefix of the longest one, and has only values that were appended."""
    said: set[tuple[str, int]] = set()
    for reader, values in known.seen:
        if len(values) > len(known.longest):
            known.longest, known.longest_by = values, reader
    for reader, values in known.seen:
        operation = evidence.operations[reader]
        if len(set(values)) != len(values):
            twice = sorted({value for value in values if values.count(value) > 1})
            evidence.find("duplicate append", f"T{reader} read {twice} more than once in {key}: {list(values)}", reader)
        if known.longest[: len(values)] != values:
            text = f"T{reader} read {list(values)} in {key}, and T{known.longest_by} read {list(known.longest)}"
            evidence.find("incompatible order", text, reader, known.longest_by)
        for value in values:
            if (operation.level, value) not in said:  # later lists have the same wrong value: report it once
                said.add((operation.level, value))
                evidence.judge_value(operation, key, value)
    for reader, before in known.reads.items():
        if before and evidence.writer(key, before[-1]) is not None:
            evidence.judge_last(evidence.operations[reader], key, before[-1])


def _link(evidence: Evidence, key: str, known: _Key) -> None:
    order = [evidence.writer(key, value) for value in known.longest]
    for one, other in pairwise(order):
        if one is not None and other is not None:
            evidence.link(one, other, WW, key)
    shown = set(known.longest)
    # Appends that took effect but are in no list that was read come after all appends in these lists.
    unseen = [writer for value, (writer, _) in evidence.writers.get(key, {}).items() if value not in shown]
    if order and order[-1] is not None:
        for writer in unseen:
            evidence.link(order[-1], writer, WW, key)
    same: dict[int, list[int]] = defaultdict(list)
    appenders = {writer for writer, _ in evidence.writers.get(key, {}).values()}
    for reader, before in known.reads.items():
        if known.longest[: len(before)] != before:
            continue  # ``_judge_reads`` has reported the read; its place in the order is unknown
        if reader in appenders:
            same[len(before)].append(reader)
        if before and (last := order[len(before) - 1]) is not None:
            evidence.link(last, reader, WR, key)
        # The writer of the next value comes after the reader, unless it is the reader itself.
        following = next((writer for writer in order[len(before) :] if writer != reader), None)
        if following is not None:
            evidence.link(reader, following, RW, key)
        else:
            for writer in unseen:
                evidence.link(reader, writer, RW, key)
    for length, readers in same.items():
        evidence.judge_updates(key, f"{length} values", readers)


def _judge_missing(evidence: Evidence, key: str, known: _Key) -> None:
    """Check that the longest list has every append that was acknowledged before the last strict read began."""
    shown = set(known.longest)
    readers = [evidence.operations[reader] for reader in known.reads]
    last = max((reader.begin for reader in readers if reader.level != "session"), default=0.0)
    for value, (writer, _) in evidence.writers.get(key, {}).items():
        operation = evidence.operations[writer]
        if value not in shown and operation.outcome == "ok" and operation.end < last:
            text = f"T{writer} was told that it had appended {value} to {key}, and it is not in {list(known.longest)}"
            evidence.find("acknowledged but missing", text, writer)
