"""Runs CPython's own tests of ``sqlite3`` with our DB-API in its place: ``python -m tools.compliance.cpython_run``.

The tests are those of the interpreter that runs this (``test.test_sqlite3``; Debian packages them separately). Their
module ``sqlite3`` is ``bedrockish.dbapi``, with one difference: each new ``":memory:"``, and the first connection to a
file's name in a test, empties the cluster first, since a cluster is one database.
"""

import argparse
import importlib
import json
import sys
import types
import unittest
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import bedrockish.dbapi as db
from bedrockish_journal.model.plain_names import is_users, quote
from tools.compliance.recording import Recording

PACKAGE = "test.test_sqlite3"
MODULES = ("backup", "dbapi", "dump", "factory", "hooks", "regression", "transactions", "types", "userfunctions")
FACTORY = 6  # number of positional arguments of ``connect`` up to the class of the connection
TABLES = f"SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') AND sql IS NOT NULL AND {is_users()}"


class Databases:
    """The cluster in the place of the files that the tests name; it has the content of one file at a time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._names: set[str] = set()
        self._opened: list[db.Connection] = []
        self._sweeper = db.connect(url, isolation_level=None)

    def begin(self) -> None:
        """Close the connections that the last test left open, and forget the names of its files."""
        for connection in self._opened:
            with suppress(Exception):
                db.Connection.close(connection)
        self._opened.clear()
        self._names.clear()

    def sweep(self) -> None:
        found = self._sweeper.execute(TABLES).fetchall()
        if not found:
            return
        self._sweeper.execute("PRAGMA foreign_keys = OFF")
        self._sweeper.execute("BEGIN")
        for kind, name in found:
            self._sweeper.execute(f"DROP {kind} {quote(name)}")
        self._sweeper.execute("COMMIT")

    def url_of(self, database: Any) -> Any:
        """Return the cluster's URL for a file's name, and empty the cluster for a new file; return non-texts as is."""
        if not isinstance(database, str):
            return database
        if database == ":memory:" or database not in self._names:
            self.sweep()
        self._names.add(database)
        return self.url

    def opened(self, connection: db.Connection) -> None:
        """Remember a connection, to close it at the end of the test."""
        self._opened.append(connection)


def make_module(databases: Databases) -> types.ModuleType:
    """Return the module that the tests import as ``sqlite3``."""

    class Connection(db.Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if args:
                args = (databases.url_of(args[0]), *args[1:])
            elif "database" in kwargs:
                kwargs["database"] = databases.url_of(kwargs["database"])
            super().__init__(*args, **kwargs)
            databases.opened(self)

    def connect(*args: Any, **kwargs: Any) -> db.Connection:
        if len(args) < FACTORY:
            kwargs.setdefault("factory", Connection)
        return db.connect(*args, **kwargs)

    made = types.ModuleType("sqlite3")
    made.__dict__.update({name: getattr(db, name) for name in dir(db) if not name.startswith("__")})
    made.__dict__.update(connect=connect, Connection=Connection, __getattr__=db.__getattr__)
    return made


class Recorder(Recording):
    def __init__(self, databases: Databases) -> None:
        super().__init__()
        self.databases = databases

    def name_of(self, test: Any) -> str:
        """Return the name of a test as unittest prints it, without the package."""
        return str(test.id()).removeprefix(f"{PACKAGE}.test_")

    def startTest(self, test: Any) -> None:
        """Close the connections that the last test left open."""
        self.databases.begin()
        super().startTest(test)


def run(url: str, record: Path, only: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    support: Any = importlib.import_module("test.support")
    support.verbose = 0  # else the suite prints ``sqlite3.version``, which later releases of sqlite3 lack
    databases = Databases(url)
    sys.modules["sqlite3"] = make_module(databases)
    recorder, loader = Recorder(databases), unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*" for word in only] or None
    loader.loadTestsFromNames([f"{PACKAGE}.test_{module}" for module in MODULES]).run(recorder)
    record.write_text(json.dumps(recorder.outcomes, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.compliance.cpython_run", description=__doc__)
    parser.add_argument("record", type=Path, help="the file for the outcome of each test, as JSON")
    parser.add_argument("url", help="the URL of a cluster, or the path of a node's file; all its tables are dropped")
    parser.add_argument("--only", nargs="*", default=(), help="run only tests whose names contain one of these texts")
    asked = parser.parse_args()
    run(asked.url, asked.record, asked.only)
