"""Reads in the program's process: the same rows as by URL, only durable ones, and none of a file without a running
node.
"""

import errno
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
import trio

import bedrockish
from bedrockish import dbapi
from bedrockish.api.requests import Token
from bedrockish.client.blocking import Connection
from bedrockish.errors import BedrockishError, ResultLostError, SqlError, UnavailableError, UnsupportedError, UsageError
from bedrockish.local import connections, page, reads, snapshots
from bedrockish.local.page import READING, REFUSING, SERVING, Page
from bedrockish.local.reads import LocalReads
from bedrockish_journal.storage import vector_modules
from tests.engine.nodes import TestNode
from tests.local.conftest import BOUND_S, calls_made, is_read_here
from tools.cluster import LocalCluster, LocalNode

NUMBERS = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 100)"
ROWS = NUMBERS + " INSERT INTO {} SELECT i, i FROM n"


def local(db: Connection) -> LocalReads:
    found = db._client.local
    assert found is not None
    return found


@pytest.fixture
def db(node: LocalNode, table: str) -> Iterator[Connection]:
    with bedrockish.connect(node.database) as made:
        made.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a)")
        made.execute(ROWS.format(table))
        yield made


# -- a file whose batches are made durable by the test ---------------------------------------------------------------


class Bench:
    """An engine in this process with a page, whose batches the test makes durable."""

    def __init__(self, folder: Path) -> None:
        self.node = TestNode(folder / "A.sqlite")
        self.engine = self.node.engine
        self.write("CREATE TABLE t(a)")
        self.engine.sync()
        self.page = Page(str(folder / "A.sqlite"), self.engine.batch.number, 32 << 20)
        self.engine.publication.use_page(self.page, self.engine.batch.number, self.engine.schema_version)
        self.page.beat(SERVING, 0)
        self.reads = LocalReads(str(folder / "A.sqlite"))
        self.reads.open()

    def write(self, sql: str) -> None:
        """Commit to the WAL, and do not sync."""
        self.node.run(sql)
        self.engine.flush()
        if hasattr(self, "page") and self.page.mode <= READING:
            self.page.beat(self.page.mode, 0)  # however slow the machine is

    def keep(self) -> None:
        """Keep the snapshot, however long the test pauses."""
        self.reads.release = lambda: None  # type: ignore[method-assign]

    def rows(self, level: str = "session", token: Token | None = None) -> list[tuple[object, ...]] | None:
        found = self.reads.read((("SELECT a FROM t", None),), level, token or Token())
        return None if found is None else found[0][0].rows

    def seen(self) -> Token:
        found = self.reads.read((("SELECT 1", None),), "session", Token())
        assert found is not None
        return found[1]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for module in (page, snapshots, reads):  # the node is not silent, however long the test pauses
        monkeypatch.setattr(module, "SILENT_NS", 600_000_000_000)
    made = Bench(tmp_path)
    yield made
    made.reads.close()
    made.engine.close()


def test_row_is_shown_when_it_is_durable_and_not_before(bench: Bench) -> None:
    bench.keep()
    assert bench.rows() == []
    bench.write("INSERT INTO t VALUES (1)")
    assert bench.rows() == [], "another connection sees it in the WAL, and a power failure could take it back"
    bench.write("INSERT INTO t VALUES (2)")
    assert bench.rows() == []
    bench.engine.sync()
    assert bench.rows() == [(1,), (2,)]


def test_no_read_waits_for_a_disk(bench: Bench) -> None:
    """While a written batch is not synced, each read shows the last durable batch."""
    bench.keep()
    assert bench.rows() == []
    for number in range(50):
        bench.write(f"INSERT INTO t VALUES ({number})")
        assert bench.rows() == []


def test_read_without_a_snapshot_waits_a_moment_and_asks_the_node(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write("INSERT INTO t VALUES (1)")
    for reader in bench.reads._snapshots.readers:
        reader.end()
    began = time.monotonic()
    assert bench.rows() is None
    assert time.monotonic() - began >= snapshots.DURABLE_S
    with monkeypatch.context() as patched:
        waits = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: bench.engine.sync())
        patched.setattr(snapshots, "time", waits)
        assert bench.rows() == [(1,)]
    bench.engine.sync()
    assert bench.rows() == [(1,)]


def test_write_ahead_log_starts_over_under_constant_reads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, most = bench.engine, 0
    for part in (engine, engine.batch):
        monkeypatch.setattr(part, "_limits", replace(engine._limits, wal_frames=80, wal_frames_max=240))
    for number in range(300):
        bench.write("INSERT INTO t VALUES (randomblob(9000))")
        engine.sync()
        if engine.checkpoint_due:
            engine.wal.checkpoint()
        rows = bench.rows("stale")
        assert rows is None or len(rows) == number + 1
        most = max(most, engine.wal.frames)
    assert most < 600, "every snapshot that a program holds between two reads keeps the log from starting over"


def test_session_sees_no_older_moment_than_it_has_seen(bench: Bench) -> None:
    bench.write("INSERT INTO t VALUES (1)")
    bench.engine.sync()
    newer = Token({"A": bench.node.tick + 1}, 1)
    assert bench.rows("session", newer) is None
    assert bench.rows("stale", newer) == [(1,)]
    assert bench.rows("strict") is None, "what is newest is for a majority to say"
    bench.write("INSERT INTO t VALUES (2)")
    bench.engine.sync()
    assert bench.rows("session", newer) == [(1,), (2,)]
    assert bench.seen().vector == {"A": bench.node.tick}


def test_stale_read_keeps_the_session_token(bench: Bench) -> None:
    token = Token({"A": 1_000, "B": 7}, 99)
    found = bench.reads.read((("SELECT 1", None),), "stale", token)
    assert found is not None
    assert found[1].vector == {"A": 1_000, "B": 7}
    assert found[1].clock >= 99


def test_several_statements_see_one_moment(bench: Bench) -> None:
    bench.write("INSERT INTO t VALUES (1)")
    bench.engine.sync()
    with bench.reads.snapshot("session", Token, 1.0):
        assert bench.rows() == [(1,)]
        bench.write("INSERT INTO t VALUES (2)")
        bench.engine.sync()
        assert bench.rows() == [(1,)]
        assert bench.rows("strict") == [(1,)], "the block has chosen its moment"
    assert bench.rows() == [(1,), (2,)]


def test_snapshot_that_no_read_uses_is_released(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot prevents checkpoints: a tenth of a second after the last read, the whole WAL can be copied."""
    with bench.reads.lock:  # until then, the snapshot is not released
        assert bench.rows() == []
        assert bench.reads._snapshots.readers[0].moment is not None
    until = time.monotonic() + BOUND_S
    while any(reader.db.in_transaction for reader in bench.reads._snapshots.readers) and time.monotonic() < until:
        time.sleep(0.02)
    bench.write("INSERT INTO t VALUES (1)")
    bench.engine.sync()
    frames, copied = bench.engine.wal.checkpoint()
    assert frames == copied > 0
    monkeypatch.setattr(snapshots, "PINNED_S", 0.2)
    with bench.reads.snapshot("session", Token, 1.0):
        until = time.monotonic() + BOUND_S
        while bench.reads._snapshots.readers[0].moment is not None and time.monotonic() < until:
            time.sleep(0.02)
        with pytest.raises(ResultLostError, match="was released"):
            bench.rows()
    assert bench.rows() == [(1,)]


def test_program_reads_a_file_only_while_its_node_serves(bench: Bench) -> None:
    assert bench.rows() == []
    bench.page.beat(READING, 0)
    assert bench.rows() == []
    bench.page.beat(REFUSING, 0)
    assert bench.rows() is None
    assert not bench.reads._snapshots.readers, "the file is left at once: it may be about to be exchanged"
    bench.page.beat(SERVING, 0)
    time.sleep(snapshots.AGAIN_S)
    assert bench.rows() == []


def test_program_does_not_read_the_file_of_a_silent_node(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster may have removed a stopped node."""
    assert bench.rows() == []
    now = page.now_ns() + page.SILENT_NS + 1
    monkeypatch.setattr(page, "now_ns", lambda: now)
    monkeypatch.setattr(snapshots, "now_ns", lambda: now)
    assert bench.rows() is None


def test_reads_never_mix_an_exchanged_file_with_the_old_one(bench: Bench, tmp_path: Path) -> None:
    """The node withdraws its page, another file takes the place, and the next page names that file."""
    bench.write("INSERT INTO t VALUES (1)")
    bench.engine.sync()
    with bench.reads.snapshot("session", Token, 1.0):
        assert bench.rows() == [(1,)]
        bench.engine.close()
        (tmp_path / "A.sqlite").rename(tmp_path / "old.sqlite")
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"A.sqlite{suffix}").unlink(missing_ok=True)
        with pytest.raises(ResultLostError):
            bench.rows()
        again = TestNode(tmp_path / "A.sqlite")
        again.run("CREATE TABLE t(a)")
        again.run("INSERT INTO t VALUES ('new')")
        again.engine.flush()
        again.engine.sync()
        fresh = Page(str(tmp_path / "A.sqlite"), again.engine.batch.number, 32 << 20)
        again.engine.publication.use_page(fresh, again.engine.batch.number, again.engine.schema_version)
        fresh.beat(SERVING, 0)
        time.sleep(snapshots.AGAIN_S)
        with pytest.raises(ResultLostError):
            bench.rows()
    assert bench.rows() == [("new",)]
    again.engine.close()


def test_file_exchanged_while_it_is_opened_is_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite opens the -wal by its name at the first read; the file may be replaced after the page's check."""
    published = page.Published(bench.reads.database)
    facts = published.facts()
    open_file = vector_modules.ModuleConnection

    def slowly(*arguments: Any, **options: Any) -> Any:
        found = open_file(*arguments, **options)
        bench.page.beat(REFUSING, 0)
        bench.page.beat(SERVING, 0)
        return found

    monkeypatch.setattr("bedrockish.local.connections.ModuleConnection", slowly)
    with pytest.raises(UnavailableError, match="exchanged while it was opened"):
        connections.connect(published, facts)


def test_other_sqlite_library_in_this_process_is_refused(bench: Bench, tmp_path: Path) -> None:
    """Closing its descriptor would drop bedrockish's locks, and a checkpoint could then write under a reader."""
    path = bench.reads.database
    quoted = path.replace("n", "%6E")
    assert quoted != path
    names = (path, Path(path), f"file:{path}?mode=ro", f"file:{quoted}?mode=ro", f"file://localhost{quoted}#part")
    for name in names:
        with pytest.raises(UsageError, match="second SQLite library"):
            sqlite3.connect(name, uri=True)
    sqlite3.connect(tmp_path / "other.sqlite").close()
    bench.reads.close()


def test_two_threads_open_a_file_first_at_the_same_moment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread may find the descriptor of the first thread before that thread's connection is counted."""
    published = page.Published(bench.reads.database)
    facts = published.facts()
    place = facts.device, facts.inode
    bench.reads.close()
    assert place not in connections._open.values()
    is_open, go_on, connect = threading.Event(), threading.Event(), vector_modules.ModuleConnection

    def slowly(*arguments: Any, **options: Any) -> Any:
        made = connect(*arguments, **options)
        if not is_open.is_set():
            is_open.set()
            go_on.wait(BOUND_S)
        return made

    monkeypatch.setattr("bedrockish.local.connections.ModuleConnection", slowly)
    monkeypatch.setattr(connections, "_is_ours", lambda _: not is_open.is_set())
    made = list[apsw.Connection]()
    first = threading.Thread(target=lambda: made.append(connections.connect(published, facts)))
    first.start()
    assert is_open.wait(BOUND_S)
    try:
        made.append(connections.connect(published, facts))
    finally:
        go_on.set()
        first.join()
    for db in made:
        connections.close(db)
    assert len(made) == 2
    assert place not in connections._open.values()


def test_file_that_sqlite3_has_open_is_refused(node: LocalNode) -> None:
    code = (
        "import sqlite3, sys, bedrockish; a = sqlite3.connect(sys.argv[1]); a.execute('SELECT 1 FROM sqlite_schema');\n"
        "try: bedrockish.connect(sys.argv[1])\n"
        "except bedrockish.UsageError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code, str(node.database)], capture_output=True, text=True, check=True)
    assert "another library" in told.stdout


def test_file_of_the_program_is_found_while_a_thread_runs_a_statement_on_another(tmp_path: Path) -> None:
    """APSW raises an error for the name of a busy connection, which must not fail the opening of another file."""
    with closing(apsw.Connection(str(tmp_path / "a.sqlite"))) as busy:
        began = threading.Event()

        def wait(*_: Any) -> None:
            began.set()
            time.sleep(0.3)

        busy.create_scalar_function("wait", wait, 0)
        thread = threading.Thread(target=lambda: busy.execute("SELECT wait()").fetchall())
        thread.start()
        began.wait()
        with closing(apsw.Connection(str(tmp_path / "c.sqlite"))):
            assert connections._is_ours(os.path.realpath(tmp_path / "c.sqlite"))
        assert connections._is_ours(os.path.realpath(tmp_path / "a.sqlite"))
        thread.join()
        assert not connections._is_ours(os.path.realpath(tmp_path / "b.sqlite"))


# -- a real node -----------------------------------------------------------------------------------------------------


def test_program_reads_its_own_writes_in_its_process(db: Connection, table: str) -> None:
    for number in range(200, 260):
        db.execute(f"INSERT INTO {table} VALUES (?, 'x')", (number,))
        assert is_read_here(db, f"SELECT max(id) FROM {table}"), "its own commit is durable when it is answered"
        assert db.execute(f"SELECT max(id) FROM {table}").value() == number


def test_read_by_path_waits_for_the_token_of_another_session(
    db: Connection, node: LocalNode, alone: LocalCluster, table: str
) -> None:
    with bedrockish.connect(alone.url()) as other, bedrockish.connect(node.database) as mine:
        for number in range(300, 330):
            other.execute(f"INSERT INTO {table} VALUES (?, 'x')", (number,))
            mine.token = other.token
            assert mine.execute(f"SELECT max(id) FROM {table}").value() == number
            other.token = mine.token


def test_write_takes_no_snapshot_in_the_program(db: Connection, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node would be asked anyway."""
    with monkeypatch.context() as patched:
        patched.setattr(LocalReads, "read", lambda *_: pytest.fail("a snapshot is taken"))
        db.execute(f"CREATE INDEX {table}_a ON {table}(a)")
        db.execute(f"WITH n AS (SELECT 700 AS id) INSERT INTO {table} SELECT id, 1 FROM n")
        db.transact([f"UPDATE {table} SET a = 2 WHERE id = 700", f"SELECT count(*) FROM {table}"])
    assert db.execute(f"SELECT a FROM {table} WHERE id = 700").rows == [(2,)]


def test_reads_in_the_program_send_nothing_to_the_node(db: Connection, table: str) -> None:
    db.execute(f"SELECT a FROM {table} WHERE id = ?", (1,))
    assert is_read_here(db, f"SELECT a FROM {table} WHERE id = 1")
    before = calls_made(db)
    for number in range(2_000):
        db.execute(f"SELECT a FROM {table} WHERE id = ?", (number % 100,))
    assert calls_made(db) - before < 20, "the node may answer a read while it makes a later batch durable"


STATEMENTS = (
    ("SELECT * FROM {t} WHERE id = ?", (3,)),
    ("SELECT :x, :y", {"x": 1, "y": b"b"}),
    ("SELECT count(*), avg(a), max(a) || 'é' FROM {t}", None),
    ("WITH x AS (SELECT id FROM {t} LIMIT 3) SELECT * FROM x ORDER BY 1 DESC", None),
    ("VALUES (1, NULL), (2.5, 'b')", None),
    ("PRAGMA table_info({t})", None),
    ("EXPLAIN QUERY PLAN SELECT * FROM {t} WHERE id = 1", None),
    ("SELECT name FROM sqlite_schema WHERE name = '{t}'", None),
    ("SELECT safe_clock() >= 0, clock_time(0)", None),
    ("SELECT count(*) > 0 FROM bedrockish_journal", None),
    ("SELECT 1; ", None),
    ("SELECT transaction_id() <> ''", None),
    ("SELECT cluster_clock() > 0", None),
    ("SELECT count(*) > 0 FROM bedrockish_changes", None),
)
REFUSED = (
    ("SELEC 1", None),
    ("SELECT * FROM no_such_table", None),
    ("SELECT nothing FROM {t}", None),
    ("SELECT ?, ?", (1,)),
    ("SELECT ?", (1, 2)),
    ("SELECT ?", (1 << 64,)),
    ("SELECT ?", (object(),)),
    ("SELECT abs(-9223372036854775808)", None),
    ("SELECT * FROM bedrockish_vote", None),
    ("SELECT no_such_function(1)", None),
    ("PRAGMA writable_schema = 1", None),
    ("SELECT CAST(x'ff' AS TEXT)", None),
    ("", None),
    ("SELECT 1; SELECT 2", None),
)


@pytest.mark.parametrize("place", range(len(STATEMENTS)))
def test_rows_by_path_equal_those_by_url(db: Connection, alone: LocalCluster, table: str, place: int) -> None:
    sql, params = STATEMENTS[place]
    with bedrockish.connect(alone.url()) as other:
        told = other.execute(sql.format(t=table), params)
    found = db.execute(sql.format(t=table), params)
    assert (found.columns, found.rows, found.rowcount) == (told.columns, told.rows, told.rowcount)


@pytest.mark.parametrize("place", range(len(REFUSED)))
def test_errors_by_path_equal_those_by_url(db: Connection, alone: LocalCluster, table: str, place: int) -> None:
    sql, params = REFUSED[place]
    told = []
    for one in (db, bedrockish.connect(alone.url())):
        with pytest.raises(BedrockishError) as error:
            one.execute(sql.format(t=table), params)
        told.append((type(error.value), error.value.message, error.value.details))
    assert told[0] == told[1]


def test_settings_of_the_session_hold_for_reads_in_the_program(db: Connection, alone: LocalCluster, table: str) -> None:
    """Each read runs in the program, and the next session of the file has its own settings."""
    with closing(dbapi.connect(db._client.target.local)) as cursor:
        cursor.execute(f"UPDATE {table} SET a = 'Ab' WHERE id = 1")
        cursor.commit()
        texts = [f"SELECT id FROM {table} WHERE a LIKE 'ab'", f"SELECT id FROM {table} WHERE a LIKE 'Ab'"]
        for on, told in ((0, [[(1,)], [(1,)]]), (1, [[], [(1,)]]), (1, [[], [(1,)]]), (0, [[(1,)], [(1,)]])):
            cursor.execute(f"PRAGMA case_sensitive_like = {on}")
            assert [cursor.execute(sql).fetchall() for sql in texts for _ in range(2)][::2] == told
        db.execute("PRAGMA case_sensitive_like = 1")
        db.execute(f"SELECT 1 FROM {table}", read="strict")
        assert is_read_here(db, texts[0])
        with db.snapshot():
            assert db.execute(texts[0]).rows == []
        assert cursor.execute(texts[0]).fetchall() == [(1,)]
        with db.stream(texts[0]) as rows:
            assert list(rows) == []


def test_read_by_path_sees_a_changed_schema(db: Connection, alone: LocalCluster, table: str) -> None:
    select = f"SELECT * FROM {table} WHERE id = 1"
    assert db.execute(select).columns == ("id", "a")
    with bedrockish.connect(alone.url()) as other:
        other.execute(f"ALTER TABLE {table} ADD COLUMN b DEFAULT 7")
        db.token = other.token
    assert db.execute(select).rows == [(1, 1, 7)]
    assert is_read_here(db, select)


def test_snapshot_block_sees_one_moment(db: Connection, table: str) -> None:
    count = f"SELECT count(*) FROM {table}"
    with db.snapshot():
        assert db.execute(count).value() == 100
        db.execute(f"INSERT INTO {table} VALUES (1000, 1)")
        assert db.execute(count).value() == 100
    assert db.execute(count).value() == 101


def test_snapshot_is_refused_without_the_path_of_a_file(alone: LocalCluster) -> None:
    with bedrockish.connect(alone.url()) as db, pytest.raises(UnsupportedError, match="local=PATH"):
        db.snapshot()


def test_dbapi_reads_in_the_program(db: Connection, node: LocalNode, table: str) -> None:
    with dbapi.connect(str(node.database)) as mine:
        traced: list[str] = []
        mine.set_trace_callback(traced.append)
        cursor = mine.execute(f"SELECT id, a FROM {table} WHERE id < ? ORDER BY id", (4,))
        assert cursor.fetchall() == [(1, 1), (2, 2), (3, 3)]
        assert [one[0] for one in cursor.description or ()] == ["id", "a"]
        assert len(traced) == 1
        mine.execute(f"INSERT INTO {table} VALUES (4000, 1)")
        assert mine.execute(f"SELECT count(*) FROM {table}").fetchone() == (101,), "its open transaction's own row"
        mine.rollback()
        with mine.snapshot():
            assert mine.execute(f"SELECT count(*) FROM {table}").fetchone() == (100,)
    mine.close()


@pytest.mark.parametrize("level", ["session", "stale"])
def test_repeated_read_of_the_dbapi_sees_each_commit(
    node: LocalNode, alone: LocalCluster, table: str, db: Connection, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``read_again`` holds for one snapshot, one session and one page only; a stale read may see a commit later."""
    sql = f"SELECT a FROM {table} WHERE id = ?"
    made = closing(dbapi.connect(node.database, isolation_level=None, read=level))
    with made as mine, bedrockish.connect(alone.url()) as far:
        reads = mine._link._client.local
        assert reads is not None
        monkeypatch.setattr(reads, "release", lambda: None)  # however long the test pauses
        for number in range(40):
            mine.execute(f"UPDATE {table} SET a = ? WHERE id = 1", (number,))
            until = time.monotonic() + BOUND_S
            while level == "stale" and mine.execute(sql, (1,)).fetchone() != (number,):
                assert time.monotonic() < until  # it may show an older state while the node syncs a later batch
            for _ in range(3):
                assert mine.execute(sql, (1,)).fetchone() == (number,)
            far.execute(f"UPDATE {table} SET a = ? WHERE id = 1", (-number,))
            mine._link.token = far.token
            if level == "session":
                assert mine.execute(sql, (1,)).fetchone() == (-number,)
        assert mine.execute(sql, (1,)).fetchone() is not None
        assert mine.execute(sql, (1,)).fetchone() is not None
        known = reads._known
        assert known is not None, "the short way was taken"
        mine.execute("BEGIN")
        mine.execute(f"UPDATE {table} SET a = 'mine' WHERE id = 1")
        assert mine.execute(sql, (1,)).fetchone() == ("mine",)
        mine.execute("ROLLBACK")
        assert mine.execute(sql, (1,)).fetchone() != ("mine",)
        with pytest.raises(dbapi.ProgrammingError):
            mine.execute(sql, (1, 2))
        with pytest.raises(dbapi.DataError):
            mine.execute(sql, (1 << 70,))
        mine.create_function("twice", 1, lambda value: 2 * value)
        assert reads._known is None
        assert mine.execute(sql, ("no such id",)).fetchone() is None


def test_repeated_read_leaves_a_node_that_stops(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT count(*) FROM t"
    reads = bench.reads
    bench.keep()
    bench.page.beat(SERVING, 0)
    token = bench.seen()
    assert reads.read(((sql, ()),), "stale", token) is not None
    known = reads._known
    assert known is not None
    assert reads.read_again(sql, (), "stale", known.token) is not None
    monkeypatch.setattr("bedrockish.local.reads.now_ns", lambda: known.until + 1)
    assert reads.read_again(sql, (), "stale", known.token) is None, "it is silent"
    monkeypatch.undo()
    bench.page.beat(SERVING, 0)
    assert reads.read(((sql, ()),), "stale", known.token) is not None
    assert reads.read_again(sql, (), "stale", known.token) is not None
    bench.page.beat(REFUSING, 0)
    assert reads.read_again(sql, (), "stale", known.token) is None, "it does not serve"


ENDLESS = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
ENDS_S = 600.0  # the statement's time limit


@pytest.mark.parametrize("kind", ["read", "strict", "transaction"])
def test_statement_of_a_cancelled_task_ends(node: LocalNode, db: Connection, table: str, kind: str) -> None:
    """Trio alone would deliver the cancellation after the statement; by URL it comes at once."""

    async def count(client: bedrockish.Client) -> None:
        if kind != "transaction":
            await client.execute(ENDLESS, read="strict" if kind == "strict" else "session", timeout=ENDS_S)
            return
        async with client.transaction() as opened:
            await opened.execute(f"INSERT INTO {table} VALUES (800, 8)")
            await opened.execute(ENDLESS, timeout=ENDS_S)

    async def work() -> None:
        async with bedrockish.open_client(node.database) as client:
            began = time.monotonic()
            with trio.move_on_after(0.3) as scope:
                await count(client)
            assert scope.cancelled_caught
            assert time.monotonic() - began < BOUND_S
            assert (await client.execute(f"SELECT count(*) FROM {table}")).value() == 100

    trio.run(work)


def test_read_that_waits_for_another_task_does_not_block_the_loop(node: LocalNode, db: Connection, table: str) -> None:
    async def work() -> None:
        async with bedrockish.open_client(node.database) as client, trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.execute, ENDLESS, timeout=ENDS_S))
            await trio.sleep(0.3)
            began = time.monotonic()
            with trio.move_on_after(0.2) as scope:
                await client.execute(f"SELECT count(*) FROM {table}")
            assert scope.cancelled_caught
            assert time.monotonic() - began < BOUND_S
            nursery.cancel_scope.cancel()

    trio.run(work)


def test_trio_client_reads_in_the_program(
    db: Connection, node: LocalNode, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalReads, "release", lambda _: None)  # however long the test pauses

    async def work() -> None:
        async with bedrockish.open_client(str(node.database)) as client:
            assert (await client.execute(f"SELECT count(*) FROM {table}")).value() == 100
            assert client.local is not None
            assert client.local._snapshots.readers[0].moment is not None
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await trio.sleep(0.001)
                    ticks += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(tick)
                tables = (
                    f"{table} a, {table} b, {table} c, (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10)) d"
                )
                many = f"SELECT count(*) FROM {tables} WHERE a.id + b.id <> c.id * ?"
                assert (await client.execute(many, (-1,))).value() == 10_000_000
                nursery.cancel_scope.cancel()
            assert ticks, "a read that takes long goes on in a thread"
            async with client.snapshot():
                await client.execute(f"INSERT INTO {table} VALUES (5000, 1)")
                assert (await client.execute(f"SELECT count(*) FROM {table}")).value() == 100

    trio.run(work)


def test_failed_connect_leaves_no_file_open(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program at its limit of open files gets a typed error, and keeps no file of the attempt."""

    def pair(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    connections.KEPT.close_all()
    opened = dict(connections._open)
    monkeypatch.setattr("socket.socketpair", pair)
    with pytest.raises(UnavailableError, match="limit of files"):
        bedrockish.connect(node.database)
    with pytest.raises(dbapi.OperationalError, match="limit of files"):
        dbapi.connect(node.database)
    assert connections._open == opened


def test_unknown_boot_id_is_reported_as_the_reason(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread() -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(page, "boot_id", unread)
    with pytest.raises(UnavailableError, match="Too many open files"):
        bedrockish.connect(node.database)


def test_pool_of_a_file_reads_in_the_program(db: Connection, node: LocalNode, table: str) -> None:
    with bedrockish.connect_pool(str(node.database), size=2) as pool, pool.connection() as mine:
        assert is_read_here(mine, f"SELECT count(*) FROM {table}")


def test_threads_share_a_connection(db: Connection, table: str) -> None:
    wrong: list[object] = []

    def read(number: int) -> None:
        for _ in range(300):
            found = db.execute(f"SELECT a FROM {table} WHERE id = ?", (number,)).value()
            if found != number:
                wrong.append((number, found))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_forked_child_opens_its_own_connection(node: LocalNode, table: str, db: Connection) -> None:
    """Parent and child keep their locks, and read the right rows."""
    code = f"""
import os, sys, bedrockish
from bedrockish.local.reads import LocalReads
from bedrockish.api.requests import Token
reads = LocalReads({str(node.database)!r})
reads.open()
ask = (("SELECT count(*) FROM {table}", None),)
assert reads.read(ask, "session", Token())[0][0].value() == 100
child = os.fork()
if not child:
    found = reads.read(ask, "session", Token())
    os._exit(0 if found and found[0][0].value() == 100 else 1)
assert os.waitpid(child, 0)[1] == 0
assert reads.read(ask, "session", Token())[0][0].value() == 100
print("both")
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stdout == "both\n", told.stderr


def test_thousand_opens_leave_no_file_or_thread_open(node: LocalNode) -> None:
    bedrockish.connect(node.database).close()
    connections.KEPT.close_all()
    gc.collect()  # files that earlier tests in this process have left close now, and not during this test
    before = sorted(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(1_000):
        made = LocalReads(str(node.database))
        made.open()
        made.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() <= threads + 1
    assert not connections._open


def test_remembered_texts_take_a_bounded_number_of_bytes(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "TEXTS_BYTES", 200_000)
    reads = local(db)._snapshots
    for number in range(30):
        assert db.execute(f"SELECT length('{'x' * 10_000}') + {number}").value() == 10_000 + number
        with pytest.raises(SqlError):
            db.execute(f"INSERT INTO nowhere VALUES ({number}, '{'x' * 20_000}')")
        for reader in reads.readers:
            assert sum(map(len, reader._texts)) <= 200_000
