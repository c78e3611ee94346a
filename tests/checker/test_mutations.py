"""The checker finds no fault in histories drawn from a serial order, and finds each kind of change to one."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checker.histories import serial_history
from tools.checker.check import check
from tools.checker.history import HistoryError, Operation, Step, read_history, write_history

History = list[Operation]


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_checker_finds_nothing_in_a_serial_history(seed: int) -> None:
    report = check(serial_history(seed))
    assert not report.findings, report.describe()


def put(history: History, operation: Operation) -> None:
    history[operation.id - 1] = operation


def with_step(operation: Operation, place: int, step: Step) -> Operation:
    return replace(operation, steps=(*operation.steps[:place], step, *operation.steps[place + 1 :]))


def list_reads(history: History, least: int, *levels: str) -> list[tuple[Operation, int]]:
    """Return the reads with at least so many values by clients that have written nothing themselves."""
    return [
        (operation, place)
        for operation in history
        if operation.outcome == "ok" and operation.level in levels
        for place, step in enumerate(operation.steps)
        if step.kind == "list" and len(step.values) >= least
    ]


def forget_one(history: History, luck: random.Random) -> bool:
    """Remove an acknowledged value from every list."""
    acknowledged = [step.value for one in history if one.outcome == "ok" for step in one.steps if step.kind == "append"]
    if not acknowledged:
        return False
    lost = luck.choice(acknowledged)
    for operation in list(history):
        kept = tuple(replace(s, values=tuple(v for v in s.values if v != lost)) for s in operation.steps)
        put(history, replace(operation, steps=kept))
    return True


def repeat_one(history: History, luck: random.Random) -> bool:
    """Put a value into a list twice."""
    reads = list_reads(history, 1, "strict", "session", "final")
    if not reads:
        return False
    operation, place = luck.choice(reads)
    step = operation.steps[place]
    put(history, with_step(operation, place, replace(step, values=(*step.values, luck.choice(step.values)))))
    return True


def swap_two(history: History, luck: random.Random) -> bool:
    """Exchange two values of a list that another client has read as well."""
    reads = list_reads(history, 2, "strict", "session")
    if not reads:
        return False
    operation, place = luck.choice(reads)
    step = operation.steps[place]
    values = list(step.values)
    at = luck.randrange(len(values) - 1)
    values[at], values[at + 1] = values[at + 1], values[at]
    put(history, with_step(operation, place, replace(step, values=tuple(values))))
    return True


def fail_one(history: History, luck: random.Random) -> bool:
    """Report a value of a final list as not happened."""
    shown = {value for step in history[-1].steps for value in step.values}
    writers = [one for one in history if any(s.kind == "append" and s.value in shown for s in one.steps)]
    if not writers:
        return False
    put(history, replace(luck.choice(writers), outcome="fail"))
    return True


def look_back(history: History, luck: random.Random) -> bool:
    """Let a strict read miss a commit that was acknowledged before the read began."""
    ends = {s.value: one.end for one in history if one.outcome == "ok" for s in one.steps if s.kind == "append"}
    reads = [
        (operation, place)
        for operation, place in list_reads(history, 1, "strict")
        if ends.get(operation.steps[place].values[-1], operation.end) < operation.begin
    ]
    if not reads:
        return False
    operation, place = luck.choice(reads)
    step = operation.steps[place]
    put(history, with_step(operation, place, replace(step, values=step.values[:-1])))
    return True


def look_ahead(history: History, luck: random.Random) -> bool:
    """Let a read, at any level, see a write that was sent only after the end of the read."""
    begins = {s.value: one.begin for one in history for s in one.steps if s.kind == "append"}
    final = {step.key: step.values for step in history[-1].steps}
    reads = [
        (operation, place)
        for operation, place in list_reads(history, 0, "strict")
        if (later := final[operation.steps[place].key][len(operation.steps[place].values) :])
        and begins[later[0]] > operation.end
    ]
    if not reads:
        return False
    operation, place = luck.choice(reads)
    step = operation.steps[place]
    ahead = final[step.key][: len(step.values) + 1]
    put(history, with_step(operation, place, replace(step, values=ahead)))
    return True


def miss_own_write(history: History, luck: random.Random) -> bool:
    """Let a session miss its own write."""
    last: dict[tuple[str, str], int] = {}
    found: list[tuple[Operation, int, int]] = []
    for operation in sorted(history, key=lambda one: one.begin):
        for place, step in enumerate(operation.steps):
            if operation.outcome == "ok" and step.kind == "append" and step.value is not None:
                last[operation.client, step.key] = step.value
            mine = last.get((operation.client, step.key))
            if operation.level == "session" and step.kind == "list" and mine in step.values:
                found.append((operation, place, step.values.index(mine)))
    if not found:
        return False
    operation, place, cut = luck.choice(found)
    step = operation.steps[place]
    put(history, with_step(operation, place, replace(step, values=step.values[:cut])))
    return True


MUTATIONS: list[Callable[[History, random.Random], bool]] = [
    forget_one,
    repeat_one,
    swap_two,
    fail_one,
    look_back,
    look_ahead,
    miss_own_write,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_every_mutation_is_caught(mutate: Callable[[History, random.Random], bool]) -> None:
    spoiled = 0
    for seed in range(80):
        history = serial_history(seed)
        if not mutate(history, random.Random(seed)):
            continue
        spoiled += 1
        assert check(history).findings, "\n".join(map(str, history))
    assert spoiled >= 20


def test_history_is_equal_after_writing_and_reading_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("history") / "history.jsonl"
    history = serial_history(1)
    write_history(path, history)
    again = read_history(path)
    assert [one.steps for one in again] == [one.steps for one in history]
    assert [str(one) for one in again] == [str(one) for one in history]


def test_malformed_line_of_a_history_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("history") / "history.jsonl"
    path.write_text('{"id": 1, "client": "p"}\n')
    with pytest.raises(HistoryError, match="line 1"):
        read_history(path)
