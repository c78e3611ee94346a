"""The cursor of PEP 249. A result is complete when ``execute`` returns: fetching never waits and never fails midway."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from bedrockish.client.rows import Rows
from bedrockish.dbapi.errors import InterfaceError, ProgrammingError
from bedrockish.dbapi.statements import READ, SCHEMA, WRITE, inserts, is_single, kind_of, split
from bedrockish.dbapi.values import adapt_all, converter_of, declared_converter, type_codes

if TYPE_CHECKING:
    from bedrockish.dbapi.connection import Connection

PARSE_DECLTYPES = 1
PARSE_COLNAMES = 2

Column = tuple[str, str | None, None, None, None, None, None]
RowFactory = Callable[["Cursor", tuple[Any, ...]], Any]


class Cursor:
    """Runs statements and holds the result of the last one. Get one from ``Connection.cursor``.

    Attributes:
        arraysize: how many rows ``fetchmany`` returns by default.
        row_factory: makes what is fetched of each row, as ``row_factory(cursor, tuple)``; None for tuples.
    """

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.arraysize = 1
        self.row_factory: RowFactory | None = connection.row_factory
        self._rowcount = -1
        self._lastrowid: int | None = None
        self._is_closed = False
        self._forget()

    def _forget(self) -> None:
        self._columns: tuple[str, ...] = ()
        self._rows: list[tuple[Any, ...]] = []
        self._place = 0
        self._description: tuple[Column, ...] | None = None
        self._declared: list[str | None] = []

    # -- what the standard wants to be readable --------------------------------------------------------------------

    @property
    def connection(self) -> "Connection":
        """The connection that made this cursor."""
        return self._connection

    @property
    def description(self) -> tuple[Column, ...] | None:
        """Seven items for each column, of which the name and the type code are told; None without a result.

        The type code compares equal to STRING and the like. With PARSE_DECLTYPES it is the declared type of the column;
        for what has none, and without, that of the column's first value that is not NULL.
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
        """Rows that the last statement changed; -1 after one that changes none by nature."""
        return self._rowcount

    @property
    def lastrowid(self) -> int | None:
        """Rowid of the row inserted last by ``execute`` of this cursor; None before."""
        return self._lastrowid

    @property
    def rownumber(self) -> int | None:
        """Place of the row that is fetched next, from 0; None without a result."""
        return self._place if self._columns else None

    # -- execution -------------------------------------------------------------------------------------------------

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Run one statement.

        Args:
            sql: the statement, with ``?`` for parameters by position or ``:name`` for those by name.
            parameters: a sequence or a map.

        Raises:
            Error: its class says what went wrong; ``retry`` whether trying the transaction again can help.
        """
        self._check_sql(sql)
        params = adapt_all(parameters) if parameters else None
        kind = kind_of(sql)
        self._forget()
        self._rowcount = -1
        declared = self._ask_types(sql, kind)
        rows = self._connection._run(lambda session: session.run(sql, params, kind))
        if declared is None and rows.columns:
            declared = self._connection._declared(sql)
        self._declared = declared or []
        self._take(rows)
        if kind == SCHEMA:
            self._connection._forget_types()
        if rows.lastrowid is not None and inserts(sql):
            self._lastrowid = rows.lastrowid
        return self

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Self:
        """Run one statement that writes, with each of many parameters; up to a thousand in one round trip.

        Outside of a transaction it is one of its own: all of them or none.

        Raises:
            Error: as for ``execute``.
        """
        self._check_sql(sql)
        kind = kind_of(sql)
        if kind != WRITE:
            raise ProgrammingError("executemany() runs statements that write only; use execute() for others")
        every = [adapt_all(parameters) for parameters in seq_of_parameters]
        self._forget()
        self._rowcount = -1
        done = self._connection._run(lambda session: session.run_many(sql, every, kind) if every else 0)
        self._rowcount = done
        return self

    def executescript(self, sql_script: str, /) -> Self:
        """Commit what is open, then run statement after statement, each a transaction of its own unless the script
        says BEGIN.

        Raises:
            Error: as for ``execute``; the statements before stay done.
        """
        self._check()
        if not isinstance(sql_script, str):
            raise ProgrammingError(f"a script should be a text, not {type(sql_script).__name__}")
        self._forget()
        self._rowcount = -1
        self._connection._run(lambda session: session.commit())
        for sql in split(sql_script):
            self._connection._script(sql)
        return self

    def _check_sql(self, sql: str) -> None:
        self._check()
        if not isinstance(sql, str):
            raise ProgrammingError(f"a statement should be an SQL text, not {type(sql).__name__}")
        if not is_single(sql):
            raise ProgrammingError("only one statement can be executed at a time; use executescript() for several")

    def _ask_types(self, sql: str, kind: str) -> list[str | None] | None:
        """Return declared types, [] if they are not wanted, None if they can only be had afterwards.

        They are asked for before anything happens, so that no answer is lost because of them. Where the node does not
        know a table yet, which running the statement makes it wait for, they are asked for then.
        """
        wanted = self._connection.detect_types & PARSE_DECLTYPES
        if not wanted or not (kind == READ or "RETURNING" in sql.upper()):
            return []
        try:
            return self._connection._declared(sql)
        except ProgrammingError:
            return None

    def _take(self, rows: Rows) -> None:
        self._columns, self._rowcount = rows.columns, rows.rowcount
        self._rows = rows.rows
        text = self._connection.text_factory
        if text is not str:
            make = text if text is not bytes else bytes
            self._rows = [
                tuple(make(value.encode()) if isinstance(value, str) else value for value in row) for row in self._rows
            ]
        converters = [declared_converter(declared) for declared in self._declared] or [None] * len(rows.columns)
        if self._connection.detect_types & PARSE_COLNAMES:
            named = [converter_of(name) for name in rows.columns]
            converters = [first or second for first, second in zip(named, converters, strict=True)]
        if any(converters):
            self._rows = [tuple(map(_convert, converters, row)) for row in self._rows]

    # -- fetching --------------------------------------------------------------------------------------------------

    def fetchone(self) -> Any:
        """Return the next row; None when there is no more.

        Raises:
            ProgrammingError: the last statement had no result, or there was none.
        """
        self._check_result()
        if self._place >= len(self._rows):
            return None
        self._place += 1
        return self._made(self._rows[self._place - 1])

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return the next rows, ``arraysize`` by default; an empty list when there is no more.

        Raises:
            ProgrammingError: as for ``fetchone``, or the size is negative.
        """
        self._check_result()
        count = self.arraysize if size is None else size
        if count < 0:
            raise ProgrammingError(f"the number of rows to fetch should not be negative, but is {count}")
        found = self._rows[self._place : self._place + count]
        self._place += len(found)
        return [self._made(row) for row in found]

    def fetchall(self) -> list[Any]:
        """Return all rows that are left.

        Raises:
            ProgrammingError: as for ``fetchone``.
        """
        self._check_result()
        found, self._place = self._rows[self._place :], len(self._rows)
        return [self._made(row) for row in found]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._check_result()
        if self._place >= len(self._rows):
            raise StopIteration
        return self.fetchone()

    def _made(self, row: tuple[Any, ...]) -> Any:
        return row if self.row_factory is None else self.row_factory(self, row)

    # -- the rest of the standard ----------------------------------------------------------------------------------

    def setinputsizes(self, sizes: Any, /) -> None:
        """Do nothing: memory needs no preparation here."""

    def setoutputsize(self, size: int, column: int | None = None, /) -> None:
        """Do nothing: values come whole."""

    def close(self) -> None:
        """Close the cursor and forget its result. Closing twice is fine."""
        self._is_closed = True
        self._forget()

    def _check(self) -> None:
        if self._is_closed:
            raise InterfaceError("this cursor is closed; make another with connection.cursor()")
        self._connection._check()

    def _check_result(self) -> None:
        self._check()
        if not self._columns:
            raise ProgrammingError("there are no rows to fetch: the last statement gave none, or none was executed")


def _convert(converter: Callable[[bytes], Any] | None, value: Any) -> Any:
    if converter is None or value is None:
        return value
    return converter(value if isinstance(value, bytes) else str(value).encode())
