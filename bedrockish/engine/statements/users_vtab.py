"""The table ``bedrockish_users`` for SQL, and a function that removes the secrets from memberships in the journal.

The table is an eponymous virtual table, as ``bedrockish_changes``. It shows the users of the applied membership, as of
the same snapshot as the rows of other tables, without the hashes of passwords.
"""

import json
import weakref
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import apsw

from bedrockish_journal.model.changes import Value
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import ROLES, read_membership, without_secrets
from bedrockish_journal.model.transaction import MEMBERS, decode_transaction

NAME = "bedrockish_users"
SCHEMA = f"CREATE TABLE {NAME}(user_name TEXT, role TEXT, tables TEXT)"
FUNCTION = "bedrockish_without_secrets"


def give_users(db: apsw.Connection) -> None:
    """Register ``bedrockish_users``, and the functions that hide the journal's secrets from non-admins."""
    give_table(db, NAME, SCHEMA, _Users)
    function: Any = body_without_secrets
    db.create_scalar_function(FUNCTION, function, 1, deterministic=True)


def body_without_secrets(body: object) -> bytes | None:
    """Return the body of a membership transaction without hashes; None for any other body."""
    try:
        found = decode_transaction(body) if isinstance(body, bytes) else None
        if found is None or found.kind != MEMBERS:
            return None
        return replace(found, changes=without_secrets(found.changes), body=b"").body
    except EntryMalformedError:
        return None


def write_tables(tables: Mapping[str, int]) -> str | None:
    """Return the roles for single tables as JSON, or None for an empty mapping."""
    return json.dumps({name: ROLES[role - 1] for name, role in tables.items()}, ensure_ascii=False) if tables else None


class _Module:
    def __init__(self, schema: str, table: "type[ReadTable]") -> None:
        self._schema, self._table = schema, table

    def Connect(self, db: apsw.Connection, *_names: str) -> tuple[str, "ReadTable"]:  # noqa: N802
        """Return the table for a connection."""
        return self._schema, self._table(db)

    Create = Connect


def give_table(db: apsw.Connection, name: str, schema: str, table: "type[ReadTable]") -> None:
    """Register a virtual table on a connection; ``schema`` is its CREATE TABLE statement."""
    module: Any = _Module(schema, table)
    db.create_module(name, module, use_bestindex_object=True, eponymous_only=True, read_only=True)


class ReadTable:
    """A read-only virtual table on one connection; a subclass yields its rows."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = weakref.proxy(db)  # SQLite keeps the table, which must not keep the connection

    def rows(self, chosen: str, values: Sequence[Any]) -> Generator[tuple[Value, ...]]:
        """Yield the rows of a query.

        Args:
            chosen: the ``idxStr`` of the plan.
            values: the values of the conditions that the plan has chosen.
        """
        raise NotImplementedError

    def BestIndexObject(self, index: apsw.IndexInfo) -> bool:  # noqa: N802
        """Choose the plan: by default, all rows are read."""
        index.estimatedCost, index.estimatedRows = 100.0, 100
        return True

    def Open(self) -> "_Cursor":  # noqa: N802
        """Return a cursor."""
        return _Cursor(self)

    def Disconnect(self) -> None:  # noqa: N802
        """Do nothing: the table holds no resources."""

    Destroy = Disconnect


class _Cursor:
    def __init__(self, table: ReadTable) -> None:
        self._table = table
        self._rows: Generator[tuple[Value, ...]] | None = None
        self._row: tuple[Value, ...] | None = None
        self._number = 0

    def Filter(self, _number: int, chosen: str, values: Sequence[Any]) -> None:  # noqa: N802
        self.Close()
        self._rows, self._number = self._table.rows(chosen, values), 0
        self.Next()

    def Next(self) -> None:  # noqa: N802
        assert self._rows is not None
        self._row = next(self._rows, None)
        self._number += 1

    def Eof(self) -> bool:  # noqa: N802
        return self._row is None

    def Rowid(self) -> int:  # noqa: N802
        return self._number

    def Column(self, number: int) -> Value:  # noqa: N802
        assert self._row is not None
        return self._number if number < 0 else self._row[number]

    def Close(self) -> None:  # noqa: N802
        """End the query: its statements, if left open, would prevent a rollback of the caller's transaction."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None


class _Users(ReadTable):
    """The table of the cluster's users, by the membership that is applied in the snapshot."""

    def rows(self, chosen: str, values: Sequence[Any]) -> Generator[tuple[Value, ...]]:  # noqa: ARG002
        found: Any = self._db.execute("SELECT value FROM main.bedrockish_meta WHERE key = 'membership'").get
        users = read_membership(found).users if isinstance(found, bytes) else {}
        for name, one in users.items():
            if one is not None:
                yield name, ROLES[one.role - 1] if one.role else None, write_tables(one.tables)
