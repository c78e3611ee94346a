"""Reads of the cluster's own tables: the engine reports them to the core, because their rows have no keys."""

import pytest

from bedrockish.api.requests import Request, Statement
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.execution.overlay_transaction import OverlayTransaction
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.errors import ConstraintError
from tests.engine.nodes import TestNode

SCHEMA = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, v)",
    "CREATE VIEW entries AS SELECT seq, command FROM bedrockish_journal",
    "CREATE VIEW twice AS SELECT command FROM entries UNION ALL SELECT v FROM t",
)
READS = {
    "SELECT count(*) FROM bedrockish_journal": True,
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM bedrockish_joined)": True,
    "SELECT value FROM bedrockish_meta": True,
    "SELECT * FROM bedrockish_changes": True,
    "SELECT count(*) FROM entries": True,
    "SELECT count(*) FROM twice": True,
    "SELECT v FROM t WHERE id IN (SELECT seq FROM entries)": True,
    "SELECT v FROM t": False,
    "SELECT name FROM sqlite_schema": False,
    "PRAGMA table_info(t)": False,
    "SELECT 'bedrockish_journal'": False,
}


@pytest.fixture
def filled(node: TestNode) -> TestNode:
    node.run(*SCHEMA)
    node.run("INSERT INTO t VALUES (1, 'a')")
    return node


@pytest.mark.parametrize("sql", READS)
def test_execution_is_marked_if_it_reads_tables_of_the_cluster(filled: TestNode, sql: str) -> None:
    for texts in ((sql,), ("SELECT v FROM t", sql), (sql, "SELECT v FROM t")):
        prepared = filled.engine.execute(Request("c", tuple(map(Statement, texts))))
        assert prepared.readonly
        assert prepared.reads_system == READS[sql]


def test_refusal_that_rests_on_the_journal_is_marked(filled: TestNode) -> None:
    filled.run("CREATE TABLE u(x CHECK (x < 0))")
    insert = "INSERT INTO u SELECT count(*) FROM {}"
    for table, expected in (("bedrockish_journal", True), ("t", False)):
        with pytest.raises(ConstraintError) as caught:
            filled.engine.execute(Request("c", (Statement(insert.format(table)),)))
        assert caught.value.rests_on is not None
        assert caught.value.rests_on.reads_system == expected


@pytest.mark.parametrize("sql", READS)
def test_open_transaction_is_marked_if_it_reads_tables_of_the_cluster(filled: TestNode, sql: str) -> None:
    workspace = Workspace(filled.engine.connector())
    filled.save()
    engine = filled.engine
    workspace.take_snapshot(engine.flushed, engine.file_state())

    try:
        work = OverlayTransaction(workspace, TransactionWork(True, "c"))
        work.start()
        work.run(Statement(sql), 1 << 20)
        assert work.finish().reads_system == READS[sql]
        workspace.leave_work()
    finally:
        workspace.end()
        workspace.close()
