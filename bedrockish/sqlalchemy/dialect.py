"""SQLAlchemy's SQLite dialect on a bedrockish cluster.

The dialect's name stays ``sqlite``, so types, DDL options, ``insert().on_conflict_do_update()`` and Alembic work as for
SQLite. The differences: a transaction begins with its first statement, reads included, so SERIALIZABLE is serializable;
schema statements are part of transactions; errors distinguish a lost node from a lost conflict.
"""

import re
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from sqlalchemy import pool
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteExecutionContext
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import URL, Engine
from sqlalchemy.sql import compiler

from bedrockish.sqlalchemy.again import repeated
from bedrockish.sqlalchemy.for_update import claim_of
from bedrockish.sqlalchemy.urls import client_url, is_yes, last_of

SERIALIZABLE, SNAPSHOT, AUTOCOMMIT = "SERIALIZABLE", "SNAPSHOT", "AUTOCOMMIT"
# Codes of errors after which a connection has lost its node; SQLAlchemy then drops the pool's other connections, too.
LOST = ("unavailable", "closed", "protocol")


def _regexp(pattern: str, text: str | None) -> bool | None:
    """Return whether a text matches a pattern of ``re``, as SQLAlchemy's function for ``sqlite3`` does."""
    return None if text is None else re.search(pattern, text) is not None


class BedrockishContext(SQLiteExecutionContext):
    """The execution of one statement."""

    def pre_exec(self) -> None:
        """Write the rows that a SELECT … FOR UPDATE is about to read; on a node's file, register ``regexp`` for use.

        ``regexp`` is registered only when a statement needs it, because on a file connections without functions read
        faster.
        """
        super().pre_exec()  # type: ignore[no-untyped-call]
        if " REGEXP " in self.statement:
            connection: Any = self._dbapi_connection.dbapi_connection
            if connection.lacks("regexp"):
                connection.create_function("regexp", 2, _regexp, deterministic=True)
        if getattr(self.invoked_statement, "_for_update_arg", None) is not None:
            params = self.compiled_parameters[0] if self.compiled_parameters else {}
            claim = claim_of(self.invoked_statement, dict(params))
            if claim is not None:
                self.root_connection.execute(claim)

    def fetchall_for_returning(self, cursor: Any) -> Any:
        """Return the rows of an INSERT of several objects, after checking that their ids rise.

        SQLAlchemy gives the ids to the objects in this order. Ids do not rise once the table's greatest id is in use.
        """
        rows = super().fetchall_for_returning(cursor)  # type: ignore[no-untyped-call]
        inserted = getattr(self.compiled, "_insertmanyvalues", None)
        if getattr(inserted, "implicit_sentinel", False):
            ids = [row[-1] for row in rows]
            if ids != sorted(ids):
                why = "the table's last possible id is in use, so rows get unused ids in no order"
                raise self.dialect.loaded_dbapi.NotSupportedError(f"{why}; insert one object at a time, or give ids")
        return rows

    def create_server_side_cursor(self) -> Any:
        """Return a cursor whose rows arrive as they are fetched, for ``stream_results`` or ``yield_per``."""
        return self._dbapi_connection.cursor(self.dialect.loaded_dbapi.StreamingCursor)


class BedrockishDialect(SQLiteDialect_pysqlite):
    """The dialect of ``create_engine("bedrockish://...")``."""

    driver = "bedrockish"
    supports_statement_cache = True
    supports_server_side_cursors = True
    execution_ctx_cls = BedrockishContext
    if hasattr(compiler, "InsertmanyvaluesSentinelOpts"):  # from SQLAlchemy 2.0.10 on
        # One INSERT for many objects: their ids rise in the order of VALUES, and the context checks it.
        insertmanyvalues_implicit_sentinel = compiler.InsertmanyvaluesSentinelOpts.ANY_AUTOINCREMENT

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return the DB-API module."""
        module: ModuleType = __import__("bedrockish.dbapi", fromlist=["connect"])
        return module

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:  # noqa: ARG003
        """Return the class of the pool: connections are costly enough to keep, and any thread may use them."""
        return pool.QueuePool

    @classmethod
    def get_async_dialect_cls(cls, url: URL) -> Any:  # noqa: ARG003
        """Return the dialect that ``create_async_engine`` uses for the same URL."""
        return registry.load("bedrockish.asyncio")

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        """Run ``create_all``, ``drop_all`` and their like on an engine again if another process changed the schema.

        SQLAlchemy begins and commits them itself, so the application cannot run them again. Each attempt looks up the
        tables again.
        """
        run: Callable[..., None] = engine._run_ddl_visitor

        def run_again(*args: Any, **kwargs: Any) -> None:
            repeated(partial(run, *args, **kwargs))

        setattr(engine, "_run_ddl_visitor", run_again)  # noqa: B010  a method of one object

    def create_connect_args(self, url: URL) -> Any:
        """Return the arguments for ``bedrockish.dbapi.connect``."""
        given = dict(url.query)
        hosts = given.pop("host", ())
        options = {name: last_of(value) for name, value in given.items()}
        extra: dict[str, Any] = {name: options.pop(name) for name in ("isolation",) if name in options}
        for name in ("replay", "schema_commits", "write_lock"):
            if name in options:
                extra[name] = is_yes(options.pop(name), name)
        return [client_url(url, options, [hosts] if isinstance(hosts, str) else hosts)], {**extra, "autocommit": False}

    def on_connect(self) -> Any:
        """Return nothing: functions of the program do not exist on nodes, and ``pre_exec`` registers them on a file."""
        return None

    # -- isolation -------------------------------------------------------------------------------------------------

    def get_isolation_level_values(self, dbapi_connection: Any) -> Any:  # noqa: ARG002
        """Return the levels of isolation."""
        return [SERIALIZABLE, SNAPSHOT, AUTOCOMMIT]

    def get_default_isolation_level(self, dbapi_conn: Any) -> Any:
        """Return the level of a new connection."""
        return self.get_isolation_level(dbapi_conn)

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        """Return the level of a connection."""
        if dbapi_connection.autocommit is True:
            return AUTOCOMMIT
        return str(dbapi_connection.isolation).upper()

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """Set the level of future transactions."""
        dbapi_connection.autocommit = level == AUTOCOMMIT
        if level != AUTOCOMMIT:
            dbapi_connection.isolation = level.lower()

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        """Return whether statements are transactions of their own."""
        return dbapi_conn.autocommit is True

    # -- connections -----------------------------------------------------------------------------------------------

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Check that a node answers; if the client's node does not, the client itself tries the other nodes."""
        dbapi_connection.ping()
        return True

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:  # noqa: ARG002
        """Return whether an error means that the connection has lost its node."""
        return getattr(e, "code", None) in LOST

    # -- reflection ------------------------------------------------------------------------------------------------

    def _sqlite_main_query(self, table: str, type_: str, schema: str | None, sqlite_include_internal: bool) -> str:
        """Return the query for names; it excludes the node's own tables."""
        query = str(super()._sqlite_main_query(table, type_, schema, sqlite_include_internal))
        return query.replace(f"type='{type_}'", f"type='{type_}' AND name NOT LIKE 'bedrockish~_%' ESCAPE '~'", 1)
