"""The database backend: Django's backend for SQLite, on the DB-API of a cluster.

The differences: a connection is a session with a cluster, SQL functions are registered at the nodes, tests use another
cluster, and the shell is ``bedrockish sql``.
"""

import decimal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.client import BaseDatabaseClient
from django.db.backends.base.creation import BaseDatabaseCreation
from django.db.backends.sqlite3 import base, features, introspection, operations
from django.utils.dateparse import parse_date, parse_datetime, parse_time

import bedrockish.dbapi as db
from bedrockish.dbapi.identity import cluster_id
from bedrockish.django.in_program import supply

_OWN_CLUSTER = (
    "a cluster has one database, so tests need a cluster of their own: give its URL in TEST['NAME'], such as that of "
    "one node on this machine; its tables are dropped when the tests begin"
)
_ASK_S, _WAIT_S = 1.0, 60.0  # timeouts for the program's cluster, often out of the tests' reach, and for the tests' own

db.register_adapter(decimal.Decimal, str)
# The converters that Django registers with sqlite3, for connections with declared types (OPTIONS detect_types).
db.register_converter("bool", b"1".__eq__)
for _name, _parse in (
    ("date", parse_date),
    ("time", parse_time),
    ("datetime", parse_datetime),
    ("timestamp", parse_datetime),
):
    db.register_converter(_name, base.decoder(_parse))


class Cursor(db.Cursor):
    """A cursor that takes parameters as Django writes them: ``%s`` and ``%(name)s``."""

    def execute(self, sql: str, parameters: Any = None, /) -> Any:
        """Run a statement; without parameters, its text is sent unchanged."""
        supply(self.connection, sql)
        if parameters is None:
            return super().execute(sql)
        return super().execute(*_converted(sql, parameters))

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Any:
        """Run a statement with each of many parameters."""
        every = list(seq_of_parameters)
        if not every:
            return self
        supply(self.connection, sql)
        return super().executemany(_converted(sql, every[0])[0], every)


def _converted(sql: str, parameters: Any) -> tuple[str, Any]:
    if isinstance(parameters, dict):
        return sql % {name: f":{name}" for name in parameters}, parameters
    return sql % (("?",) * len(parameters)), tuple(parameters)


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        value = int(value)
    elif isinstance(value, bytearray | memoryview):
        value = bytes(value)
    elif not isinstance(value, int | float | str | bytes | None):
        value = str(value)
    return apsw.format_sql_value(value)


class DatabaseFeatures(features.DatabaseFeatures):
    """The features in which a cluster differs from SQLite."""

    test_db_allows_multiple_connections = True
    can_clone_databases = False
    has_select_for_update = True  # a transaction that loses gets the error when it commits
    has_select_for_update_nowait = True  # no transaction waits for a row
    has_select_for_no_key_update = True
    supports_sequence_reset = False  # nodes assign only rising ids
    max_query_params = 999  # as in Django 5.2: later ones ask the connection, which does not know the nodes' limits


class DatabaseOperations(operations.DatabaseOperations):
    """The SQL in which a cluster differs from SQLite."""

    compiler_module = "bedrockish.django.compiler"

    def for_update_sql(self, *_args: Any, **_kwargs: Any) -> str:
        """Return nothing: the compiler writes the rows instead."""
        return ""

    def _quote_params_for_last_executed_query(self, params: Sequence[Any]) -> tuple[str, ...]:
        """Return values as SQLite writes them, for Django's log of queries.

        Django would ask the database. After a failed statement that would fail, too, and hide the first error, so that
        the program could not see that its transaction can be run again.
        """
        return tuple(_quoted(value) for value in params)

    def sequence_reset_by_name_sql(self, style: Any, sequences: Any) -> list[str]:
        """Return nothing: nodes assign only rising ids."""
        return []


class DatabaseIntrospection(introspection.DatabaseIntrospection):
    """The user's tables, without a node's system tables."""

    def get_table_list(self, cursor: Any) -> list[Any]:
        """Return tables and views."""
        return [one for one in super().get_table_list(cursor) if not one.name.startswith("bedrockish_")]


class DatabaseClient(BaseDatabaseClient):
    """``manage.py dbshell`` opens the shell of the cluster."""

    executable_name = "bedrockish"

    @classmethod
    def settings_to_cmd_args_env(
        cls, settings_dict: dict[str, Any], parameters: Sequence[str]
    ) -> tuple[list[str], dict[str, str] | None]:
        """Return the command ``bedrockish sql`` with the URL or the path of the database."""
        return [cls.executable_name, "sql", settings_dict["NAME"], *parameters], None


class DatabaseCreation(BaseDatabaseCreation):
    """The creation of the database for tests: another cluster, which ``TEST["NAME"]`` names; one local node suffices.

    All its tables are dropped when the tests begin. So the cluster that the program uses is refused, also under another
    URL.
    """

    def _get_test_db_name(self) -> str:
        settings = self.connection.settings_dict
        name = settings["TEST"]["NAME"]
        if not name or name == settings["NAME"]:
            raise ImproperlyConfigured(_OWN_CLUSTER)
        return str(name)

    def _create_test_db(self, verbosity: int, autoclobber: bool, keepdb: bool = False) -> str:
        name = self._get_test_db_name()
        own = cluster_id(self.connection.settings_dict["NAME"], _ASK_S)
        if own and own == cluster_id(name, _WAIT_S):
            raise ImproperlyConfigured(_OWN_CLUSTER)
        if not keepdb:
            with db.connect(name, isolation_level=None) as connection:
                tables = connection.execute(
                    "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') "
                    "AND name NOT LIKE 'sqlite~_%' ESCAPE '~' AND name NOT LIKE 'bedrockish~_%' ESCAPE '~'"
                ).fetchall()
                connection.execute("PRAGMA foreign_keys = OFF")
                connection.execute("BEGIN")
                for kind, table in tables:
                    quoted = '"' + table.replace('"', '""') + '"'
                    connection.execute(f"DROP {kind} {quoted}")
                connection.execute("COMMIT")
        return name

    def _destroy_test_db(self, test_database_name: str, verbosity: int) -> None:
        """Leave the tables: the next run drops them."""

    def _clone_test_db(self, suffix: str, verbosity: int, keepdb: bool = False) -> None:
        raise ImproperlyConfigured("tests of a cluster run in one process; leave out --parallel")


class DatabaseWrapper(base.DatabaseWrapper):
    """The backend that ``ENGINE`` names.

    ``NAME`` is the URL of the cluster or the path of a node's file, ``OPTIONS`` are arguments of ``dbapi.connect``.
    """

    vendor = "sqlite"  # Django's own parts choose their SQL by this name
    display_name = "bedrockish"
    Database = db
    client_class = DatabaseClient
    creation_class = DatabaseCreation
    features_class = DatabaseFeatures
    introspection_class = DatabaseIntrospection
    ops_class = DatabaseOperations

    def get_connection_params(self) -> dict[str, Any]:
        """Return the arguments of ``connect``."""
        name = self.settings_dict["NAME"]
        is_file = isinstance(name, Path) or ("://" not in str(name) and "/" in str(name))
        if not (is_file or str(name).startswith("bedrockish://")):
            raise ImproperlyConfigured(
                "NAME should be the URL of a cluster, such as bedrockish://host1:7373,host2:7373/, or the path of a "
                f"node's file, not {name!r}"
            )
        params = super().get_connection_params()  # removes options that Django handles, and raises errors
        if "detect_types" not in self.settings_dict["OPTIONS"]:
            del params["detect_types"]  # Django converts values by its fields, and declared types would cost a request
        return {**params, "isolation_level": None}

    def get_new_connection(self, conn_params: dict[str, Any]) -> db.Connection:
        """Open a session with the cluster, and run the statements of ``init_command``."""
        connection = db.connect(**conn_params)
        try:
            for command in filter(None, map(str.strip, self.init_commands)):
                connection.execute(command)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def constraint_checks_disabled(self) -> Iterator[None]:
        """Leave foreign keys on in an ``atomic`` block, as SQLite does: Django defers its keys to the end of the block.

        ``loaddata`` uses it for rows. A transaction that switches the keys off must change the schema.
        """
        if self.in_atomic_block:
            yield
            return
        with super().constraint_checks_disabled():
            yield

    def create_cursor(self, name: str | None = None) -> Cursor:
        """Return a cursor."""
        return self.connection.cursor(Cursor)

    def close(self) -> None:
        """Close the session; an open transaction is rolled back."""
        base.BaseDatabaseWrapper.close(self)

    def is_in_memory_db(self) -> bool:
        """Return False: closing a connection loses no data."""
        return False

    def is_usable(self) -> bool:
        """Return whether a node answers on this session."""
        try:
            self.connection.ping()
        except db.Error:
            return False
        return True
