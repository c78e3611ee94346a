"""Too many open files, or a failing disk, at each statement of the engine: no data are wrong, and it goes on."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from bedrockish.engine.engine import Engine
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.errors import BedrockishError, ConstraintError, DamagedError, NoRoomError
from bedrockish_journal.verify.replay import digest
from tests.engine.nodes import TestNode, request
from tests.engine.test_left_behind import run

SCHEMA = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, v UNIQUE, w AS (v || '!'))",
    "CREATE TABLE log(what)",
    "CREATE TRIGGER noted AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.v); END",
)
WRITES = ("INSERT INTO t(v) VALUES ('a'), ('b')", "UPDATE t SET v = 'c' WHERE v = 'b'", "DELETE FROM t WHERE v = 'a'")


class Failing:
    """Lets the statement of a number, of those that begin on a connection, fail before it does anything."""

    def __init__(self, db: apsw.Connection, number: int, error: type[apsw.Error], begins: str = "") -> None:
        self._db, self._left, self._error, self._begins = db, number, error, begins
        self.has_failed = False
        db.exec_trace = self._look

    def _look(self, _cursor: apsw.Cursor, sql: str, _bindings: object) -> bool:
        if sql.startswith(self._begins):
            self._left -= 1
        if self._left == 0:
            self._left, self.has_failed = -1, True
            raise self._error("unable to open database file")
        return True

    def end(self) -> None:
        self._db.exec_trace = None


def reopened(node: TestNode) -> Engine:
    node.engine.close()
    node.engine = Engine.open(node.path, founding=None)
    return node.engine


@pytest.mark.parametrize("error", [apsw.CantOpenError, apsw.IOError, apsw.NoMemError])
def test_entry_without_temporary_files_is_applied_whole_or_not_at_all(tmp_path: Path, error: type[apsw.Error]) -> None:
    """The node stops, its file is unchanged, and after a start the same commit is applied."""
    source = TestNode(tmp_path / "source.db")
    source.run(*SCHEMA)
    source.run(*WRITES)
    source.engine.flush()
    schema, last = source.entries[:-1], source.entries[-1]
    number, is_whole = 0, set[bool]()
    while True:
        number += 1
        node = TestNode(tmp_path / f"{number}.db")
        for entry in schema:
            node.apply(entry)
        node.engine.flush()
        before = dict(node.engine.applied)
        fault = Failing(node.engine._db, number, error)
        failure: DamagedError | None = None
        try:
            node.engine.apply(last, repeat=False, applied_ms=0)
            node.engine.flush()
        except DamagedError as caught:
            failure = caught
        fault.end()
        if not fault.has_failed:
            break
        assert isinstance(failure, NoRoomError) == (error is not apsw.IOError)
        assert node.engine.batch.failed
        with pytest.raises(DamagedError, match="failed"):
            node.engine.flush()
        engine = reopened(node)
        is_whole.add(engine.applied != before)
        if engine.applied == before:
            assert engine.background.open_reader().execute("SELECT count(*) FROM t").get == 0
            engine.apply(last, repeat=False, applied_ms=0)
            engine.flush()
        assert node.tables() == source.tables()
        with closing(engine.background.open_reader()) as reader:
            assert digest(reader) == source.digest()
        engine.close()
    assert number > 10
    assert is_whole == {True, False}


@pytest.mark.parametrize(("begins", "number"), [("ROLLBACK TO request", 2), ("RELEASE request", 1)])
def test_failed_request_rollback_does_not_commit_its_changes(
    make_node: Callable[..., TestNode], begins: str, number: int
) -> None:
    """The first read belongs to the execution: rows with a computed column are read before and after."""
    node = make_node()
    node.run(*SCHEMA)
    node.engine.flush()
    fault = Failing(node.engine._db, number, apsw.CantOpenError, begins)
    with pytest.raises(NoRoomError):
        node.engine.execute(request(WRITES[0]))
    fault.end()
    with pytest.raises(DamagedError, match="failed"):
        node.engine.flush()
    assert reopened(node).background.open_reader().execute("SELECT count(*) FROM t").get == 0


def test_open_transaction_is_not_committed_when_it_cannot_be_rolled_back(make_node: Callable[..., TestNode]) -> None:
    node = make_node()
    node.run(*SCHEMA)
    node.engine.flush()
    other = node.prepare(WRITES[0])
    transactions = Interactive(node.engine, lambda _access_set, _base: None)
    work = TransactionWork(True, "open")
    run(transactions, work, "INSERT INTO t VALUES (7, 'mine')")
    fault = Failing(node.engine._db, 1, apsw.CantOpenError, "ROLLBACK TO interactive")
    with pytest.raises(NoRoomError):
        node.apply(node.entry(other))
    fault.end()
    with pytest.raises(DamagedError, match="failed"):
        node.engine.flush()
    assert reopened(node).background.open_reader().execute("SELECT count(*) FROM t").get == 0


def test_batch_is_repeated_after_a_rollback_or_nothing_is_committed(make_node: Callable[..., TestNode]) -> None:
    """The statement rolls back the batch with its decided commits, and no file can be opened to write it again."""
    node = make_node()
    node.run(*SCHEMA)
    node.engine.flush()
    node.run(WRITES[0])
    rolls_back = "INSERT OR ROLLBACK INTO t(v) VALUES ('a')"
    with pytest.raises(ConstraintError):
        node.prepare(rolls_back)
    for number in range(1, 30):
        fault = Failing(node.engine._db, number, apsw.CantOpenError)
        with pytest.raises((BedrockishError, apsw.CantOpenError)) as caught:
            node.prepare(rolls_back)
        fault.end()
        if node.engine.batch.failed:
            assert isinstance(caught.value, NoRoomError), number
            with pytest.raises(DamagedError, match="failed"):
                node.engine.flush()
            assert reopened(node).applied == {"A": 1}
            node.apply(node.entries[-1])
        assert node.engine._db.execute("SELECT count(*) FROM t").get == 2, number
    node.engine.flush()
    assert node.engine.background.open_reader().execute("SELECT count(*) FROM t").get == 2
