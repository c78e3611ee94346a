"""SQLite rolls back the open batch when a read fails: before the next entry, the engine must write it again."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.errors import DamagedError
from tests.engine.nodes import TestNode
from tests.engine.test_interactive import Desk

ROWS = "SELECT id FROM t ORDER BY id"


def fail_a_read(engine: Engine) -> None:
    """Roll back the open batch, as SQLite does when a read fails with SQLITE_IOERR or SQLITE_NOMEM.

    SQLite does so even in a statement that only reads.
    """
    engine._db.execute("ROLLBACK")
    assert not engine._db.in_transaction


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    node = TestNode(tmp_path / "a.db")
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    node.save()
    node.run("INSERT INTO t VALUES (1, 'one')")
    return node


def kept(node: TestNode) -> tuple[list[Any], list[Any]]:
    """Return the rows and the journal of the file after a crash."""
    with closing(apsw.Connection(str(node.path))) as db:
        ticks = [tick for (tick,) in db.execute("SELECT tick FROM bedrockish_journal ORDER BY tick")]
        return db.execute(ROWS).fetchall(), ticks


def test_new_entry_after_a_lost_batch_continues_the_timeline(node: TestNode) -> None:
    fail_a_read(node.engine)
    node.run("INSERT INTO t VALUES (2, 'two')")
    node.save()
    assert kept(node) == ([(1,), (2,)], [1, 2, 3])


def test_entry_of_another_leader_survives_a_failed_read(node: TestNode) -> None:
    """The entry is only applied, and was written before the read failed."""
    prepared = node.prepare("INSERT INTO t VALUES (2, 'two')")
    fail_a_read(node.engine)
    node.apply(node.entry(prepared))
    node.save()
    assert kept(node) == ([(1,), (2,)], [1, 2, 3])


def test_empty_batch_is_opened_again_after_a_failed_read(node: TestNode) -> None:
    """Otherwise the next entry would be in the file before a commit of the batch."""
    node.save()
    fail_a_read(node.engine)
    node.run("INSERT INTO t VALUES (2, 'two')")
    assert kept(node) == ([(1,)], [1, 2])
    node.save()
    assert kept(node) == ([(1,), (2,)], [1, 2, 3])


@pytest.mark.parametrize(
    "look",
    [
        lambda engine: engine.journal.command_txid("A2"),
        lambda engine: engine.journal.find_command("A2"),
        lambda engine: engine.read_entries("A", 2, 1000),
        lambda engine: engine.flush(),
    ],
)
def test_lost_batch_is_repeated_for_the_next_caller(node: TestNode, look: Callable[[Engine], object]) -> None:
    fail_a_read(node.engine)
    assert look(node.engine)
    node.save()
    assert kept(node) == ([(1,)], [1, 2])


def test_second_disk_failure_stops_the_node_with_its_durable_state(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = node.prepare("INSERT INTO t VALUES (2, 'two')")
    fail_a_read(node.engine)

    def fail(*_: object) -> None:
        raise apsw.IOError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(node.engine._versions, "reload", fail)
        with pytest.raises(DamagedError, match="disk I/O error"):
            node.apply(node.entry(prepared))
    with pytest.raises(DamagedError, match="nothing more is written"):
        node.engine.flush()
    node.engine.close()
    assert kept(node) == ([], [1])


def test_open_transaction_continues_after_a_lost_batch(tmp_path: Path) -> None:
    """The transaction's rows are in memory, and are written again after the batch."""
    desk = Desk(tmp_path / "A.db")
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    desk.node.save()
    desk.node.run("INSERT INTO t VALUES (1, 'one')")
    work = TransactionWork(serializable=True)
    desk.run(work, "INSERT INTO t VALUES (5, 'ours')")
    fail_a_read(desk.node.engine)
    assert desk.run(work, ROWS)[0][0] == [(1,), (5,)]
    desk.node.run("INSERT INTO t VALUES (2, 'two')")
    desk.node.save()
    assert kept(desk.node) == ([(1,), (2,)], [1, 2, 3])
