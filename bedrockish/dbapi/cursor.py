"""The cursor of PEP 249.

A result is complete when ``execute`` returns, so fetching never waits and never fails midway. Two kinds of results are
read while they are fetched: large ones from a node's file, as in SQLite, and those of a ``StreamingCursor``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Protocol, Self, TypeVar

from bedrockish.api.requests import Rows
from bedrockish.dbapi.errors import DatabaseError, Error, ProgrammingError
from bedrockish.dbapi.session import Session
from bedrockish.dbapi.values import Value, adapt_all, converter_of, declared_converter, type_codes, unchanged
from bedrockish.errors import ResultLostError
from bedrockish.sqltext.keys_off_sections import sections
from bedrockish.sqltext.statement_ends import is_blank, is_single, split
from bedrockish.sqltext.statement_kinds import OTHER, READ, SCHEMA, WRITE, inserts, kind_of

T = TypeVar("T")

PARSE_DECLTYPES = 1
PARSE_COLNAMES = 2
# The longest texts whose kinds are cached, in characters, and the number of cached kinds.
SHORT, KNOWN_MAX = 4_000, 1_000
RECURSIVE = "Recursive use of cursors not allowed."

Column = tuple[str, str | None, None, None, None, None, None]
RowFactory = Callable[["Cursor", tuple[Any, ...]], Any]


class RowSource(Protocol):
    """The rows of a result that a cursor does not have yet."""

    def batch(self) -> list[tuple[Any, ...]]:
        """Return the next rows; an empty list at the end."""

    def close(self) -> None:
        """Drop the rows; a second close does nothing."""


class _LostRows:
    """A source that replaces one whose rows were lost on their way to the cursor."""

    def batch(self) -> list[tuple[Any, ...]]:
        """Raise ``ResultLostError``."""
        raise ResultLostError(
            "an exception has interrupted a fetch of this result, and rows are lost; run the statement again"
        )

    def close(self) -> None:
        """Do nothing."""


_LOST = _LostRows()

# The columns and first rows of a statement, the number of rows that it changed or -1, the rowid that it inserted or
# None, and the source of the further rows or None.
Again = tuple[tuple[str, ...], list[Any], int, int | None, RowSource | None]


class CursorOwner(Protocol):
    """The interface of a connection for its cursors."""

    row_factory: RowFactory | None
    text_factory: Callable[[bytes], Any]
    detect_types: int
    _dropped: list[RowSource]

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""

    def commit(self) -> None:
        """Commit the open transaction."""

    def rollback(self) -> None:
        """Roll the open transaction back."""

    def close(self) -> None:
        """Close the session."""

    def _check(self) -> None: ...
    def _run(self, what: Callable[[Session], T]) -> T: ...
    def _run_again(
        self, sql: Any, params: tuple[Any, ...] | dict[str, Any], *, only_brief: bool = False
    ) -> Again | None: ...
    def _declared(self, sql: str) -> list[str | None]: ...
    def _known_types(self, sql: str) -> list[str | None] | None: ...
    def _forget_types(self) -> None: ...
    def _script(self, section: Sequence[str]) -> None: ...


class Cursor:
    """Runs statements and holds the result of the last one. Get one from ``Connection.cursor``.

    Attributes:
        arraysize: the number of rows that ``fetchmany`` returns by default.
        row_factory: called for each fetched row as ``row_factory(cursor, tuple)``; None for plain tuples.
    """

    _connection: CursorOwner = None  # type: ignore[assignment]  # None if a derived class does not call this __init__
    _is_busy = False  # whether the cursor is executing, or converting values
    _source: RowSource | None = None  # the source of the rows after ``_rows``; None if there are no more

    def __init__(self, connection: CursorOwner) -> None:
        if not hasattr(connection, "_declared"):
            raise TypeError(f"a cursor is made of a Connection, not of {type(connection).__name__}")
        if self._is_busy:
            raise ProgrammingError(RECURSIVE)
        self._connection = connection
        self.arraysize = 1
        self.row_factory: RowFactory | None = connection.row_factory
        self._rowcount = -1
        self._lastrowid: int | None = None
        self._is_closed = False
        self._forget()

    def _forget(self) -> None:
        if self._source is not None:
            self._end_source()
        self._columns: tuple[str, ...] = ()
        self._rows: list[tuple[Any, ...]] = []
        self._place = self._before = 0  # numbers of rows: fetched from ``_rows``, and in earlier parts
        self._description: tuple[Column, ...] | None = None
        self._declared: list[str | None] = []
        self._converters: list[Callable[[bytes], Any] | None] = []

    def _end_source(self) -> None:
        source, self._source = self._source, None
        assert source is not None
        with suppress(ProgrammingError):  # the connection is closed, and the source with it
            self._connection._run(lambda _: source.close())

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Refuse the use of this cursor by code that the cursor is calling (an adapter, a generator of parameters)."""
        self._check()
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    # -- attributes of PEP 249 -------------------------------------------------------------------------------------

    @property
    def connection(self) -> CursorOwner:
        """The connection that made this cursor."""
        return self._connection

    @property
    def description(self) -> tuple[Column, ...] | None:
        """For each column a tuple of seven items, of which only name and type code are set; None before a result.

        The type code can be compared with STRING and the other type objects. With PARSE_DECLTYPES it is the declared
        type of the column; otherwise, and for a column without a declared type, the type of its first value that is
        not NULL.
        """
        if self._description is None and self._columns:
            codes = type_codes(len(self._columns), self._rows)
            codes = [self._declared[place] or code for place, code in enumerate(codes)] if self._declared else codes
            shorten = bool(self._connection.detect_types & PARSE_COLNAMES)
            self._description = tuple(
                (name.partition("[")[0].rstrip() if shorten else name, code, None, None, None, None, None)
                for name, code in zip(self._columns, codes, strict=True)
            )
        return self._description

    @property
    def rowcount(self) -> int:
        """Number of rows that the last statement changed; -1 after a statement that cannot change rows."""
        return self._rowcount

    @property
    def lastrowid(self) -> int | None:
        """Rowid of the row inserted last by ``execute`` of this cursor; None before its first INSERT."""
        return self._lastrowid

    @property
    def rownumber(self) -> int | None:
        """Index of the row that is fetched next, from 0; None if the last statement had no result."""
        return self._before + self._place if self._columns else None

    # -- execution -------------------------------------------------------------------------------------------------

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Run one statement.

        Args:
            sql: the statement, with ``?`` for parameters by position or ``:name`` for parameters by name.
            parameters: a sequence or a map.

        Raises:
            Error: its class is the kind of failure; its ``retry`` is whether running the transaction again can help.
        """
        params: Any = None
        if self._connection is not None and not (self._is_busy or self._is_closed):
            if self._source is not None:
                self._forget()  # if the text is refused, no part of the last result may remain
            params = unchanged(parameters)
            if params is None:
                self._check_sql(sql)
                params = self._adapted(parameters, sql)
            if self._run_again(sql, params):
                return self
        kind = self._check_sql(sql)
        if not params and not hasattr(parameters, "__missing__"):
            params = None
        elif type(params) is tuple:
            params = list(params)
        self._forget()
        self._rowcount = -1
        if kind == OTHER and is_blank(sql):
            if params and not isinstance(params, dict):
                raise ProgrammingError(f"the text holds no statement, but {len(params)} value(s) were given")
            return self
        declared = self._ask_types(sql, kind)
        rows = self._connection._run(lambda session: session.run(sql, params, kind, in_parts=True))
        if declared is None and rows.columns:
            declared = self._connection._declared(sql)
        self._declared = declared or []
        self._set_result(rows)
        if kind == SCHEMA:
            self._connection._forget_types()
        if inserts(sql):  # an upsert that has updated a row returns the connection's last rowid, as in SQLite
            self._lastrowid = rows.lastrowid
            if self._lastrowid is None:
                self._lastrowid = self._connection._run(lambda session: session.link.values.last_insert_rowid)
        return self

    def execute_at_once(self, sql: str, parameters: Any = (), /) -> bool:
        """Run a statement if it takes some microseconds; return False, without effect, if ``execute`` must run it.

        Such a statement has run before, in a transaction on a node's file, and reads or writes by keys.

        Raises:
            Error: as for ``execute``.
        """
        params = None if self._is_busy or self._is_closed or self._source is not None else unchanged(parameters)
        return params is not None and self._run_again(sql, params, only_brief=True)

    def _run_again(self, sql: str, params: tuple[Any, ...] | dict[str, Any], *, only_brief: bool = False) -> bool:
        """Run a known statement in less time than others; return False if it must be run like any other."""
        connection = self._connection
        if connection is None:
            return False
        declared = self._known_types(sql) if connection.detect_types else []
        try:
            found = None if declared is None else connection._run_again(sql, params, only_brief=only_brief)
        except Error:  # a failed statement leaves no result, nor that of the statement before it
            self._forget()
            self._rowcount = -1
            raise
        if found is None:
            return False
        self._columns, self._rows, self._rowcount, lastrowid, self._source = found
        self._place, self._before, self._description = 0, 0, None
        if lastrowid is not None:
            self._lastrowid = lastrowid
        if declared or connection.detect_types or self._declared or self._converters:
            self._declared = declared or []
            self._choose_converters()
        return True

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Self:
        """Run a writing statement once for each of many parameters; up to a thousand runs take one round trip.

        Outside of a transaction, all runs together are one transaction.

        Raises:
            Error: as for ``execute``.
        """
        kind = self._check_sql(sql)
        if kind != WRITE:
            raise ProgrammingError("executemany() runs statements that write only; use execute() for others")
        with self._busy():
            every = [adapt_all(parameters, sql) for parameters in seq_of_parameters]
        self._forget()
        self._rowcount = -1
        done = self._connection._run(lambda session: session.run_many(sql, every, kind) if every else 0)
        self._rowcount = done
        return self

    def executescript(self, sql_script: str, /) -> Self:
        """Commit the open transaction, then run the statements of a script.

        Each statement is a transaction of its own unless the script contains BEGIN.

        Raises:
            Error: as for ``execute``; the statements before the failed one keep their changes.
            ValueError: the script has a NUL character, or a lone surrogate; no statement was run.
        """
        self._check()
        if not isinstance(sql_script, str):
            raise TypeError(f"a script should be a text, not {type(sql_script).__name__}")
        if "\0" in sql_script:
            raise ValueError("a script cannot contain a NUL character; send the value as a parameter of execute()")
        sql_script.encode()  # a lone surrogate raises UnicodeEncodeError, as in sqlite3
        self._forget()
        self._rowcount = -1
        self._connection._run(lambda session: session.commit())
        for section in sections(list(split(sql_script))):
            self._connection._script(section)
        return self

    def _adapted(self, parameters: Any, sql: str) -> tuple[Value, ...] | dict[str, Value]:
        if not parameters and not hasattr(parameters, "__missing__"):
            return ()
        self._is_busy = True  # an adapter must not use this cursor
        try:
            found = adapt_all(parameters, sql)
        finally:
            self._is_busy = False
        return found if type(found) is dict else tuple(found)

    def _check_sql(self, sql: str) -> str:
        """Return the kind of a text's statement, after checking the cursor and the text."""
        self._check()
        if not isinstance(sql, str):
            raise TypeError(f"a statement should be an SQL text, not {type(sql).__name__}")
        return _checked(sql) if len(sql) > SHORT else _checked_once(sql)

    def _known_types(self, sql: str) -> list[str | None] | None:
        """Return the declared types of a statement's columns, [] if they are not needed, None if unknown."""
        wanted = self._connection.detect_types & PARSE_DECLTYPES
        if not wanted or (self._check_sql(sql) == WRITE and "RETURNING" not in sql.upper()):
            return []
        return self._connection._known_types(sql)

    def _ask_types(self, sql: str, kind: str) -> list[str | None] | None:
        """Return the declared types of a statement's columns, [] if they are not needed, None to ask again afterwards.

        The types are requested before the statement runs, so that a failed request cannot lose the result. If the node
        does not know a table yet, they are requested afterwards: to run the statement, the node waits for the table.
        """
        wanted = self._connection.detect_types & PARSE_DECLTYPES
        if not wanted or not (kind == READ or "RETURNING" in sql.upper()):
            return []
        try:
            return self._connection._declared(sql)
        except DatabaseError:
            return None

    def _set_result(self, rows: Rows) -> None:
        self._columns, self._rowcount = rows.columns, rows.rowcount
        self._rows, self._source = rows.rows, rows.rest
        self._choose_converters()

    def _choose_converters(self) -> None:
        if not self._declared and not self._connection.detect_types:
            self._converters = []
            return
        converters = [declared_converter(declared) for declared in self._declared] or [None] * len(self._columns)
        if self._connection.detect_types & PARSE_COLNAMES:
            named = [converter_of(name) for name in self._columns]
            converters = [first or second for first, second in zip(named, converters, strict=True)]
        self._converters = converters if any(converters) else []

    # -- fetching --------------------------------------------------------------------------------------------------

    def fetchone(self) -> Any:
        """Return the next row; None after the last row, and after a statement without a result, as in sqlite3.

        Raises:
            OperationalError: the further rows cannot be read; running the statement again is safe.
        """
        self._check()
        if self._place >= len(self._rows) and not self._fill():
            return None
        self._place += 1
        return self._made(self._rows[self._place - 1])

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return the next rows, ``arraysize`` by default; an empty list when there are no more.

        Raises:
            OperationalError: as for ``fetchone``.
            ProgrammingError: the size is negative.
        """
        self._check()
        count = self.arraysize if size is None else size
        if count < 0:
            raise ProgrammingError(f"the number of rows to fetch should not be negative, but is {count}")
        found = self._rows[self._place : self._place + count]
        self._place += len(found)
        while len(found) < count and self._fill():
            part = self._rows[: count - len(found)]
            self._place = len(part)
            found += part
        return self._made_of(found)

    def fetchall(self) -> list[Any]:
        """Return all remaining rows.

        Raises:
            OperationalError: as for ``fetchone``.
        """
        self._check()
        found, self._place = self._rows[self._place :], len(self._rows)
        while self._fill():
            found += self._rows
            self._place = len(self._rows)
        return self._made_of(found)

    def _fill(self) -> bool:
        """Get the next part of the result, if all rows of the last one were fetched; return whether it has rows."""
        source = self._source
        if source is None:
            return False
        _ = self.description  # made now, because it depends on the first rows
        self._source = _LOST
        try:
            rows = self._connection._run(lambda _: source.batch())
            self._before += len(self._rows)
        except Error:
            self._source = source
            raise
        except BaseException:  # the handler of a signal may raise when rows have left the source: they are lost
            self._connection._dropped.append(source)
            raise
        self._rows, self._place, self._source = rows, 0, source if rows else None
        return bool(rows)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._check()
        if self._place >= len(self._rows) and not self._fill():
            raise StopIteration
        return self.fetchone()

    def _made_of(self, rows: list[tuple[Any, ...]]) -> list[Any]:
        if not self._converters and self._connection.text_factory is str and self.row_factory is None:
            return rows
        return [self._made(row) for row in rows]

    def _made(self, row: tuple[Any, ...]) -> Any:
        if self._converters or self._connection.text_factory is not str:
            with self._busy():
                row = tuple(map(self._converted, self._converters or [None] * len(row), row))
        return row if self.row_factory is None else self.row_factory(self, row)

    def _converted(self, converter: Callable[[bytes], Any] | None, value: Any) -> Any:
        """Return a value converted by the converter; without a converter, a text as made by the text factory."""
        if converter is not None and value is not None:
            data = value if isinstance(value, bytes) else str(value).encode()
            return converter(data) if data else None  # as in sqlite3, an empty value becomes None
        text = self._connection.text_factory
        return text(value.encode()) if text is not str and isinstance(value, str) else value

    # -- further methods of PEP 249 --------------------------------------------------------------------------------

    def setinputsizes(self, sizes: Any, /) -> None:
        """Do nothing: memory needs no preparation here."""

    def setoutputsize(self, size: int, column: int | None = None, /) -> None:
        """Do nothing: values are fetched whole."""

    def close(self) -> None:
        """Close the cursor and drop its result; a second close does nothing."""
        if self._connection is None:
            raise ProgrammingError("Base Cursor.__init__ not called.")
        if self._is_busy:
            raise ProgrammingError(RECURSIVE)
        self._is_closed = True
        self._forget()

    def _check(self) -> None:
        if self._connection is None:
            raise ProgrammingError("Base Cursor.__init__ not called.")
        if self._is_closed:
            raise ProgrammingError(
                "Cannot operate on a closed cursor: this cursor is closed; make another with connection.cursor()"
            )
        if self._is_busy:
            raise ProgrammingError(RECURSIVE)
        self._connection._check()


def _checked(sql: str) -> str:
    """Return the kind of a text's statement.

    Raises:
        ProgrammingError: the text has several statements, or a NUL character.
    """
    if "\0" in sql:
        raise ProgrammingError("the query contains a null character; send the value as a parameter")
    if not is_single(sql):
        raise ProgrammingError("You can only execute one statement at a time; use executescript() for several.")
    return kind_of(sql)


_checked_once = lru_cache(KNOWN_MAX)(_checked)
