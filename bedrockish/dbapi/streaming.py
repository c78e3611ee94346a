"""A cursor whose result may have any size, from a URL, too: it reads the rows while they are fetched."""

from typing import Any, Self

from bedrockish.api.requests import Rows
from bedrockish.dbapi.cursor import Cursor
from bedrockish.dbapi.values import adapt_all
from bedrockish.sqltext.statement_kinds import READ, kind_of


class StreamingCursor(Cursor):
    """A cursor that reads rows as they are fetched, from ``connection.cursor(StreamingCursor)``.

    A statement that reads is not part of a transaction and begins none. Its rows come from one snapshot, and a fetch
    may raise an ``OperationalError`` with the code ``result_lost`` if further rows are lost. Other statements, and all
    statements in an open transaction, run as with any cursor.
    """

    def __del__(self) -> None:
        """Have the next call of the connection close the stream: the collector may run while a call has locks."""
        if self._source is not None:
            self._connection._dropped.append(self._source)

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
        stream = self._connection._run(lambda session: session.stream(sql, params))
        self._source = stream
        rows = self._connection._run(lambda _: stream.batch())
        self._set_result(Rows(stream.columns, rows, rest=stream if rows else None))
        return self
