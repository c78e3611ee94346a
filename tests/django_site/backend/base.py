"""Django's SQLite backend on the DB-API of a cluster: as little as its migrations need."""

import sqlite3
from typing import Any

from django.db.backends.sqlite3 import base

import bedrockish.dbapi as db


class Cursor(db.Cursor):
    """A cursor that takes parameters as Django writes them."""

    def execute(self, sql: str, parameters: Any = None, /) -> Any:
        if parameters is None:
            return super().execute(sql)
        return super().execute(sql % (("?",) * len(parameters)), tuple(parameters))

    def executemany(self, sql: str, seq_of_parameters: Any, /) -> Any:
        every = [tuple(parameters) for parameters in seq_of_parameters]
        return super().executemany(sql % (("?",) * len(every[0])), every)


class DatabaseWrapper(base.DatabaseWrapper):
    """What ``ENGINE`` names; ``NAME`` is the URL of the cluster."""

    Database = db
    transaction_mode = None

    def get_connection_params(self) -> dict[str, Any]:
        return {"url": self.settings_dict["NAME"]}

    def get_database_version(self) -> tuple[int, ...]:
        return sqlite3.sqlite_version_info

    def get_new_connection(self, conn_params: dict[str, Any]) -> db.Connection:
        connection = db.connect(conn_params["url"], isolation_level=None)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA legacy_alter_table = OFF")
        return connection

    def create_cursor(self, name: str | None = None) -> Cursor:
        return self.connection.cursor(Cursor)
