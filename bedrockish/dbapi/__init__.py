"""PEP 249 for bedrockish, compatible with sqlite3: many programs need only ``import bedrockish.dbapi as sqlite3``."""

import sys
from sqlite3 import complete_statement

import apsw

from bedrockish.dbapi.callbacks import enable_callback_tracebacks
from bedrockish.dbapi.connection import Connection, connect
from bedrockish.dbapi.cursor import PARSE_COLNAMES, PARSE_DECLTYPES, Cursor
from bedrockish.dbapi.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004  the standard names it
)
from bedrockish.dbapi.row import Row
from bedrockish.dbapi.session import LEGACY_TRANSACTION_CONTROL
from bedrockish.dbapi.sqlite_names import constant
from bedrockish.dbapi.streaming import StreamingCursor
from bedrockish.dbapi.values import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    PrepareProtocol,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    adapt,
    adapters,
    converters,
    register_adapter,
    register_converter,
)
from bedrockish.dbapi.whole import Blob


def __getattr__(name: str) -> int:
    if not name.startswith("SQLITE_"):
        raise AttributeError(f"module 'bedrockish.dbapi' has no attribute {name!r}")
    return constant(name)


dbapi2 = sys.modules[__name__]
"""For programs that write ``from sqlite3 import dbapi2``, as SQLAlchemy and Django do."""
apilevel = "2.0"
threadsafety = 2
"""Threads may share the module and its connections, but not cursors. A connection serves one thread at a time."""
paramstyle = "qmark"
"""SQLite also accepts ``:name`` with a map."""
sqlite_version: str = apsw.sqlite_lib_version()
sqlite_version_info: tuple[int, ...] = tuple(int(part) for part in sqlite_version.split("."))
version, version_info = "2.6.0", (2, 6, 0)
"""The version of pysqlite in ``sqlite3`` up to Python 3.13: some programs compare it, such as Trac."""

__all__ = [
    "BINARY",
    "DATETIME",
    "LEGACY_TRANSACTION_CONTROL",
    "NUMBER",
    "PARSE_COLNAMES",
    "PARSE_DECLTYPES",
    "ROWID",
    "STRING",
    "Binary",
    "Blob",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "PrepareProtocol",
    "ProgrammingError",
    "Row",
    "StreamingCursor",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "adapt",
    "adapters",
    "apilevel",
    "complete_statement",
    "connect",
    "converters",
    "enable_callback_tracebacks",
    "paramstyle",
    "register_adapter",
    "register_converter",
    "sqlite_version",
    "sqlite_version_info",
    "threadsafety",
    "version",
    "version_info",
]
