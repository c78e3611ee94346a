"""The parser for files of SQLite's sqllogictest. Pure.

A file is a list of records with blank lines between them. SQLite's pages describe the format; comments below mark where
this parser accepts more.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

NOSORT, ROWSORT, VALUESORT = "nosort", "rowsort", "valuesort"
SORTS = (NOSORT, ROWSORT, VALUESORT)
US = "sqlite"  # the name of our SQL dialect in the files
_HASHED = re.compile(r"\d+ values hashing to [0-9a-f]{32}")


class FormatError(Exception):
    """Raised for a file that is not in the format; the text has its name and the line."""


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL without a result."""

    line: int  # number in its file
    sql: str
    ok: bool  # whether it should succeed


@dataclass(frozen=True, slots=True)
class Query:
    """SQL with a result."""

    line: int  # number in its file
    sql: str
    types: str  # a letter for each column: I, T or R
    sort: str  # the sorting before results are compared
    label: str  # queries with the same label should have the same result
    expected: tuple[str, ...] | None  # the values, or one line with their number and hash; None: not in the file


@dataclass(frozen=True, slots=True)
class Threshold:
    """From now on results with more values than this are written as a hash; 0 for never."""

    values: int


Record = Statement | Query | Threshold


def parse(text: str, name: str) -> Iterator[Record]:
    """Yield the records of a file, as far as ``halt``, without those that are for other databases.

    Raises:
        FormatError: the text is not in the format.
    """
    lines = [line.rstrip("\r") for line in text.split("\n")]
    place = 0
    while place < len(lines):
        first = place
        while place < len(lines) and lines[place].strip():
            place += 1
        block = [(number, line) for number, line in enumerate(lines[first:place], first + 1) if line[:1] != "#"]
        place += 1
        skip = False
        while block and (words := block[0][1].split())[0] in ("skipif", "onlyif"):
            other = words[1].lower() if len(words) > 1 else ""
            skip = skip or ((other == US) is (words[0] == "skipif"))
            block.pop(0)
        if not block or skip:
            continue
        number, head = block[0]
        try:
            record = _record(number, head.split(), [line for _, line in block[1:]])
        except FormatError as error:
            raise FormatError(f"{name}:{number}: {error}") from None
        if record is None:
            return
        yield record


def _record(number: int, words: list[str], body: list[str]) -> Record | None:
    """Return the record, None for the end of the file."""
    match words:
        case ["halt", *_]:
            return None
        case ["hash-threshold", count] if count.isdigit():
            return Threshold(int(count))
        case ["statement", "ok" | "error" as how, *_]:
            sql = "\n".join(body)
            if not sql.strip():
                raise FormatError("a statement without SQL")
            return Statement(number, sql, how == "ok")
        case ["query", types, *rest] if re.fullmatch("[ITR]+", types):
            sort = rest[0] if rest else NOSORT
            if sort not in SORTS:
                raise FormatError(f"there is no sort mode {sort!r}; there is {', '.join(SORTS)}")
            query, expected = body, None
            if "----" in body:
                cut = body.index("----")
                query, expected = body[:cut], tuple(body[cut + 1 :])
            if not "\n".join(query).strip():
                raise FormatError("a query without SQL")
            return Query(number, "\n".join(query), types, sort, rest[1] if len(rest) > 1 else "", expected)
    raise FormatError(f"{' '.join(words)!r} is no record; there is statement, query, hash-threshold and halt")


class Printer:
    """Writes values as the format does."""

    def __init__(self) -> None:
        self._db = apsw.Connection(":memory:")  # SQLite itself converts the values

    def values(self, rows: Sequence[Sequence[Any]], query: Query, *, narrow: bool = False) -> list[str]:
        """Return the values of a result, sorted as the query says; ``narrow``: integers of 32 bits, as once was."""
        printed = [
            [self._one(value, kind, narrow) for value, kind in zip(row, query.types, strict=True)] for row in rows
        ]
        if query.sort == ROWSORT:
            printed.sort()
        found = [value for row in printed for value in row]
        return sorted(found) if query.sort == VALUESORT else found

    def _one(self, value: Any, kind: str, narrow: bool) -> str:
        if value is None:
            return "NULL"
        if kind == "I":
            number = value if type(value) is int else self._cast(value, "INTEGER")
            return str((number + (1 << 31)) % (1 << 32) - (1 << 31) if narrow else number)
        if kind == "R":
            return f"{value if type(value) is float else self._cast(value, 'REAL'):.3f}"
        text = value if type(value) is str else value if type(value) is bytes else self._cast(value, "TEXT")
        data: bytes = (text if isinstance(text, bytes) else text.encode()).partition(b"\0")[0]
        return bytes(byte if 32 <= byte <= 126 else ord("@") for byte in data).decode() or "(empty)"

    def _cast(self, value: Any, kind: str) -> Any:
        return self._db.execute(f"SELECT CAST(? AS {kind})", (value,)).get


def hashed(values: Sequence[str]) -> str:
    """Return the line with the number and the hash of many values."""
    digest = hashlib.md5("".join(value + "\n" for value in values).encode(), usedforsecurity=False)
    return f"{len(values)} values hashing to {digest.hexdigest()}"


def written(values: Sequence[str], threshold: int) -> tuple[str, ...]:
    """Return the lines in which values are written to a file."""
    return (hashed(values),) if 0 < threshold < len(values) else tuple(values)


def meets(values: Sequence[str], expected: Sequence[str]) -> bool:
    """Return whether values equal the expected ones of a file."""
    if len(expected) == 1 and _HASHED.fullmatch(expected[0]) and hashed(values) == expected[0]:
        return True
    return tuple(values) == tuple(expected)
