"""``skip_locked()``: each worker gets a job of its own, and reads nothing but that."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bedrockish.access_sets.key_encoding import table_key
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.statements import row_locks
from bedrockish.engine.statements.row_locks import Base, ForeignTransactions
from bedrockish.errors import ConflictError, SqlError
from bedrockish_journal.model.access_set import conflict
from tests.engine.nodes import request
from tests.engine.test_interactive import Desk

SCHEMA = (
    "CREATE TABLE jobs(id INTEGER PRIMARY KEY, state TEXT NOT NULL, worker INTEGER)",
    "CREATE INDEX by_state ON jobs(state, id)",
    "CREATE TABLE parts(machine TEXT COLLATE NOCASE, number INTEGER, state TEXT, PRIMARY KEY(machine, number)) "
    "WITHOUT ROWID",
    "CREATE TABLE counts(n INTEGER)",
)
NEXT = "SELECT id FROM jobs WHERE state = 'new' AND skip_locked('jobs', id) ORDER BY id LIMIT 1"
TAKE = f"UPDATE jobs SET state = 'taken' WHERE id = ({NEXT}) RETURNING id"


@dataclass
class Known(ForeignTransactions):
    """A node's knowledge of the others."""

    writing: set[bytes] = field(default_factory=set)
    place: tuple[int, int] = (0, 1)
    now: float = 100.0

    def is_writing(self, key: bytes, base: Base | None) -> bool:
        return key in self.writing

    def share(self, objects: tuple[str, ...]) -> tuple[int, int]:
        assert objects == ("t:jobs", "i:by_state")
        return self.place

    def seconds(self) -> float:
        return self.now


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path / "A.sqlite")
    found.node.run(*SCHEMA)
    for number in range(1, 41):
        found.node.run(("INSERT INTO jobs VALUES (?, 'new', NULL)", [number]))
    found.node.run("INSERT INTO parts VALUES ('saw', 1, 'new'), ('saw', 2, 'new')", "INSERT INTO counts VALUES (0)")
    yield found
    found.close()


def key(number: int) -> bytes:
    return table_key("jobs", number)


def test_each_open_transaction_gets_its_own_job_and_all_commit(desk: Desk) -> None:
    workers = [desk.begin() for _ in range(4)]
    for number, worker in enumerate(workers):
        worker.command = f"worker-{number}"
    got = [desk.run(worker, NEXT)[0][0] for worker in workers]
    assert got == [[(1,)], [(2,)], [(3,)], [(4,)]]
    assert desk.run(workers[0], NEXT)[0][0] == [(1,)], "it has locked that itself"
    for worker, rows in zip(workers, got, strict=True):
        desk.run(worker, ("UPDATE jobs SET state = 'taken' WHERE id = ?", rows[0]))
    for worker in reversed(workers):
        desk.commit(worker)
    assert len(desk.node.engine.locks) == 0
    assert desk.node.rows(NEXT) == [(5,)]


def test_workers_without_skip_locked_conflict_on_the_first_job(desk: Desk) -> None:
    query = NEXT.replace(" AND skip_locked('jobs', id)", "")
    workers = [desk.begin() for _ in range(2)]
    for worker in workers:
        assert desk.run(worker, query)[0][0] == [(1,)]
        desk.run(worker, "UPDATE jobs SET state = 'taken' WHERE id = 1")
    desk.commit(workers[0])
    with pytest.raises(ConflictError):
        desk.commit(workers[1])


def test_released_row_can_be_taken_by_the_next_transaction(desk: Desk) -> None:
    first, second = desk.begin(), desk.begin()
    first.command, second.command = "first", "second"
    assert desk.run(first, NEXT)[0][0] == [(1,)]
    desk.interactive.end(first)
    assert desk.run(second, NEXT)[0][0] == [(1,)]


def test_skip_locked_reads_only_the_locked_job(desk: Desk) -> None:
    node = desk.node
    taken = node.prepare(TAKE).access_set
    assert key(1) in taken.read_points
    assert not [one for one in taken.read_ranges if b"jobs" in one[0] or b"by_state" in one[0]]
    other = node.prepare(("UPDATE jobs SET state = 'taken' WHERE id = ?", [2])).access_set
    assert conflict(taken, other) is None
    assert conflict(node.prepare(TAKE.replace(" AND skip_locked('jobs', id)", "")).access_set, taken) is not None
    same = node.prepare("UPDATE jobs SET worker = 9 WHERE id = 1").access_set
    assert conflict(taken, same) is not None
    assert len(node.engine.locks) == 0, "a request holds nothing once it has run"


def test_select_for_a_row_lock_skips_rows_that_other_transactions_write(desk: Desk) -> None:
    desk.node.engine.locks.others = Known({key(1), key(3)})
    assert desk.node.rows(TAKE) == [(2,)]
    assert desk.node.rows(TAKE) == [(4,)]


def test_nodes_that_conflicted_divide_the_rows(desk: Desk) -> None:
    locks = desk.node.engine.locks
    shares = []
    for place in range(3):
        locks.others = Known(place=(place, 3))
        shares.append([row for (row,) in desk.node.rows(NEXT.replace("LIMIT 1", "LIMIT 99"))])
        locks._left.clear()
    assert sorted(row for share in shares for row in share) == list(range(1, 41))
    assert all(shares)
    # After a while a node also takes the skipped rows.
    known = locks.others = Known(place=(0, 3))
    assert [row for (row,) in desk.node.rows(NEXT.replace("LIMIT 1", "LIMIT 99"))] == shares[0]
    known.now += row_locks.LEFT_S + 0.1
    assert [row for (row,) in desk.node.rows(NEXT.replace("LIMIT 1", "LIMIT 99"))] == list(range(1, 41))


def test_skip_locked_leaves_reads_of_other_tables_and_triggers_unchanged(desk: Desk) -> None:
    node = desk.node
    mixed = node.prepare(NEXT.replace("FROM jobs", "FROM counts, jobs")).access_set
    assert conflict(node.prepare("UPDATE counts SET n = 1").access_set, mixed) is not None
    node.run("CREATE TRIGGER counting AFTER UPDATE ON jobs BEGIN UPDATE counts SET n = (SELECT sum(id) FROM jobs); END")
    assert conflict(node.prepare("INSERT INTO jobs VALUES (99, 'new', 1)").access_set, node.prepare(TAKE).access_set)


def test_skip_locked_leaves_reads_of_unnamed_tables_unchanged(desk: Desk) -> None:
    named = desk.node.prepare((TAKE.replace("'jobs'", "?"), ["jobs"])).access_set
    assert conflict(desk.node.prepare("INSERT INTO jobs VALUES (0, 'new', 1)").access_set, named) is not None


def test_skip_locked_takes_a_key_of_several_columns(desk: Desk) -> None:
    query = "SELECT number FROM parts WHERE state = 'new' AND skip_locked('parts', machine, number) LIMIT 1"
    sessions = [desk.begin(), desk.begin(), desk.begin()]
    for number, session in enumerate(sessions):
        session.command = str(number)
    assert [desk.run(session, query)[0][0] for session in sessions] == [[(1,)], [(2,)], []]
    assert desk.run(sessions[2], "SELECT skip_locked('PARTS', 'SAW', '1')")[0][0] == [(0,)], "the same key"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("skip_locked()", "there is no table None"),
        ("skip_locked('nowhere', 1)", "there is no table 'nowhere'"),
        ("skip_locked('jobs')", "was given 0 values"),
        ("skip_locked('jobs', 1, 2)", "was given 2 values"),
        ("skip_locked('parts', 1)", "the 2 columns of its primary key"),
        ("skip_locked('jobs', 'one')", "by its rowid, not by 'one'"),
    ],
)
def test_skip_locked_refuses_anything_but_a_row(desk: Desk, call: str, said: str) -> None:
    with pytest.raises(SqlError, match=said):
        desk.node.prepare(f"SELECT {call}")
    assert desk.node.rows("SELECT skip_locked('jobs', NULL)") == [(0,)]


def test_locking_everything_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """ORDER BY without an index: all rows are looked at before LIMIT can end the loop."""
    monkeypatch.setattr(row_locks, "ROWS_MAX", 30)
    assert len(desk.node.rows(NEXT.replace("LIMIT 1", "LIMIT 30"))) == 30
    with pytest.raises(SqlError, match="an index for the ORDER BY"):
        desk.node.prepare(NEXT.replace("ORDER BY id", "ORDER BY worker"))
    assert len(desk.node.engine.locks) == 0


def test_explain_and_workers_hold_no_rows_afterwards(desk: Desk) -> None:
    engine = desk.node.engine
    told = engine.explain(request(TAKE).statements[0])[0]
    assert not told["wider"]
    assert not [line for line in told["reads"] if "by_state" in line]
    desk.node.save()
    workspace = Workspace(engine.connector())
    try:
        workspace.take_snapshot(engine.flushed, engine.file_state())
        workspace.scope.begin_in_worker("it", 0, lambda: 1)
        prepared = []
        thread = threading.Thread(target=lambda: prepared.append(workspace.execute(request(TAKE, command="it"))))
        thread.start()
        thread.join()
        assert key(1) in prepared[0].access_set.read_points
    finally:
        workspace.end()
        workspace.close()
    assert len(engine.locks) == 0


def test_row_that_is_locked_during_a_release_is_free_after_the_next_release(desk: Desk) -> None:
    """The statement of a transaction that ends may run on in another thread for a moment."""
    locks = desk.node.engine.locks

    class Releasing(Known):
        def is_writing(self, key: bytes, base: Base | None) -> bool:
            locks.release("ended")
            return False

    locks.others = Releasing()
    assert locks.lock("ended", None, "jobs", (1,)) == key(1)
    locks.release("ended")
    locks.others = Known()
    assert locks.lock("next", None, "jobs", (1,)) == key(1)
