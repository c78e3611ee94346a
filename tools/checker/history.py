"""Histories: the operations of clients, with times and answers, one JSON line each.

An operation is a transaction of a few steps. Its times are seconds on one clock. All written values are integers, and
no two writes to a key have the same value, so a value that was read identifies its write.

The forms of the steps in the file:

- ``["append", key, value]`` puts a value at the end of a list
- ``["list", key, [values]]`` reads a list
- ``["write", key, value]`` sets a register; a fourth element, if known, is the new version
- ``["read", key, value, version]`` reads a register; value and version are null if it was never written

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
WRITES = ("append", "write")
KINDS = (*WRITES, "list", "read")


class HistoryError(Exception):
    """Raised for a malformed history, which cannot be judged; the text names the line."""


@dataclass(frozen=True, slots=True)
class Step:
    """An access of a transaction to one key."""

    kind: str  # ``append``, ``list``, ``write`` or ``read``
    key: str  # the list or the register; no key is both
    value: int | None = None  # the written value
    values: tuple[int, ...] = ()  # the values of a list that was read
    version: int | None = None  # the version of a register, counted by the database

    def __str__(self) -> str:
        shown = list(self.values) if self.kind == "list" else self.value
        return f"{self.kind} {self.key} {shown}" + (f" (version {self.version})" if self.version is not None else "")

    def pack(self) -> list[Any]:
        """Return the step in the form of the file."""
        if self.kind == "list":
            return [self.kind, self.key, list(self.values)]
        return [self.kind, self.key, self.value] + ([self.version] if self.version is not None else [])


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
    """Write a history, one operation a line."""
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
    kind, key, value, *rest = packed
    if kind not in KINDS:
        raise ValueError(f"there is no step {kind!r}")
    if kind == "list":
        return Step(kind, key, values=tuple(value))
    return Step(kind, key, value, version=rest[0] if rest else None)
