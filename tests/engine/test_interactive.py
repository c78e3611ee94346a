"""Open transactions against plain SQLite: each commits as if it ran completely at that moment."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from bedrockish.access_sets.access_set_builder import AccessSetBuilder
from bedrockish.access_sets.writeset import WriteKeys
from bedrockish.api.requests import Statement
from bedrockish.engine.execution.interactive import Interactive
from bedrockish.engine.execution.open_transaction import TransactionWork
from bedrockish.engine.sqlite.limits import TakesLongError
from bedrockish.errors import BedrockishError, ConflictError, ConstraintError, SqlError, TooLargeError, UsageError
from bedrockish_journal.model.access_set import AccessSet, conflict
from tests.engine.nodes import Limits, Sql, TestNode, contents, request
from tests.engine.test_budget import Clocks

SCHEMA = """
CREATE TABLE account(id INTEGER PRIMARY KEY, v INTEGER NOT NULL CHECK(v >= -50), name TEXT UNIQUE);
CREATE TABLE child(id INTEGER PRIMARY KEY, parent INTEGER REFERENCES account(id) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE cascade(id INTEGER PRIMARY KEY, parent INTEGER REFERENCES account(id) ON DELETE CASCADE);
CREATE TABLE log(account INTEGER, v INTEGER, PRIMARY KEY(account, v)) WITHOUT ROWID;
CREATE TABLE shape(id INTEGER PRIMARY KEY, a INTEGER, double AS (a * 2) VIRTUAL UNIQUE);
CREATE INDEX account_v ON account(v);
CREATE TRIGGER note AFTER UPDATE OF v ON account WHEN new.v <> old.v BEGIN
  INSERT OR REPLACE INTO log VALUES (new.id, new.v);
END
"""
STATEMENTS = [
    "INSERT INTO account VALUES (?1, ?2, 'n' || ?3)",
    "INSERT OR REPLACE INTO account VALUES (?1, ?2, 'n' || ?3)",
    "INSERT OR IGNORE INTO account VALUES (?1, ?2, 'n' || ?3)",
    "INSERT OR FAIL INTO account SELECT ?1 + x, ?2, 'n' || (?3 + x) FROM (SELECT 0 AS x UNION ALL SELECT 1)",
    "INSERT INTO account VALUES (?1, ?2, 'n' || ?3) ON CONFLICT(id) DO UPDATE SET v = v + 1 RETURNING v",
    "UPDATE account SET v = v + ?2 WHERE id = ?1 OR id = ?3",
    "UPDATE account SET v = v - 30 WHERE v > ?2 AND ?3 = ?3",
    "UPDATE account SET name = 'n' || ?2 WHERE id = ?1 AND ?3 = ?3",
    "DELETE FROM account WHERE id = ?1 AND ?2 = ?2 AND ?3 = ?3",
    "INSERT INTO child VALUES (?1, ?2) ON CONFLICT DO UPDATE SET parent = ?3",
    "DELETE FROM child WHERE parent = ?1 OR id = ?2 OR id = ?3",
    "INSERT OR IGNORE INTO cascade VALUES (?1, ?2 + ?3)",
    "INSERT OR REPLACE INTO shape(id, a) VALUES (?1, ?2 + ?3)",
    "UPDATE shape SET a = a + ?2 WHERE id IN (?1, ?3)",
    "SELECT count(*), sum(v) FROM account WHERE v < ?1 AND ?2 = ?2 AND ?3 = ?3",
    "SELECT name FROM account WHERE id IN (?1, ?2, ?3) ORDER BY id",
    "SELECT * FROM log WHERE account = ?1 AND v > ?2 - ?3",
    "SELECT a.id, c.id FROM account a JOIN child c ON c.parent = a.id WHERE a.id > ?1 AND ?2 = ?2 AND ?3 = ?3",
    "SELECT id, double FROM shape WHERE double >= ?1 AND ?2 = ?2 AND ?3 = ?3 ORDER BY id",
]


class Desk:
    """A node with its open transactions, and a list of commits."""

    def __init__(self, path: Path, **limits: Any) -> None:
        self.node = TestNode(path, limits=Limits(**limits))
        self.interactive = Interactive(self.node.engine, self.invalidated)

    def invalidated(self, sets: AccessSetBuilder, base: Mapping[str, int]) -> BedrockishError | None:
        newer = [entry.transaction.access_set for entry in self.node.entries if entry.tick > base.get("A", 0)]
        met = [sets.conflicts_with(access_set) is not None for access_set in newer]
        assert met == [conflict(sets.rests_on(), access_set) is not None for access_set in newer]
        return ConflictError("overtaken") if any(met) else None

    def overtaken(self, access_set: AccessSet, base: Mapping[str, int]) -> BedrockishError | None:
        for entry in self.node.entries:
            if entry.tick > base.get("A", 0) and conflict(access_set, entry.transaction.access_set) is not None:
                return ConflictError("overtaken")
        return None

    def begin(self, *, serializable: bool = True) -> TransactionWork:
        return TransactionWork(serializable)

    def run(self, work: TransactionWork, sql: Sql) -> list[Any]:
        statement = request(sql).statements[0]
        found: list[Any] = []
        for piece, params in self.interactive.pieces(work, statement):
            if self.interactive.needs_snapshot(work, piece):
                self.node.save()
                self.interactive.take_snapshot(work)
            result, _ = self.interactive.run(work, piece, params, 1 << 20)
            found.append((result.rows, result.rowcount))
        return found

    def run_alike(self, work: TransactionWork, sql: str, many: list[Any]) -> list[Any]:
        """Run one text with each of many parameters as a node does; return what each gave, [] if not at once."""
        found, _ = self.interactive.run_alike(work, [Statement(sql, params) for params in many], 0, 1.0)
        return [[(result.rows, result.rowcount)] for result in found]

    def run_again(self, work: TransactionWork, sql: str, values: tuple[Any, ...]) -> list[Any] | None:
        """Run a text as a program does that has run it before; return None if it was not run."""
        result = self.interactive.run_again(work, sql, values, 1 << 20)
        return None if result is None else [(result.rows, result.rowcount)]

    def interrupt_write(self, work: TransactionWork, clocks: Clocks) -> None:
        """Run an INSERT of many rows into ``t`` that exceeds its budget: SQLite rolls back the whole batch."""
        sql = (
            "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 50000) SELECT i FROM n"
        )
        ((piece, params),) = self.interactive.pieces(work, request(sql).statements[0])
        clocks.thread_step = 0.005
        with pytest.raises(TakesLongError):
            self.interactive.run(work, piece, params, 1 << 20, 0.05)
        clocks.thread_step = 0.0

    def commit(self, work: TransactionWork) -> None:
        prepared = self.interactive.finish(work)
        self.interactive.end(work)
        if prepared.readonly:
            return
        error = self.overtaken(prepared.access_set, prepared.base)
        if error is not None:
            raise error
        entry = self.node.entry(prepared)
        self.node.apply(entry)
        self.node.entries.append(entry)

    def close(self) -> None:
        self.interactive.close()
        self.node.engine.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path / "A.sqlite")
    yield found
    found.close()


@pytest.mark.parametrize(
    "sql", ["REPLACE INTO cascade VALUES (77, 5)", "INSERT INTO account(id, v) SELECT 77, 1 UNION ALL SELECT 78, -100"]
)
def test_row_of_a_failed_statement_is_not_the_last_one_inserted(desk: Desk, sql: str) -> None:
    desk.node.run(SCHEMA)
    work = desk.begin()
    desk.run(work, "INSERT INTO account VALUES (1, 2, 'n')")
    with pytest.raises(ConstraintError):
        desk.run(work, sql)
    desk.run(work, "DELETE FROM account WHERE id = 9")
    assert work.lastrowid == 1
    desk.commit(work)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("end", ["", " ; -- and nothing more"])
def test_statement_with_surplus_values_changes_nothing(desk: Desk, is_known: bool, end: str) -> None:
    desk.node.run(SCHEMA)
    sql, work = "INSERT INTO account VALUES (?, ?, ?)" + end, desk.begin()
    if is_known:
        desk.run(work, (sql, (1, 2, "n")))
    with pytest.raises(SqlError, match="3 parameter"):
        desk.run(work, (sql, (5, 6, "m", 7)))
    assert desk.run(work, "SELECT count(*) FROM account") == [([(int(is_known),)], -1)]
    desk.commit(work)


def plain(desk: Desk) -> apsw.Connection:
    """Return a copy on plain SQLite, as the reference."""
    db = apsw.Connection(":memory:")
    db.pragma("foreign_keys", 1)
    for statement in SCHEMA.replace(";\nEND", "@END").split(";\n"):
        text = statement.replace("@END", ";\nEND")
        desk.node.run(text)
        db.execute(text)
    for number in range(4):
        for target in (desk.node.run, lambda pair: db.execute(*pair).fetchall()):
            target(("INSERT INTO account VALUES (?, ?, ?)", (number, number * 10, f"n{number}")))
            target(("INSERT INTO child VALUES (?, ?)", (number, number)))
            target(("INSERT INTO shape(id, a) VALUES (?, ?)", (number, number)))
    return db


Step = tuple[str, Any]


def replay(db: apsw.Connection, steps: list[Step]) -> list[Any]:
    """Run a transaction's steps on plain SQLite; return what each gave."""
    found: list[Any] = []
    for sql, params in steps:
        try:
            rows = db.execute(sql, params).fetchall()
            found.append(
                rows
                if sql.startswith(("SAVE", "ROLL", "REL"))
                else [(rows, -1 if sql.startswith(("SELECT", "PRAGMA")) else db.changes())]
            )
        except apsw.ConstraintError:
            found.append("constraint")
        except apsw.SQLError:
            found.append("sql")
    return found


def control(desk: Desk, work: TransactionWork, sql: str) -> list[Any]:
    word, name = sql.split()[0], sql.split()[-1]
    if word == "SAVEPOINT":
        work.mark(name, is_broken=False)
    elif word == "RELEASE":
        work.release(name)
    else:
        desk.interactive.rollback_to(work, name)
    return []


def one(desk: Desk, work: TransactionWork, step: Step) -> Any:
    try:
        if step[0].startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):
            return control(desk, work, step[0])
        return desk.run(work, step)
    except ConstraintError:
        return "constraint"
    except SqlError:
        return "sql"


class Race:
    """Open transactions, other commits and votes in a random order, and a plain database with the same commits."""

    def __init__(self, path: Path, seed: int) -> None:
        self.luck = Random(seed)
        self.desk = Desk(path)
        self.db = plain(self.desk)
        self.history: dict[int, bytes] = {}
        self.open: dict[TransactionWork, list[tuple[Step, Any]]] = {}
        self.committed = self.at_once = 0
        self.remember()

    def remember(self) -> None:
        self.history[self.desk.node.tick] = self.db.serialize("main")

    def step(self) -> None:
        luck, event = self.luck, self.luck.random()
        if len(self.open) < 3 and luck.random() < 0.3:
            self.open[self.desk.begin()] = []
        if event < 0.08:
            self.desk.node.engine.set_meta("clock_ceiling", luck.randrange(1000))
        elif event < 0.16:
            self.desk.node.save()
        elif event < 0.24:
            self.other()
        elif self.open:
            work = luck.choice(list(self.open))
            try:
                if event < 0.35:
                    self.commit(work)
                elif event < 0.45:
                    self.many(work)
                else:
                    step = _draw(luck)
                    self.open[work].append((step, one(self.desk, work, step)))
            except ConflictError:
                self.forget(work)

    def many(self, work: TransactionWork) -> None:
        """Run a statement with several parameters, at once if that can be."""
        sql, many = self.luck.choice(STATEMENTS), [[self.luck.randrange(12) for _ in range(3)] for _ in range(4)]
        found = self.desk.run_alike(work, sql, many)
        self.at_once += len(found)
        for place, params in enumerate(many):
            step = sql, params
            self.open[work].append((step, found[place] if found else one(self.desk, work, step)))

    def other(self) -> None:
        """Commit a statement of another client, between the steps of the open transactions."""
        step = (self.luck.choice(STATEMENTS), [self.luck.randrange(6) for _ in range(3)])
        try:
            self.desk.node.run(step)
        except ConstraintError:
            return
        self.db.execute("BEGIN")
        replay(self.db, [step])
        self.db.execute("COMMIT")
        self.remember()

    def commit(self, work: TransactionWork) -> None:
        """Commit; the transaction's answers must be those of plain SQLite for all its statements at that moment."""
        steps, said = zip(*self.open[work], strict=True) if self.open[work] else ((), ())
        try:
            self.desk.commit(work)
        except ConstraintError:
            self.db.execute("BEGIN")
            assert replay(self.db, list(steps)) == list(said)
            with pytest.raises(apsw.ConstraintError):
                self.db.execute("COMMIT")
            self.db.execute("ROLLBACK")
            self.forget(work)
            return
        db = self.db if work.wrote else apsw.Connection(":memory:")
        if not work.wrote:
            assert work.base is not None
            db.deserialize("main", self.history[work.base.get("A", 0)])
            db.pragma("foreign_keys", 1)
        db.execute("BEGIN")
        assert replay(db, list(steps)) == list(said), steps
        db.execute("COMMIT")
        self.desk.interactive.swap_out()
        assert self.desk.node.tables() == contents(self.db)
        self.remember()
        self.committed += work.wrote
        self.forget(work)

    def forget(self, work: TransactionWork) -> None:
        self.desk.interactive.end(work)
        del self.open[work]

    def end(self) -> None:
        for work in list(self.open):
            self.forget(work)
        assert self.desk.node.tables() == contents(self.db)
        self.desk.close()


@pytest.mark.parametrize("seed", range(30))
def test_random_interleavings_equal_plain_sqlite(tmp_path: Path, seed: int) -> None:
    """Each committed transaction equals one that ran at its commit; a read-only one equals one that ran at its
    snapshot.
    """
    race = Race(tmp_path / "A.sqlite", seed)
    for _ in range(150):
        race.step()
    race.end()


def test_statements_at_once_equal_statements_one_by_one(desk: Desk) -> None:
    """Both ways give the same results, row changes, access set and id of the last row, for each kind of write."""
    plain(desk)
    desk.node.run("CREATE TABLE note(id INTEGER PRIMARY KEY, text)")
    texts: dict[str, list[Any]] = {
        "INSERT INTO account VALUES (?, ?, ?)": [(number + 50, number, f"x{number}") for number in range(20)],
        "INSERT INTO note(text) VALUES (?)": [(f"t{number}",) for number in range(20)],
        "INSERT INTO note VALUES (?, ?)": [(number if number % 3 else None, "own") for number in range(500, 520)],
        "INSERT INTO child VALUES (?, ?)": [(number + 70, number % 4) for number in range(20)],
        "UPDATE note SET text = ? WHERE id = ?": [(number, number) for number in range(30)],
        "DELETE FROM log WHERE account = ? AND v = ?": [(number, 1) for number in range(20)],
    }
    ways = desk.begin(), desk.begin()
    told: list[list[Any]] = [[], []]
    for work, said in zip(ways, told, strict=True):
        desk.node.engine._ids._highest.clear()  # both ways shall get the same ids
        for sql, many in texts.items():
            said += [desk.run(work, (sql, many[0])), work.lastrowid]
            if work is ways[0]:
                found = desk.run_alike(work, sql, many[1:])
            else:
                found = [desk.run(work, (sql, params)) for params in many[1:]]
            assert len(found) == len(many) - 1, sql
            said += [*found, work.lastrowid]
    assert told[0] == told[1]
    ends = [desk.interactive.finish(work) for work in ways]
    assert ends[0].access_set == ends[1].access_set
    assert ends[0].changes == ends[1].changes
    for work in ways:
        desk.interactive.end(work)


@pytest.mark.parametrize(
    ("sql", "many"),
    [
        ("INSERT INTO account VALUES (?, 0, ?)", [(number % 5 + 80, f"y{number}") for number in range(6)]),
        ("INSERT INTO account VALUES (?, 0, ?)", [(90, "a"), (91, "b"), (92,), (93, "d")]),
        ("INSERT INTO account VALUES (?, 0, ?)", [(90, "a"), (91, "b"), (92, object()), (93, "d")]),
        ("INSERT OR ROLLBACK INTO account VALUES (?, 0, ?)", [(95, "a"), (96, "b"), (95, "c"), (97, "d")]),
    ],
    ids=["taken key", "too few values", "no value of SQLite", "rolls everything back"],
)
def test_failed_statement_of_a_batch_undoes_the_whole_batch(desk: Desk, sql: str, many: list[Any]) -> None:
    """The earlier rows stay, and the transaction goes on as before the batch."""
    plain(desk)
    work = desk.begin()
    desk.run(work, ("INSERT INTO account VALUES (60, 0, ?)", ("first",)))
    desk.run(work, (sql, (61, "second")))
    before, lastrowid = list(work.changes), work.lastrowid
    assert desk.run_alike(work, sql, many) == []
    assert (work.changes, work.lastrowid) == (before, lastrowid)
    assert desk.run(work, "SELECT id FROM account WHERE id > 50") == [([(60,), (61,)], -1)]
    desk.commit(work)
    assert desk.node.rows("SELECT id FROM account WHERE id > 50") == [(60,), (61,)]


def test_statements_unsuited_to_a_batch_run_one_by_one(desk: Desk) -> None:
    """They read, loop, return rows, fire triggers, run for the first time, or change rows that the hook cannot show."""
    plain(desk)
    work = desk.begin()
    texts: list[tuple[str, Any]] = [
        ("SELECT v FROM account WHERE id = ?", (1,)),
        ("UPDATE account SET v = v + 1 WHERE v > ?", (100,)),
        ("INSERT INTO log VALUES (?, 0) RETURNING v", (900,)),
        ("UPDATE account SET v = ? WHERE id = 900", (1,)),
    ]
    for sql, params in texts:
        desk.run(work, (sql, params))
        assert desk.interactive._repeatable(work, sql) is None, sql
    assert desk.interactive._repeatable(work, "INSERT INTO log VALUES (?, 1)") is None
    sql = "INSERT INTO shape(id, a) VALUES (?, ?)"
    desk.run(work, (sql, (70, 70)))
    assert desk.run_alike(work, sql, [(71, 71), (72, 72)]) == []
    desk.interactive.end(work)


def _draw(luck: Random) -> Step:
    if luck.random() < 0.25:
        name = luck.choice("ab")
        return luck.choice([f"SAVEPOINT {name}", f"RELEASE {name}", f"ROLLBACK TO {name}", f"ROLLBACK TO {name}"]), None
    if luck.random() < 0.1:
        return luck.choice(["PRAGMA defer_foreign_keys = ON", "PRAGMA defer_foreign_keys"]), None
    return luck.choice(STATEMENTS), [luck.randrange(6) for _ in range(3)]


def test_a_reader_keeps_its_snapshot_while_others_commit(desk: Desk) -> None:
    """A transaction sees its first snapshot until it writes, also at serializable."""
    plain(desk)
    work = desk.begin()
    assert desk.run(work, "SELECT v FROM account WHERE id = 1") == [([(10,)], -1)]
    desk.node.run("UPDATE account SET v = 11 WHERE id = 1")
    desk.node.save()
    assert desk.run(work, "SELECT v FROM account WHERE id = 1") == [([(10,)], -1)]
    assert desk.node.rows("SELECT v FROM account WHERE id = 1") == [(11,)]
    desk.commit(work)


def test_first_write_detects_changes_of_earlier_reads(desk: Desk) -> None:
    """A transaction that has read other rows goes on."""
    plain(desk)
    lost, fine = desk.begin(), desk.begin()
    desk.run(lost, "SELECT v FROM account WHERE id = 1")
    desk.run(fine, "SELECT v FROM account WHERE id = 2")
    desk.node.run("UPDATE account SET v = 11 WHERE id = 1")
    with pytest.raises(ConflictError):
        desk.run(lost, "UPDATE account SET v = 0 WHERE id = 3")
    desk.interactive.end(lost)
    desk.run(fine, "UPDATE account SET v = v + 1 WHERE id = 2")
    desk.commit(fine)
    assert desk.node.rows("SELECT v FROM account ORDER BY id") == [(0,), (11,), (21,), (30,)]


def test_uncommitted_changes_are_invisible(desk: Desk) -> None:
    """Another open transaction, a request and the file do not show them."""
    plain(desk)
    writer, reader = desk.begin(), desk.begin()
    desk.run(writer, "UPDATE account SET v = 99 WHERE id = 1")
    assert desk.run(reader, "SELECT v FROM account WHERE id = 1") == [([(10,)], -1)]
    assert desk.run(writer, "SELECT v FROM account WHERE id = 1") == [([(99,)], -1)]
    assert desk.node.rows("SELECT v FROM account WHERE id = 1") == [(10,)]
    for work in (writer, reader):
        desk.interactive.end(work)


def test_transaction_keeps_the_writer_until_another_request_needs_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand inserts in a row are executed once each, without repeats."""
    plain(desk)
    redone: list[int] = []
    applier = desk.interactive.parts.applier
    redo = applier.redo

    def count(changes: list[Any]) -> str:
        redone.append(len(changes))
        return redo(changes)

    monkeypatch.setattr(applier, "redo", count)
    work = desk.begin()
    for number in range(1000):
        desk.run(work, ("INSERT INTO account VALUES (?, 0, ?)", (number + 100, f"m{number}")))
    desk.node.engine.set_meta("cut", 1)
    desk.run(work, "INSERT INTO account VALUES (5000, 0, 'last')")
    assert redone == [0, 1000]
    desk.commit(work)
    assert desk.node.rows("SELECT count(*) FROM account") == [(1005,)]


def test_limit_of_changes_counts_all_statements_of_a_transaction(tmp_path: Path) -> None:
    """The statement that exceeds the limit fails; the earlier ones stay."""
    desk = Desk(tmp_path / "A.sqlite", changes_bytes=10_000)
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    work = desk.begin()
    sent, refused = 0, False
    while not refused:
        try:
            desk.run(work, ("INSERT INTO t VALUES (?, ?)", (sent, "x" * 1000)))
            sent += 1
        except TooLargeError:
            refused = True
    assert 5 < sent < 10
    desk.commit(work)
    assert desk.node.rows("SELECT count(*) FROM t") == [(sent,)]
    desk.close()


@pytest.mark.parametrize("definition", ["TABLE t(a, twice AS (a || a))", "VIRTUAL TABLE t USING fts5(a)"])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("sql", "value", "error"),
    [
        ("INSERT INTO t(rowid, a) VALUES (77, ?)", "x" * 60_000, "changes more than 100000 bytes"),
        ("INSERT INTO t(rowid, a) VALUES (77, CAST(? AS TEXT))", b"\xff", "t is not UTF-8"),
    ],
)
def test_statement_whose_rows_are_refused_after_it_has_run_is_undone(
    tmp_path: Path, definition: str, is_known: bool, sql: str, value: Any, error: str
) -> None:
    """Changed rows of such tables are read after the statement; if one of them is refused, none may stay."""
    desk = Desk(tmp_path / "A.sqlite", changes_bytes=100_000)
    desk.node.run(f"CREATE {definition}")
    work = desk.begin()
    desk.run(work, "INSERT INTO t(rowid, a) VALUES (1, 'first')")
    desk.run(work, ("INSERT INTO t(rowid, a) VALUES (2, ?)", ("x" * 50_000,)))
    with pytest.raises(UsageError, match=error):
        _ = (is_known and desk.run_again(work, sql, (value,))) or desk.run(work, (sql, (value,)))
    assert desk.run(work, "SELECT rowid FROM t ORDER BY rowid") == [([(1,), (2,)], -1)]
    assert work.lastrowid == desk.interactive._db.last_insert_rowid() == 2
    desk.run(work, "INSERT INTO t(rowid, a) VALUES (3, (SELECT count(*) FROM t))")
    desk.commit(work)
    assert desk.node.rows("SELECT rowid FROM t ORDER BY rowid") == [(1,), (2,), (3,)]
    assert desk.node.rows("SELECT a FROM t WHERE rowid = 3")[0][0] in (2, "2")
    desk.close()


@pytest.mark.parametrize("refused", ["zeroblob(200000)", "CAST(x'ff' AS TEXT)"])
@pytest.mark.parametrize("way", ["t", "shown"])
def test_rows_after_a_refused_row_do_not_stay_with_or_fail(tmp_path: Path, way: str, refused: str) -> None:
    """SQLite keeps all rows before the broken constraint, but those from the refused one on are not in the journal."""
    desk = Desk(tmp_path / "A.sqlite", changes_bytes=100_000)
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    desk.node.run("CREATE VIEW shown AS SELECT id, a FROM t")
    desk.node.run("CREATE TRIGGER s INSTEAD OF INSERT ON shown BEGIN INSERT INTO t VALUES (new.id, new.a); END")
    work = desk.begin()
    desk.run(work, "INSERT INTO t VALUES (1, 'first')")
    with pytest.raises(UsageError, match=r"changes more than|not UTF-8"):
        desk.run(work, f"INSERT OR FAIL INTO {way} VALUES (10, 'a'), (11, {refused}), (12, 'b'), (1, 'again')")
    assert desk.run(work, "SELECT id FROM t") == [([(1,)], -1)]
    assert work.lastrowid == 1
    desk.run(work, "INSERT INTO t SELECT 20, count(*) FROM t")
    desk.commit(work)
    assert desk.node.rows("SELECT id, a FROM t") == [(1, "first"), (20, 1)]
    desk.close()


@pytest.mark.parametrize(
    "definitions", [["VIRTUAL TABLE t USING fts5(a)"], ["TABLE t(a)", "VIRTUAL TABLE f USING fts5(a, content='t')"]]
)
def test_limit_of_text_for_search_counts_all_statements_of_a_transaction(desk: Desk, definitions: list[str]) -> None:
    """COMMIT indexes all of the text at once, at every node; text that a savepoint rolls back does not count."""
    for one in definitions:
        desk.node.run(f"CREATE {one}")
    work, insert = desk.begin(), ("INSERT INTO t(rowid, a) VALUES (NULL, ?)", ("x" * (3 << 20),))
    desk.run(work, insert)
    work.mark("s", is_broken=False)
    desk.run(work, insert)
    with pytest.raises(TooLargeError, match="to be indexed by FTS5"):
        desk.run(work, insert)
    desk.interactive.rollback_to(work, "s")
    desk.run(work, insert)
    with pytest.raises(TooLargeError, match="to be indexed by FTS5"):
        desk.run(work, insert)
    desk.commit(work)
    assert desk.node.rows("SELECT count(*) FROM t") == [(2,)]


def test_or_rollback_ends_its_own_transaction_only(desk: Desk) -> None:
    """SQLite then rolls back the whole batch; the engine writes the decided entries again."""
    plain(desk)
    desk.node.run("UPDATE account SET v = 77 WHERE id = 3")
    work = desk.begin()
    with pytest.raises(ConstraintError):
        desk.run(work, "INSERT OR ROLLBACK INTO account VALUES (1, 0, 'x')")
    assert work.has_failed
    desk.interactive.end(work)
    assert desk.node.rows("SELECT v FROM account WHERE id IN (1, 3)") == [(10,), (77,)]


def test_snapshot_isolation_allows_write_skew_and_no_lost_update(desk: Desk) -> None:
    """The snapshot level allows write skew, but no lost update."""
    plain(desk)
    one, two = desk.begin(serializable=False), desk.begin(serializable=False)
    for work in (one, two):
        assert desk.run(work, "SELECT sum(v) FROM account WHERE id IN (1, 2)") == [([(30,)], -1)]
    desk.run(one, "UPDATE account SET v = 0 WHERE id = 1")
    desk.run(two, "UPDATE account SET v = 0 WHERE id = 2")
    desk.commit(one)
    assert desk.run(two, "SELECT v FROM account WHERE id = 3") == [([(30,)], -1)]
    with pytest.raises(ConflictError):
        desk.run(two, "SELECT v FROM account WHERE id = 1")
    desk.commit(two)
    lost = desk.begin(serializable=False)
    desk.run(lost, "SELECT 1")
    desk.node.run("UPDATE account SET v = 5 WHERE id = 1")
    assert desk.run(lost, "SELECT v FROM account WHERE id = 1") == [([(0,)], -1)]
    with pytest.raises(ConflictError):
        desk.run(lost, "UPDATE account SET v = v + 1 WHERE id = 1")
    desk.interactive.end(lost)


def test_search_under_snapshot_isolation_finds_own_rows(desk: Desk) -> None:
    desk.node.run("CREATE TABLE doc(id INTEGER PRIMARY KEY, body)")
    desk.node.run("CREATE VIRTUAL TABLE found USING fts5(body, content='doc', content_rowid='id')")
    desk.node.run(
        "CREATE TRIGGER doc_new AFTER INSERT ON doc BEGIN INSERT INTO found(rowid, body) VALUES (new.id, new.body); END"
    )
    desk.node.run("CREATE VIRTUAL TABLE own USING fts5(body)")
    desk.node.run("CREATE VIRTUAL TABLE words USING fts5vocab(own, row)")
    work = desk.begin(serializable=False)
    assert desk.run(work, "SELECT rowid FROM found('red')") == [([], -1)]
    desk.run(work, "INSERT INTO doc VALUES (1, 'red fox')")
    desk.run(work, "INSERT INTO own VALUES ('red')")
    assert desk.run(work, "SELECT rowid FROM found('red')") == [([(1,)], -1)]
    assert desk.run(work, "SELECT term FROM words") == [([("red",)], -1)]
    desk.commit(work)


def test_schema_change_ends_open_transactions(desk: Desk) -> None:
    plain(desk)
    writer, reader = desk.begin(), desk.begin()
    desk.run(writer, "DELETE FROM child")
    desk.run(reader, "SELECT * FROM child")
    desk.node.run("CREATE TABLE other(a)")
    for held in (writer, reader):
        with pytest.raises(ConflictError, match="schema"):
            desk.run(held, "SELECT 1")
        desk.interactive.end(held)


def test_a_foreign_key_to_columns_that_are_not_unique_is_an_error_of_the_client(desk: Desk) -> None:
    """SQLite reports it when it checks the key. Here that is COMMIT, for a violated key that the count had missed."""
    desk.node.run(
        "CREATE TABLE p(id INTEGER PRIMARY KEY)",
        "CREATE TABLE x(id INT, p REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE y(x REFERENCES x(id))",
    )
    work = desk.begin()
    desk.run(work, "INSERT INTO x VALUES (1, 1)")
    desk.node.run("INSERT INTO p VALUES (2)")
    with pytest.raises(SqlError, match="foreign key mismatch"):
        desk.commit(work)
    desk.interactive.end(work)


def test_writing_the_batch_again_does_not_use_the_budget_of_a_statement(tmp_path: Path) -> None:
    """SQLite rolls back the open batch together with an interrupted write. Writing the batch again may take long, and
    must not end because the statement's budget is over.
    """
    clocks = Clocks()
    desk = Desk(tmp_path / "A.sqlite", seconds=clocks.seconds, busy=clocks.busy)
    node = desk.node
    node.run("CREATE TABLE t(x)")
    node.save()
    node.run(*(f"CREATE TABLE t{number}(id INTEGER PRIMARY KEY, v UNIQUE)" for number in range(400)))  # not saved
    work = desk.begin()
    desk.run(work, "INSERT INTO t VALUES (1)")
    desk.interrupt_write(work, clocks)
    assert desk.run(work, "SELECT count(*) FROM t") == [([(1,)], -1)]
    desk.commit(work)
    assert node.rows("SELECT count(*) FROM sqlite_schema WHERE name LIKE 't%' AND type = 'table'") == [(401,)]
    desk.close()


@pytest.mark.parametrize("seed", range(12))
def test_rollback_to_keeps_the_write_set_of_the_remaining_changes(desk: Desk, seed: int) -> None:
    """A key that is no longer written still counts as read."""
    luck = Random(seed)
    desk.node.run(SCHEMA)
    work = desk.begin()
    written: set[bytes] = set()
    for _ in range(120):
        word = luck.choice(["SAVEPOINT", "RELEASE", "ROLLBACK TO", "", "", ""])
        step: Step = (f"{word} {luck.choice('abc')}", ()) if word else (
            luck.choice(STATEMENTS[:14]),
            tuple(luck.randrange(6) for _ in range(3)),
        )  # fmt: skip
        one(desk, work, step)
        if work.sets is None:
            continue
        fresh = AccessSetBuilder(desk.interactive.parts.executor.analysis, serializable=True)
        fresh.add_changes(work.changes, work.net_only)
        assert work.sets._writes == fresh._writes
        assert work.sets._write_ranges == fresh._write_ranges
        written |= fresh._writes
        assert written <= work.sets._reads | work.sets._writes
    assert len(written) > 10


def test_rollback_to_computes_keys_of_rolled_back_changes_only(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.node.run(SCHEMA)
    work = desk.begin()
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
    desk.run(work, f"{numbers} INSERT INTO log SELECT i, 1 FROM n")
    gathered: list[int] = []
    original = WriteKeys.gather

    def counted(self: WriteKeys, changes: Any, *others: Any) -> None:
        gathered.append(len(changes))
        original(self, changes, *others)

    monkeypatch.setattr(WriteKeys, "gather", counted)
    for place in range(20):
        control(desk, work, "SAVEPOINT a")
        desk.run(work, f"INSERT INTO log VALUES (0, {place})")
        control(desk, work, "ROLLBACK TO a")
    assert sum(gathered) == 20
