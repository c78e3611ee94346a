"""Histories: the operations of clients, with times and answers, one JSON line each.

An operation is a transaction of a few steps, each on one list. Its times are seconds on one clock. All values are
integers, and no two appends to a list have the same value, so a value that was read identifies its append.

The forms of the steps in the file:

- ``["append", key, value]`` puts a value at the end of a list
- ``["list", key, [values]]`` reads a list

Outcomes: ``ok``: it happened; ``fail``: the database answered that it did not happen; ``unknown``: it may have
happened, or may still happen. The reads of an operation that is not ``ok`` mean nothing.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTCOMES = ("ok", "fail", "unknown")
LEVELS = ("update", "strict", "session", "final")
APPEND, LIST = "append", "list"


class HistoryError(Exception):
    """Raised for a malformed history, which cannot be judged; the text names the line."""


@dataclass(frozen=True, slots=True)
class Step:
    """An access of a transaction to one list."""

    kind: str  # ``append`` or ``list``
    key: str  # the list
    value: int | None = None  # the value that was appended
    values: tuple[int, ...] = ()  # the values that were read

    def __str__(self) -> str:
        kind, key, shown = self.pack()
        return f"{kind} {key} {shown}"

    def pack(self) -> list[Any]:
        """Return the step in the form of the file."""
        return [self.kind, self.key, list(self.values) if self.kind == LIST else self.value]


@dataclass(frozen=True, slots=True)
class Operation:
    """A transaction, as its client saw it."""

    id: int  # its number in the history, which is also its name in findings
    client: str  # the client. A client is a session, with one operation at a time.
    # ``update`` for a transaction that writes; ``strict`` or ``session`` for one that only reads; ``final`` for the
    # read of all tables at the end.
    level: str
    begin: float  # the time of the request
    end: float  # the time of the answer; for an unknown outcome, the time at which the client stopped waiting
    outcome: str  # ``ok``, ``fail`` or ``unknown``
    steps: tuple[Step, ...]  # its reads and writes, in order
    note: str = ""  # facts for the reader: the node, the error, the command id

    def __str__(self) -> str:
        steps = "; ".join(str(step) for step in self.steps)
        note = f"  [{self.note}]" if self.note else ""
        return f"T{self.id} {self.client} {self.level} {self.begin:.3f}–{self.end:.3f} {self.outcome}: {steps}{note}"

    def pack(self) -> dict[str, Any]:
        """Return the operation in the form of the file."""
        return {
            "id": self.id,
            "client": self.client,
            "level": self.level,
            "begin": round(self.begin, 6),
            "end": round(self.end, 6),
            "outcome": self.outcome,
            "steps": [step.pack() for step in self.steps],
            **({"note": self.note} if self.note else {}),
        }


def write_history(path: Path, history: Iterable[Operation]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(operation.pack()) + "\n" for operation in history)


def read_history(path: Path) -> list[Operation]:
    """Read a history.

    Raises:
        HistoryError: a line is not an operation.
    """
    return list(_read(path))


def _read(path: Path) -> Iterator[Operation]:
    with path.open() as file:
        for number, line in enumerate(file, 1):
            try:
                packed = json.loads(line)
                steps = tuple(_unpack(step) for step in packed.pop("steps"))
                operation = Operation(**packed, steps=steps)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                raise HistoryError(f"{path}, line {number}: not an operation ({error})") from error
            if operation.outcome not in OUTCOMES or operation.level not in LEVELS or operation.end < operation.begin:
                raise HistoryError(f"{path}, line {number}: no such outcome or level, or an end before its beginning")
            yield operation


def _unpack(packed: list[Any]) -> Step:
    kind, key, value = packed
    if kind not in (APPEND, LIST):
        raise ValueError(f"there is no step {kind!r}")
    return Step(kind, key, values=tuple(value)) if kind == LIST else Step(kind, key, value)
