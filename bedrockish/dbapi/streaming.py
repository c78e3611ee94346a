"""A cursor that reads its result while rows are fetched, so that the result may have any size."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from bedrockish.api.requests import Rows
from bedrockish.client.cursor import BlockingRowStream
from bedrockish.dbapi.cursor import Cursor
from bedrockish.dbapi.errors import ProgrammingError
from bedrockish.dbapi.values import adapt_all
from bedrockish.sqltext.statement_kinds import READ, kind_of

if TYPE_CHECKING:
    from bedrockish.dbapi.connection import Connection


class StreamingCursor(Cursor):
    """A cursor that reads rows as they are fetched, from ``connection.cursor(StreamingCursor)``.

    A statement that reads is not part of a transaction and begins none. Its rows come from one snapshot, and a fetch
    may raise an ``OperationalError`` with the code ``result_lost`` if further rows are lost. Other statements, and all
    statements in an open transaction, run as with any cursor.
    """

    _stream: BlockingRowStream | None = None

    def __init__(self, connection: "Connection") -> None:
        self._before = 0  # number of rows in the earlier batches
        super().__init__(connection)

    def __del__(self) -> None:
        """Have the next call of the connection close the stream: the collector may run while a call has locks."""
        if self._stream is not None:
            self._connection._dropped.append(self._stream)

    def _forget(self) -> None:
        stream, self._stream, self._before = self._stream, None, 0
        super()._forget()
        if stream is not None:
            with suppress(ProgrammingError):  # the connection is closed, and the stream with it
                self._connection._run(lambda _: stream.close())

    @property
    def rownumber(self) -> int | None:
        """Index of the row that is fetched next, from 0; None if the last statement had no result."""
        place = super().rownumber
        return None if place is None else self._before + place

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Run one statement; if it reads, wait for its first rows only.

        Raises:
            Error: as for ``Cursor.execute``.
        """
        self._check_sql(sql)
        is_whole = kind_of(sql) != READ or self._connection.in_transaction
        if is_whole or self._connection._run(lambda session: session.has_own_schema):
            return super().execute(sql, parameters)
        params = adapt_all(parameters, sql) if parameters else None
        self._forget()
        self._declared = self._ask_types(sql, READ) or []
        self._stream = self._connection._run(lambda session: session.stream(sql, params))
        self._next_batch()
        assert self._columns
        _ = self.description  # cached now: it depends on the first rows, which the next batch replaces
        return self

    def _next_batch(self) -> None:
        stream = self._stream
        assert stream is not None
        self._before += len(self._rows)
        rows = self._connection._run(lambda _: stream.batch())
        self._set_result(Rows(stream.columns, rows))
        self._place = 0
        if not rows:
            self._stream = None

    def _fill(self) -> None:
        """Get the next batch if all received rows were fetched."""
        self._check()
        if self._stream is not None and self._place >= len(self._rows):
            self._next_batch()

    def fetchone(self) -> Any:
        """Return the next row; None when there are no more.

        Raises:
            OperationalError: the remaining rows are lost; running the statement again is safe.
        """
        self._fill()
        return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return the next rows, ``arraysize`` by default; an empty list when there are no more.

        Raises:
            OperationalError: as for ``fetchone``.
            ProgrammingError: the size is negative.
        """
        count = self.arraysize if size is None else size
        if count < 0:
            raise ProgrammingError(f"the number of rows to fetch should not be negative, but is {count}")
        found: list[Any] = []
        self._check()
        while len(found) < count:
            self._fill()
            part = super().fetchmany(count - len(found))
            if not part:
                break
            found += part
        return found

    def fetchall(self) -> list[Any]:
        """Return all remaining rows.

        Raises:
            OperationalError: as for ``fetchone``.
            ProgrammingError: as for ``fetchone``.
        """
        found = super().fetchall()
        while self._stream is not None:
            self._fill()
            found += super().fetchall()
        return found

    def __next__(self) -> Any:
        self._fill()
        return super().__next__()
