"""The dialect for ``create_async_engine("bedrockish://…")``: the DB-API, whose calls run in threads, for asyncio.

A call of the DB-API waits for a node, so it runs in a thread while the program's other tasks run. Only known reads and
writes by keys, in a transaction on a node's file, run in the loop: a change of threads takes longer. The threads are
not those of ``asyncio.to_thread``, of which there are few: if all of them waited for the write lock, none would be left
for the COMMIT that releases it.

``execute`` keeps the rows of a result, so only a streamed result needs a thread for fetching. Programs read a result
also after their transaction, when the pool has closed its connection, as with other drivers for asyncio.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from sqlalchemy import pool
from sqlalchemy.engine import URL
from sqlalchemy.util import concurrency

from bedrockish.common.forks import call_after_fork, notice_fork
from bedrockish.common.pauses import monotonic
from bedrockish.sqlalchemy.dialect import BedrockishContext, BedrockishDialect

TASK_S = 0.001  # how long tasks may run short statements in the loop before other tasks run
LATE_S = 0.01  # how much longer without statements: a cancellation in ``rollback`` costs the pool the connection
THREADS_MAX = 10_000  # threads are made only when all others are in a call, so the pools limit their number
_await: Callable[[Any], Any] = getattr(concurrency, "await_", None) or concurrency.await_only
_gives_way_at = 0.0  # when the next statement first lets other tasks run, in seconds of ``monotonic``


class _Threads:
    """The threads of this process for calls of the DB-API; a forked child has threads of its own."""

    def __init__(self) -> None:
        self.after_fork()
        call_after_fork(self.after_fork)

    def after_fork(self) -> None:
        """Forget the parent's threads."""
        self._executor = ThreadPoolExecutor(THREADS_MAX, "bedrockish-asyncio")

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        notice_fork()
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._executor, context.run, call, *args)


_threads = _Threads()


def _in_thread(call: Callable[..., Any], *args: Any) -> Any:
    return _await(_threads.run(call, *args))


def _give_way(late_s: float = 0.0) -> bool:
    """Let other tasks run, and notice a cancellation, if the last time was ``TASK_S`` ago; return whether it was.

    Known reads, and the ends of their transactions, do not wait. ``late_s`` is added to ``TASK_S``.
    """
    global _gives_way_at
    if monotonic() <= _gives_way_at + late_s:
        return False
    _await(asyncio.sleep(0))
    _gives_way_at = monotonic() + TASK_S
    return True


async def _ready() -> None:
    """Return at once."""


class AsyncCursor:
    """A cursor with synchronous methods, as SQLAlchemy expects it, whose calls run in threads."""

    server_side = False

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._rows: deque[Any] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    @property
    def arraysize(self) -> int:
        """How many rows ``fetchmany`` returns by default."""
        return int(self._cursor.arraysize)

    @arraysize.setter
    def arraysize(self, size: int) -> None:
        self._cursor.arraysize = size

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run one statement."""
        self._rows.clear()
        if not _give_way():
            _await(_ready())  # SQLAlchemy refuses an ``execute`` that awaits nothing
        parameters = parameters if parameters is not None else ()
        if self.server_side or not self._cursor.execute_at_once(sql, parameters):
            _in_thread(self._execute, sql, parameters)
        else:
            self._rows = deque(self._cursor.fetchall())
        return self

    def executemany(self, sql: str, every: Any) -> Any:
        """Run one statement with each of many parameters."""
        self._rows.clear()
        _in_thread(self._cursor.executemany, sql, every)
        return self

    def fetchone(self) -> Any:
        """Return the next row; None after the last row."""
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int | None = None) -> Any:
        """Return the next rows, ``arraysize`` by default."""
        count = self.arraysize if size is None else size
        return [self._rows.popleft() for _ in range(min(count, len(self._rows)))]

    def fetchall(self) -> Any:
        """Return all rows that are left."""
        rows, self._rows = list(self._rows), deque()
        return rows

    def close(self) -> None:
        """Close the cursor and drop its result."""
        self._rows.clear()
        self._cursor.close()

    async def _async_soft_close(self) -> None:
        """Do nothing: a result holds nothing at a node."""

    def _execute(self, sql: str, parameters: Any) -> None:
        self._cursor.execute(sql, parameters)
        self._rows.extend(self._cursor.fetchall())


class AsyncStreamingCursor(AsyncCursor):
    """A cursor whose rows arrive as they are fetched."""

    server_side = True

    def fetchone(self) -> Any:
        """Return the next row."""
        return _in_thread(self._cursor.fetchone)

    def fetchmany(self, size: int | None = None) -> Any:
        """Return the next rows."""
        return _in_thread(self._cursor.fetchmany, size)

    def fetchall(self) -> Any:
        """Return all rows that are left."""
        return _in_thread(self._cursor.fetchall)

    def close(self) -> None:
        """Close the result, also at its node."""
        _in_thread(self._cursor.close)

    async def _async_soft_close(self) -> None:
        await _threads.run(self._cursor.close)

    def _execute(self, sql: str, parameters: Any) -> None:
        self._cursor.execute(sql, parameters)


class AsyncConnection:
    """A connection with synchronous methods, as SQLAlchemy expects it, whose calls run in threads."""

    _OWN = frozenset({"driver_connection"})

    def __init__(self, connection: Any) -> None:
        self.driver_connection = connection  # the connection of ``bedrockish.dbapi``

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver_connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            super().__setattr__(name, value)
        else:  # in a thread, because a change of ``autocommit`` may commit
            _in_thread(setattr, self.driver_connection, name, value)

    def cursor(self, kind: Any = None, **_: Any) -> Any:
        """Return a cursor; with ``kind``, a streaming cursor around a ``bedrockish.dbapi`` cursor of this class."""
        if kind is None:
            return AsyncCursor(self.driver_connection.cursor())
        return AsyncStreamingCursor(self.driver_connection.cursor(kind))

    def commit(self) -> None:
        """Commit the open transaction."""
        _give_way(LATE_S)
        if not self.driver_connection.end_at_once(commits=True):
            _in_thread(self.driver_connection.commit)

    def rollback(self) -> None:
        """Roll the open transaction back."""
        _give_way(LATE_S)
        if not self.driver_connection.end_at_once(commits=False):
            _in_thread(self.driver_connection.rollback)

    def ping(self) -> None:
        """Check that a node answers."""
        _in_thread(self.driver_connection.ping)

    def close(self) -> None:
        """Close the session."""
        _in_thread(self.driver_connection.close)

    def terminate(self) -> None:
        """Close the session without waiting: the task that used it was cancelled, or its loop has ended."""
        self.driver_connection.close()


class _Module:
    """The DB-API module, with connections whose calls run in threads."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def connect(self, *args: Any, **options: Any) -> AsyncConnection:
        """Open a session."""
        return AsyncConnection(_in_thread(lambda: self._module.connect(*args, **options)))


class BedrockishDialectAsync(BedrockishDialect):
    """The dialect of ``create_async_engine("bedrockish://...")``."""

    driver = "bedrockish_async"
    is_async = True
    has_terminate = True
    supports_statement_cache = True
    execution_ctx_cls = BedrockishContext

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return the DB-API module, with connections whose calls run in threads."""
        return _Module(super().import_dbapi())

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:  # noqa: ARG003
        """Return the class of the pool."""
        return pool.AsyncAdaptedQueuePool

    def get_driver_connection(self, connection: Any) -> Any:
        """Return the connection of ``bedrockish.dbapi``."""
        return connection.driver_connection

    def do_terminate(self, dbapi_connection: Any) -> None:
        """Close a connection without waiting."""
        dbapi_connection.terminate()
