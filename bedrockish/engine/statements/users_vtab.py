"""``bedrockish_users``: the users of the cluster as a table for SQL; and the journal's memberships without secrets.

The table is an eponymous virtual table, as ``bedrockish_changes``. It shows the users of the applied membership, as of
the same snapshot as the rows of other tables, without the hashes of passwords.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import apsw

from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import ROLES, read_membership, without_secrets
from bedrockish_journal.model.transaction import MEMBERS, decode_transaction

NAME = "bedrockish_users"
SCHEMA = f"CREATE TABLE {NAME}(user_name TEXT, role TEXT, tables TEXT)"
FUNCTION = "bedrockish_without_secrets"


def give_users(db: apsw.Connection) -> None:
    """Register ``bedrockish_users`` on a connection, and the functions that hide the journal's secrets from
    non-admins.
    """
    module: Any = Module(SCHEMA, _Table)
    db.create_module(NAME, module, use_bestindex_object=True, eponymous_only=True, read_only=True)
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


class Module:
    """The module of a virtual table that can only be read.

    Args:
        schema: the table's CREATE TABLE statement.
        table: the table's class.
    """

    def __init__(self, schema: str, table: "type[ReadTable]") -> None:
        self._schema, self._table = schema, table

    def Connect(self, db: apsw.Connection, *_names: str) -> tuple[str, "ReadTable"]:  # noqa: N802
        """Return the table for a connection."""
        return self._schema, self._table(db)

    Create = Connect


class ReadTable:
    """A table on one connection, which holds no resources."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def Disconnect(self) -> None:  # noqa: N802
        """Do nothing."""

    Destroy = Disconnect


class _Table(ReadTable):
    """The users."""

    def BestIndexObject(self, index: apsw.IndexInfo) -> bool:  # noqa: N802
        """Choose the only plan: all rows are read."""
        index.estimatedCost, index.estimatedRows = 100.0, 100
        return True

    def Open(self) -> "_Cursor":  # noqa: N802
        return _Cursor(self._db)


class _Cursor:
    """A cursor over the users."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._rows: list[tuple[str, str | None, str | None]] = []
        self._at = 0

    def Filter(self, _number: int, _chosen: str, _values: Sequence[Any]) -> None:  # noqa: N802
        found: Any = self._db.execute("SELECT value FROM main.bedrockish_meta WHERE key = 'membership'").get
        users = read_membership(found).users if isinstance(found, bytes) else {}
        self._rows = [
            (name, ROLES[one.role - 1] if one.role else None, write_tables(one.tables))
            for name, one in users.items()
            if one is not None
        ]
        self._at = 0

    def Next(self) -> None:  # noqa: N802
        self._at += 1

    def Eof(self) -> bool:  # noqa: N802
        return self._at >= len(self._rows)

    def Rowid(self) -> int:  # noqa: N802
        return self._at

    def Column(self, number: int) -> str | int | None:  # noqa: N802
        return self._at if number < 0 else self._rows[self._at][number]

    def Close(self) -> None:  # noqa: N802
        """Do nothing: the cursor holds no resources."""
