"""Readers other than cursors: a value as a file, a database as a script, a database copied to a sqlite3 connection."""

import io
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Self

from bedrockish.dbapi.errors import DataError, NotSupportedError, OperationalError, ProgrammingError
from bedrockish.errors import TooLargeError
from bedrockish.sqltext.literals import literal
from bedrockish_journal.model.plain_names import is_users, quote
from bedrockish_journal.storage.virtual_tables import (
    ROWID_NAMES,
    is_virtual,
    made_after_rows,
    parse_virtual,
    shadow_names,
)

ORDER = "type = 'table' DESC, CASE type WHEN 'table' THEN name END, rowid"  # the order of sqlite3's iterdump
OBJECTS = f"SELECT name, type, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND {is_users()} ORDER BY {ORDER}"
Run = Callable[..., Iterable[tuple[Any, ...]]]


OFFSET_MAX = (1 << 31) - 1  # SQLite's limit for the length of a value
PAGE = 1_000  # rows of one query


class Blob:
    """One value of a row, copied when the blob is opened, and read as a file. Only an UPDATE can change the value."""

    def __init__(self, value: bytes, check: Callable[[], None]) -> None:
        self._file: io.BytesIO | None = io.BytesIO(value)
        self._size, self._check = len(value), check

    def _open(self) -> io.BytesIO:
        self._check()  # raises if the connection is closed
        if self._file is None:
            raise ProgrammingError(
                "Cannot operate on a closed blob: this blob is closed; open another with connection.blobopen()"
            )
        return self._file

    def read(self, length: int = -1, /) -> bytes:
        """Return the next ``length`` bytes; by default, all remaining bytes."""
        return self._open().read(length)

    def seek(self, offset: int, origin: int = io.SEEK_SET, /) -> None:
        """Move to an offset.

        Raises:
            ValueError: the offset is outside of the value.
            OverflowError: the offset is larger than any value of SQLite.
        """
        file = self._open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: file.tell(), io.SEEK_END: self._size}.get(origin)
        if start is None:
            raise ValueError("'origin' should be os.SEEK_SET, os.SEEK_CUR, or os.SEEK_END")
        if start + offset > OFFSET_MAX:
            raise OverflowError("seek offset results in overflow")
        if not 0 <= start + offset <= self._size:
            raise ValueError("offset out of blob range")
        file.seek(start + offset)

    def tell(self) -> int:
        """Return the current offset."""
        return self._open().tell()

    def write(self, data: Any, /) -> None:
        """Refuse: only an UPDATE of the column can write a value.

        Raises:
            NotSupportedError: always.
        """
        self._open()
        raise NotSupportedError("a blob can only be read here; write the value by an UPDATE of the column")

    def close(self) -> None:
        """Close the blob; a second close does nothing."""
        self._file = None

    def __len__(self) -> int:
        self._open()
        return self._size

    def __getitem__(self, place: Any) -> Any:
        value = self._open().getvalue()
        if not isinstance(place, slice) and not hasattr(place, "__index__"):
            raise TypeError(f"Blob indices must be integers, not {type(place).__name__}")
        try:
            return value[place]
        except IndexError as error:
            cannot = str(error) if "cannot fit" in str(error) else "Blob index out of range"
            raise IndexError(cannot) from None
        except TypeError:
            raise TypeError("Blob indices must be integers") from None

    def __setitem__(self, place: Any, data: Any) -> None:
        if not isinstance(place, slice) and not hasattr(place, "__index__"):
            raise TypeError(f"Blob indices must be integers, not {type(place).__name__}")
        self.write(data)

    def __contains__(self, data: object) -> bool:
        raise TypeError(f"argument of type {type(self).__name__!r} is not iterable")

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self._open()
        self.close()
        return False


def rowid_of(run: Run, table: str) -> str | None:
    """Return a name of a table's rowid in SQL; None if the table has no rowid, or no name is left for it."""
    if any(row[4] for row in run(f"PRAGMA table_list({quote(table)})") if row[0] == "main"):
        return None
    names = {row[1].lower() for row in run(f"PRAGMA table_xinfo({quote(table)})")}
    return next((name for name in ROWID_NAMES if name not in names), None)


def _key_of(run: Run, table: str) -> list[str]:
    """Return the terms, in SQL, by which a table's rows are ordered: its rowid, or the columns of its primary key.

    Return no term if columns have all names of the rowid.
    """
    rowid = rowid_of(run, table)
    if rowid is not None:
        return [rowid]
    of_key = [row[1] for row in run(f"PRAGMA index_list({quote(table)})") if row[3] == "pk"]
    if not of_key or not any(row[4] for row in run(f"PRAGMA table_list({quote(table)})") if row[0] == "main"):
        return []
    columns = [row for row in run(f"PRAGMA index_xinfo({quote(of_key[0])})") if row[5]]
    (sql,) = next(iter(run("SELECT sql FROM sqlite_schema WHERE type = 'table' AND lower(name) = lower(?)", (table,))))
    if "collate" not in str(sql).lower():
        return [quote(row[2]) for row in columns]
    # The key's collation is written into the terms, because it may distinguish values that the column's own collation
    # does not. It is left out where it can be: with COLLATE, SQLite compares several columns without the key's index.
    return [f"{quote(row[2])} COLLATE {quote(row[4])}" for row in columns]


def rows_of(run: Run, table: str, wanted: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of expressions for all rows of a table, which is read ``PAGE`` rows at a time.

    A page that is over the limit of a result is read again with fewer rows.
    """
    key = _key_of(run, table)
    if not key:
        yield from run(f"SELECT {wanted} FROM {quote(table)}")
        return
    names, marks = ", ".join(key), ", ".join("?" for _ in key)
    after, last = "", tuple[Any, ...]()
    count = PAGE
    while True:
        sql = f"SELECT {names}, {wanted} FROM {quote(table)} {after} ORDER BY {names} LIMIT {count}"
        try:
            page = list(run(sql, last))
        except DataError as error:
            if error.code != TooLargeError.code or count == 1:
                raise
            count = max(1, count // 8)
            continue
        yield from (row[len(key) :] for row in page)
        if len(page) < count:
            return
        after, last = f"WHERE ({names}) > ({marks})", page[-1][: len(key)]


def read_blob(run: Run, table: str, column: str, row: int, check: Callable[[], None]) -> Blob:
    """Open the value of a column in the row with rowid ``row``; ``check`` raises if the connection is closed.

    Raises:
        OperationalError: there is no such row, or the value is neither text nor a blob.
    """
    # The column is named with its table, because SQLite reads an unknown quote name without a table as a string.
    found = list(run(f"SELECT {quote(table)}.{quote(column)} FROM {quote(table)} WHERE rowid = ?", (row,)))
    if not found:
        raise OperationalError(f"no such rowid: {row}")
    value = found[0][0]
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes):
        kind = {type(None): "null", int: "integer"}.get(type(value), "real")
        raise OperationalError(f"cannot open value of type {kind}")
    return Blob(value, check)


def contents(run: Run) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the tables to fill with rows, each with its SQL, and the SQL of all objects to create after the rows.

    Shadow tables, in which virtual tables store their content, are left out.
    """
    shadows = {row[1] for row in run("PRAGMA table_list") if row[0] == "main" and row[2] == "shadow"}
    tables, first, later = list[tuple[str, str]](), list[str](), list[str]()
    objects = list(run(OBJECTS))
    of_vectors = shadow_names(parse_virtual(name, sql) for name, _, _, sql in objects if is_virtual(sql))
    for name, kind, table, sql in objects:
        if table in shadows or table.lower() in of_vectors:
            continue
        after = made_after_rows(name, sql) if kind == "table" else ()
        first += after
        if kind != "table":
            later.append(sql)
        elif not after:
            tables.append((name, sql))
    return tables, first + later


def columns_of(run: Run, table: str, sql: str) -> list[str]:
    """Return the columns that an INSERT copies: all but generated ones; of some virtual tables, the rowid, too."""
    columns = [row[1] for row in run(f"PRAGMA table_info({quote(table)})")]  # without generated ones
    return ["rowid", *columns] if is_virtual(sql) and parse_virtual(table, sql).names_rowid else columns


def dump(run: Run) -> Iterator[str]:
    """Yield the statements that recreate the database, like sqlite3's ``iterdump``.

    Args:
        run: runs a statement, always in the same transaction, so that all rows come from one snapshot.
    """
    yield "BEGIN TRANSACTION;"
    tables, following = contents(run)
    for name, sql in tables:
        yield f"{sql};"
        columns = columns_of(run, name, sql)
        values = ", ".join(map(quote, columns))
        every = len(list(run(f"PRAGMA table_xinfo({quote(name)})"))) == len(columns) and not is_virtual(sql)
        listed = "" if every else f"({','.join(map(quote, columns))})"
        prefix = f"INSERT INTO {quote(name)}{listed} VALUES("
        marks = parse_virtual(name, sql).marks if is_virtual(sql) else {}
        given = [marks.get(column, "?") for column in columns]
        for row in rows_of(run, name, values):
            texts = [mark.replace("?", literal(value)) for mark, value in zip(given, row, strict=True)]
            yield f"{prefix}{','.join(texts)});"
    yield from (f"{sql};" for sql in following)
    yield "COMMIT;"


def copy(run: Run, target: sqlite3.Connection) -> None:
    """Copy the database, from one snapshot, into an empty database of ``sqlite3``.

    Raises:
        TypeError: the target is not a sqlite3 connection.
        ProgrammingError: the target has tables.
    """
    if not isinstance(target, sqlite3.Connection):
        raise TypeError("backup() copies into a connection of sqlite3; 'bedrockish backup' makes a file")
    if target.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise ProgrammingError("the target of backup() has tables already; give an empty database")
    keys = target.execute("PRAGMA foreign_keys").fetchone()[0]
    target.execute("PRAGMA foreign_keys = OFF")
    with target:
        tables, following = contents(run)
        for name, sql in tables:
            target.execute(sql)
            names = [quote(name) for name in columns_of(run, name, sql)]
            rowid = None if is_virtual(sql) else rowid_of(run, name)
            names += [rowid] if rowid is not None else []  # other tables may refer to rows by rowid
            columns, marks = ", ".join(names), ", ".join("?" for _ in names)
            insert = f"INSERT INTO {quote(name)}({columns}) VALUES ({marks})"
            target.executemany(insert, rows_of(run, name, columns))
        for sql in following:
            target.execute(sql)
        _copy_numbers(run, target)
    target.execute(f"PRAGMA foreign_keys = {keys}")


def _copy_numbers(run: Run, target: sqlite3.Connection) -> None:
    """Copy the numbers that SQLite keeps besides the tables: those of AUTOINCREMENT, and of two PRAGMAs."""
    if target.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'").fetchone():
        target.execute("DELETE FROM sqlite_sequence")
        target.executemany("INSERT INTO sqlite_sequence VALUES (?, ?)", run("SELECT name, seq FROM sqlite_sequence"))
    for name in ("user_version", "application_id"):
        ((number,),) = run(f"PRAGMA {name}")
        target.execute(f"PRAGMA {name} = {number}")
