"""SQL for tables with so many columns that one plain statement over all columns exceeds a limit of SQLite.

SQLite allows 2,000 columns in a table and 2,000 columns in a result, so the rowid and all columns do not fit into one
SELECT. An expression may have 1,000 levels, so a chain of AND over all columns does not fit either.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import apsw

RESULT_MAX = 2_000  # SQLITE_MAX_COLUMN as SQLite is built by default
DEPTH = 200  # most terms in one parenthesis
UNREADABLE = "text that is not UTF-8"


def all_of(terms: Sequence[str]) -> str:
    """Return the condition that every term holds, nested so that SQLite's limit on the depth of expressions is kept."""
    groups = [" AND ".join(terms[first : first + DEPTH]) for first in range(0, len(terms), DEPTH)]
    return groups[0] if len(groups) == 1 else " AND ".join(f"({group})" for group in groups)


def any_of(terms: Sequence[str]) -> str:
    """Return the condition that at least one term holds, nested as in ``all_of``."""
    groups = [" OR ".join(terms[first : first + DEPTH]) for first in range(0, len(terms), DEPTH)]
    return " OR ".join(f"({group})" for group in groups)


def select(
    db: apsw.Connection, columns: Sequence[str], rest: str, values: Sequence[Any] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a SELECT of any number of columns.

    A text that is not UTF-8 is yielded as the list ``[UNREADABLE, bytes]``; no client can have written it.

    Args:
        db: a connection, inside a transaction if another connection may write at the same time: more than
            ``RESULT_MAX`` columns are read by several statements in lockstep.
        rest: the SELECT from FROM on. Its ORDER BY must decide the order completely.
    """
    given = 0
    try:
        for row in _lockstep(db, columns, RESULT_MAX, rest, values):
            yield row  # not collected, because a row may be as large as a transaction
            given += 1
    except UnicodeDecodeError:
        yield from islice(_as_bytes(db, columns, rest, values), given, None)


def _lockstep(
    db: apsw.Connection, columns: Sequence[str], most: int, rest: str, values: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    pieces = (columns[first : first + most] for first in range(0, len(columns), most))
    parts: list[Any] = [db.execute(f"SELECT {', '.join(piece)} {rest}", values) for piece in pieces]
    if len(parts) == 1:
        yield from parts[0]
        return
    for rows in zip(*parts, strict=True):
        yield tuple(chain.from_iterable(rows))


def _as_bytes(
    db: apsw.Connection, columns: Sequence[str], rest: str, values: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``select``; read texts as bytes and decode them here, because some are not UTF-8."""
    encoding = str(db.pragma("encoding"))
    pairs = [
        f"typeof({one}), CASE typeof({one}) WHEN 'text' THEN CAST({one} AS BLOB) ELSE {one} END" for one in columns
    ]
    for row in _lockstep(db, pairs, RESULT_MAX // 2, rest, values):
        typed = zip(row[::2], row[1::2], strict=True)
        yield tuple(_text_of(bytes(value), encoding) if kind == "text" else value for kind, value in typed)


def _text_of(data: bytes, encoding: str) -> Any:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return [UNREADABLE, data]
