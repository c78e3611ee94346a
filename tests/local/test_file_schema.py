"""The schema of a node's file, which all sessions of a program share."""

from contextlib import suppress
from typing import Any

import apsw
import pytest

import bedrockish
from bedrockish.access_sets.table_layout import Tables
from bedrockish.client.blocking import Connection
from bedrockish.engine.execution.executor import KnownSchema
from bedrockish.errors import ConflictError
from bedrockish.local import file_schema
from bedrockish.local.file_schema import FILE_SCHEMAS, FILES_MAX
from tests.local.conftest import here
from tools.cluster import LocalNode

pytestmark = pytest.mark.cluster


def known(db: Connection) -> KnownSchema:
    """Return the schema that the session's last transaction has read."""
    schema = here(db).pool.known_schema
    assert schema is not None
    return schema.known


def test_sessions_share_one_reading_of_a_schema(node: LocalNode, db: Connection, table: str) -> None:
    """Reading all definitions on each connection would take half a second with 2,000 tables."""
    with bedrockish.connect(node.database) as one, bedrockish.connect(node.database) as other:
        for each in (one, other):
            each.token = db.token
            with each.transaction() as tx:
                tx.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1")
        assert known(one) is known(other)
        one.execute(f"ALTER TABLE {table} ADD COLUMN added DEFAULT 7")
        with one.transaction() as tx:
            assert tx.execute(f"SELECT added FROM {table} WHERE id = 1").value() == 7
        assert known(one) is not known(other), "the other session has not moved to the new schema yet"
        other.token = one.token
        with other.transaction() as tx:
            tx.execute(f"UPDATE {table} SET added = 8 WHERE id = 1")
        assert known(one) is known(other)
        one.token = other.token
        assert one.execute(f"SELECT added FROM {table} WHERE id = 1").value() == 8


def test_schema_is_read_from_one_snapshot_while_it_changes(
    node: LocalNode, db: Connection, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a session's first transaction could see tables and indexes of two versions, or raise a KeyError."""
    changes = [f"CREATE INDEX {table}_late ON {table}(b)"]

    class ChangedMeanwhile(Tables):
        def __init__(self, file: apsw.Connection, *args: Any) -> None:
            super().__init__(file, *args)
            while changes:
                db.execute(changes.pop())

    monkeypatch.setattr(file_schema, "Tables", ChangedMeanwhile)
    FILE_SCHEMAS._newest.clear()
    with bedrockish.connect(node.database) as one:
        with suppress(ConflictError), one.transaction() as tx:
            tx.execute(f"UPDATE {table} SET b = b + 1 WHERE id = 1")
        assert not changes
        one.token = db.token
        with one.transaction() as tx:
            tx.execute(f"UPDATE {table} SET b = b + 1 WHERE b = 9")
            assert f"{table}_late" in {getattr(root, "name", "") for root in known(one).schema.roots.values()}


def test_schemas_of_a_few_files_are_kept() -> None:
    for _ in range(FILES_MAX + 1):
        with bedrockish.node() as served, bedrockish.connect(str(served.path)) as db:
            db.execute("CREATE TABLE t(a)")
            with db.transaction() as tx:
                tx.execute("INSERT INTO t VALUES (1)")
            assert known(db) in [one.known for one in FILE_SCHEMAS._newest.values()]
    assert len(FILE_SCHEMAS._newest) == FILES_MAX
