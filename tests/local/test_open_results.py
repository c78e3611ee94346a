"""A large result of a node's file is read while the program fetches it, as in SQLite."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import bedrockish.dbapi as dbapi
from bedrockish.local import open_results
from bedrockish.local.open_results import OPEN_MAX
from bedrockish.local.reads import LocalReads
from tests.local.conftest import BOUND_S
from tools.cluster import LocalNode

pytestmark = pytest.mark.cluster

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
ALL = list(range(1, 5001))


@pytest.fixture
def db(node: LocalNode, table: str) -> Iterator[dbapi.Connection]:
    """A connection to a node's file with a table of 5,000 rows."""
    with dbapi.connect(str(node.database)) as made:
        made.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY)")
        made.execute(f"{NUMBERS} INSERT INTO {table} SELECT i FROM n")
        made.commit()
        yield made
    made.close()


@pytest.fixture
def rows(table: str) -> str:
    return f"SELECT id FROM {table} ORDER BY id"


def reads_of(db: dbapi.Connection) -> LocalReads:
    file = db._link.file
    assert file is not None
    return file


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + BOUND_S
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


def first_of(found: list[tuple[int]]) -> list[int]:
    return [number for (number,) in found]


def test_endless_result_gives_its_first_rows(db: dbapi.Connection) -> None:
    cursor, files = db.cursor(), 0
    for turn in range(3 * OPEN_MAX):
        cursor = db.execute(ENDLESS)
        assert cursor.fetchone() == (1,)
        assert cursor.fetchmany(2500)[-1] == (2501,)
        assert (next(cursor), cursor.rownumber) == ((2502,), 2502)
        if turn == OPEN_MAX:
            files = len(os.listdir("/proc/self/fd"))
    wait(lambda: len(os.listdir("/proc/self/fd")) <= files)
    cursor.close()
    wait(lambda: not reads_of(db)._results.running)


def test_result_is_of_one_snapshot_while_the_session_writes(db: dbapi.Connection, table: str, rows: str) -> None:
    cursor = db.execute(rows)
    found = first_of(cursor.fetchmany(10))
    for (number,) in cursor:
        found.append(number)
        if number % 1000 == 0:
            db.execute(f"DELETE FROM {table} WHERE id > ?", (5000 - number,))
            db.commit()
            assert db.execute(f"SELECT max(id) FROM {table}").fetchone() == (5000 - number or None,)
    assert found == ALL
    assert db.execute(rows).fetchall() == []


def test_several_results_are_fetched_in_turn(db: dbapi.Connection, rows: str) -> None:
    cursors = [db.execute(f"{rows} LIMIT 4000 OFFSET {number}") for number in range(OPEN_MAX + 2)]
    assert len(reads_of(db)._results.running) == OPEN_MAX
    for size in (1, 1500, 2499):
        parts = [first_of(cursor.fetchmany(size)) for cursor in cursors]
        assert [len(part) for part in parts] == [size] * len(cursors)
        assert [part[0] - number for number, part in enumerate(parts)] == [parts[0][0]] * len(cursors)
    assert [cursor.fetchone() for cursor in cursors] == [None] * len(cursors)


def test_large_rows_are_read_in_small_parts(db: dbapi.Connection) -> None:
    cursor = db.execute(f"{NUMBERS} SELECT i, zeroblob(1000000) FROM n")
    assert 0 < len(cursor._rows) < 50
    assert [number for number, _ in cursor.fetchmany(100)] == ALL[:100]


def test_result_that_is_not_fetched_is_read_into_memory(
    db: dbapi.Connection, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an idle program does not keep the node's log from starting over."""
    monkeypatch.setattr(open_results, "IDLE_S", 0.0)
    cursor = db.execute(rows)
    found = [cursor.fetchone()]
    wait(lambda: not reads_of(db)._results.running)
    assert first_of(found + cursor.fetchall()) == ALL


def test_result_beyond_the_kept_rows_is_lost_after_a_long_pause(
    db: dbapi.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("IDLE_S", 0.0), ("LONG_S", 0.0), ("LONG_BYTES", 100_000)):
        monkeypatch.setattr(open_results, name, value)
    cursor = db.execute(ENDLESS)
    wait(lambda: not reads_of(db)._results.running)
    assert cursor.fetchmany(3000)[-1] == (3000,)
    with pytest.raises(dbapi.OperationalError, match="its snapshot was released") as caught:
        cursor.fetchone()
    assert caught.value.code == "result_lost"
    assert db.execute(ENDLESS).fetchone() == (1,)


def test_idle_result_is_kept_up_to_a_number_of_bytes(db: dbapi.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of one part may differ in size, so the number of parts does not show it."""
    for name, value in (("IDLE_S", 0.0), ("IDLE_BYTES", 1_000_000)):
        monkeypatch.setattr(open_results, name, value)
    small, large = (
        db.execute(ENDLESS),
        db.execute(f"SELECT zeroblob(CASE WHEN i % 1000 > 16 THEN 2000 END) FROM ({ENDLESS})"),
    )
    [one, other] = reads_of(db)._results.running
    wait(lambda: len(one.parts) > 10 and len(other.parts) > 0)
    time.sleep(0.2)
    assert 10 < len(one.parts) < 20
    assert len(other.parts) == 1
    assert first_of(small.fetchmany(9_000)) == list(range(1, 9_001))
    assert len(large.fetchmany(5_000)) == 5_000


def test_keeper_stops_reading_a_result_that_was_dropped(db: dbapi.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part may take for ever, and other results wait for the same thread."""
    monkeypatch.setattr(open_results, "IDLE_S", 0.0)
    cursor = db.execute(f"{ENDLESS} WHERE i < 1500")
    [running] = reads_of(db)._results.running
    wait(lambda: running.is_reading)
    cursor.close()
    wait(lambda: not reads_of(db)._results.running)
    assert len(db.execute(f"{NUMBERS} SELECT i FROM n").fetchall()) == len(ALL)


def test_connection_to_an_earlier_file_of_the_node_is_not_used(db: dbapi.Connection, rows: str) -> None:
    db.execute(rows).fetchall()
    results, snapshots = reads_of(db)._results, reads_of(db)._snapshots
    assert results._spare is not None
    for reader in snapshots.readers:  # as after the node has exchanged its file
        reader.facts = reader.facts._replace(generation=reader.facts.generation - 1)
    assert snapshots.another() is None
    results.end_dropped()
    assert results._spare is None
    assert first_of(db.execute(rows).fetchall()) == ALL


def test_statement_that_calls_the_program_is_read_as_a_whole(db: dbapi.Connection, table: str) -> None:
    threads = set()

    def noted_in(value: int) -> int:
        threads.add(threading.get_ident())
        return value

    db.create_function("Noted", 1, noted_in)
    db.execute(f"CREATE VIEW v_{table} AS SELECT noted(id) FROM {table} WHERE id > 0")
    plain, noted = db.execute(ENDLESS), db.execute(f"{NUMBERS} SELECT noted(i) FROM n WHERE i > ?", (0,))
    by_view = db.execute(f"SELECT * FROM v_{table}")
    assert [one.sql for one in reads_of(db)._results.running] == [ENDLESS]
    assert first_of(noted.fetchall()) == first_of(by_view.fetchall()) == ALL
    assert threads == {threading.get_ident()}
    assert plain.fetchmany(2)[1] == (2,)


@pytest.mark.parametrize("nested", ["fetch", "read"])
def test_progress_handler_is_asked_after_a_function_has_read(db: dbapi.Connection, nested: str) -> None:
    other, is_armed = db.execute(ENDLESS), False

    def fetch(value: int) -> int:
        nonlocal is_armed
        if value == 100:
            found = other.fetchmany(1500) if nested == "fetch" else db.execute("SELECT 1").fetchall()
            is_armed = len(found) in (1, 1500)
        return value

    db.create_function("fetching", 1, fetch)
    db.set_progress_handler(lambda: is_armed, 1_000)
    with pytest.raises(dbapi.OperationalError, match="interrupted"):
        db.execute(f"{NUMBERS} SELECT sum(fetching(i)) FROM n")


def test_lent_connection_without_a_new_function_is_not_used_again(db: dbapi.Connection, rows: str) -> None:
    cursor = db.execute(rows)
    db.create_function("later", 0, lambda: 7)
    assert first_of(cursor.fetchall()) == ALL
    for _ in range(3):
        assert db.execute(f"{NUMBERS} SELECT later() FROM n").fetchall() == [(7,)] * 5000


def test_error_after_the_first_rows_is_raised_by_the_fetch(db: dbapi.Connection) -> None:
    cursor = db.execute(f"{NUMBERS} SELECT CASE i WHEN 4000 THEN abs(-9223372036854775807 - 1) ELSE i END FROM n")
    assert first_of(cursor.fetchmany(10)) == ALL[:10]
    with pytest.raises(dbapi.Error, match="overflow"):
        cursor.fetchall()
    assert cursor.fetchone() is None
    assert db.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("refused", [("SELECT 1; SELECT 2",), ("SELECT ?", (object(),)), ("SELECT nothing",)])
def test_refused_statement_leaves_no_part_of_the_result_before_it(
    db: dbapi.Connection, rows: str, refused: tuple[object, ...]
) -> None:
    cursor = db.execute(rows)
    cursor.fetchone()
    with pytest.raises(dbapi.Error):
        cursor.execute(*refused)  # type: ignore[arg-type]
    assert cursor.fetchall() == []
    assert cursor.description is None


@pytest.mark.parametrize("kind", [dbapi.Cursor, dbapi.StreamingCursor])
def test_fetch_after_one_that_a_signal_has_ended_is_refused(
    db: dbapi.Connection, rows: str, kind: type[dbapi.Cursor]
) -> None:
    cursor = db.cursor(kind)
    cursor.execute(rows)
    source = cursor._source
    assert source is not None
    batch = source.batch

    def interrupted() -> list[tuple[int]]:
        batch()
        raise KeyboardInterrupt  # as the handler of Ctrl-C may after each step

    cursor._source = SimpleNamespace(batch=interrupted, close=source.close)
    with pytest.raises(KeyboardInterrupt):
        cursor.fetchall()
    for fetch in (cursor.fetchone, cursor.fetchall):
        with pytest.raises(dbapi.OperationalError, match="an exception has interrupted a fetch") as caught:
            fetch()
        assert caught.value.code == "result_lost"
    assert first_of(cursor.execute(rows).fetchall()) == ALL
    wait(lambda: not reads_of(db)._results.running)


def test_interrupt_ends_a_result_that_is_being_fetched(db: dbapi.Connection) -> None:
    cursor = db.execute(ENDLESS)
    timer = threading.Timer(0.05, db.interrupt)
    timer.start()
    with pytest.raises(dbapi.OperationalError, match="interrupted"):
        for _ in cursor:
            pass
    timer.join()
    assert db.execute("SELECT 1").fetchone() == (1,)


def test_snapshot_block_reads_whole_results(db: dbapi.Connection, table: str, rows: str) -> None:
    with db._link.snapshot():
        cursor = db.execute(rows)
        db._link.execute(f"DELETE FROM {table}")
        assert first_of(cursor.fetchall()) == first_of(db.execute(rows).fetchall()) == ALL


@pytest.mark.parametrize("place", [5, 1000, 3000])
def test_function_of_the_program_closes_the_connection_of_its_statement(db: dbapi.Connection, place: int) -> None:
    own = dbapi.connect(db._link.file.database if db._link.file else "")

    def close(value: int) -> int:
        if value == place:
            assert own.execute("SELECT 1").fetchone() == (1,)
            own.close()
        return value

    own.create_function("closing", 1, close)
    other = own.execute(ENDLESS)
    with pytest.raises(dbapi.ProgrammingError, match="closed"):
        own.execute(f"{NUMBERS} SELECT closing(i) FROM n").fetchall()
    with pytest.raises(dbapi.ProgrammingError):
        other.fetchone()


def test_close_ends_open_results(node: LocalNode) -> None:
    before = len(os.listdir("/proc/self/fd"))
    db = dbapi.connect(str(node.database))
    cursors = [db.execute(ENDLESS) for _ in range(3)]
    reads = reads_of(db)
    db.close()
    assert not reads._results.running
    with pytest.raises(dbapi.ProgrammingError):
        cursors[0].fetchone()
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the page of the node stays open for the next session


def test_connection_of_a_finished_result_serves_a_later_one(db: dbapi.Connection, rows: str) -> None:
    used = set()
    for _ in range(10):
        cursor = db.execute(rows)
        used.add(reads_of(db)._results.running[0].reader)
        cursor.fetchall()
    assert len(used) <= 3
