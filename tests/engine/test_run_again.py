"""Statements of an open transaction that run again by their recipe."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bedrockish.engine.statements.guard import Guard
from bedrockish.errors import ConstraintError, TooLargeError
from tests.engine.test_interactive import Desk, plain


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path / "A.sqlite")
    yield found
    found.close()


def test_statements_that_run_again_equal_ordinary_statements(desk: Desk) -> None:
    """The results, row changes, access set, lookups of a refusal and id of the last row are the same."""
    plain(desk)
    desk.node.run("CREATE TABLE line(a INTEGER, b TEXT, v, PRIMARY KEY (a, b)) WITHOUT ROWID")
    texts: list[tuple[str, tuple[Any, ...]]] = [
        ("INSERT INTO line VALUES (?, ?, ?)", (1, "b", 1.5)),
        ("INSERT INTO line VALUES (?, ?, ?)", (2, "c", None)),
        ("INSERT INTO account VALUES (?1, ?2, 'm' || ?1)", (60, 6)),
        ("SELECT v FROM line WHERE a = ? AND b = ?", (1, "b")),
        ("SELECT v FROM line WHERE a = ? AND b = ?", (9, "b")),
        ("SELECT * FROM account WHERE id = ?", (60,)),
        ("SELECT id FROM account WHERE v BETWEEN ? AND ? ORDER BY id", (0, 25)),
        ("SELECT count(*) FROM child", ()),
        ("UPDATE line SET v = v + ? WHERE a = ? AND b = ?", (1, 2, "c")),
        ("UPDATE line SET v = ? WHERE a = ? AND b = ?", (b"x", 1, "b")),
        ("INSERT INTO child VALUES (?, ?)", (80, 60)),
        ("DELETE FROM line WHERE a = ? AND b = ?", (2, "c")),
        ("DELETE FROM line WHERE a = ? AND b = ?", (7, "c")),
    ]
    first = desk.begin()  # the executor knows a text after its first run
    for sql, values in texts:
        desk.run(first, (sql, values))
    desk.interactive.end(first)
    ways = desk.begin(), desk.begin()
    told: list[list[Any]] = [[], []]
    again = 0
    for work, said in zip(ways, told, strict=True):
        desk.run(work, "INSERT INTO log VALUES (700, 1)")
        for sql, values in texts:
            found = desk.run_again(work, sql, values) if work is ways[0] else None
            again += found is not None
            said += [found or desk.run(work, (sql, values)), work.lastrowid, work.size]
    assert again >= len(texts) - 2
    assert told[0] == told[1]
    assert ways[0].sets is not None
    assert ways[1].sets is not None
    assert ways[0].sets.looked_at() == ways[1].sets.looked_at()
    ends = [desk.interactive.finish(work) for work in ways]
    assert ends[0] == ends[1]
    for work in ways:
        desk.interactive.end(work)


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("INSERT INTO child VALUES (?, ?)", (101, 1)),
        ("INSERT INTO child VALUES (?, ?)", ("text", 1)),
        ("INSERT OR ROLLBACK INTO child VALUES (?, ?)", (101, 1)),
    ],
    ids=["taken key", "key of another type", "rolls everything back"],
)
def test_failed_statement_that_runs_again_leaves_the_transaction_unchanged(
    desk: Desk, sql: str, values: tuple[Any, ...]
) -> None:
    plain(desk)
    work = desk.begin()
    desk.run(work, "INSERT INTO account VALUES (60, 0, 'first')")
    desk.run(work, ("INSERT INTO child VALUES (?, ?)", (101, 60)))
    desk.run(work, (sql, (102, 60)[: len(values)]))
    assert desk.interactive.engine.lend(desk.interactive).executor.texts.again(sql) is not None
    before, lastrowid = list(work.changes), work.lastrowid
    children = desk.run(work, "SELECT id FROM child WHERE id > 100")
    assert desk.run_again(work, sql, values) is None
    assert (work.changes, work.lastrowid) == (before, lastrowid)
    assert desk.run(work, "SELECT id FROM child WHERE id > 100") == children
    desk.commit(work)
    assert [(desk.node.rows("SELECT id FROM child WHERE id > 100"), -1)] == children


def test_statement_that_fails_at_its_first_run_is_compiled_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many programs try to insert a row that may exist already."""
    plain(desk)
    work, sql = desk.begin(), "INSERT INTO child  VALUES (?, ?)"
    desk.run(work, "INSERT INTO child VALUES (101, 1)")
    compiled: list[str] = []
    original = Guard.compile_next

    def noted(self: Guard, text: str, *arguments: Any, **options: Any) -> Any:
        compiled.append(text)
        return original(self, text, *arguments, **options)

    monkeypatch.setattr(Guard, "compile_next", noted)
    for number in range(3):
        with pytest.raises(ConstraintError):
            desk.run(work, (sql, (101, 1)))
        assert desk.run(work, (sql, (102 + number, 1))) == [([], 1)]
    assert compiled == [sql]


def test_write_that_runs_again_and_is_refused_after_its_change_leaves_no_row(tmp_path: Path) -> None:
    """No savepoint stands before such a write, so the transaction writes its other rows again."""
    desk = Desk(tmp_path / "A.sqlite", changes_bytes=1_000)
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    work, sql = desk.begin(), "INSERT INTO t VALUES (?, ?)"
    desk.run(work, (sql, (1, "short")))
    assert desk.run_again(work, sql, (2, "x" * 2_000)) is None
    with pytest.raises(TooLargeError):
        desk.run(work, (sql, (2, "x" * 2_000)))
    assert desk.run_again(work, sql, (3, "short")) or desk.run(work, (sql, (3, "short")))
    assert desk.run(work, "SELECT id FROM t") == [([(1,), (3,)], -1)]
    desk.commit(work)
    assert desk.node.rows("SELECT id FROM t") == [(1,), (3,)]
    desk.close()


@pytest.mark.parametrize("action", ["", "ON UPDATE CASCADE"])
def test_write_that_runs_again_finds_rows_of_a_table_with_virtual_columns(desk: Desk, action: str) -> None:
    desk.node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v UNIQUE)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    target = f"REFERENCES t(v) {action}" if action else ""
    desk.node.run(f"CREATE TABLE w(id INTEGER PRIMARY KEY, v {target}, twice AS (2 * v))")
    desk.node.run("INSERT INTO w(id, v) VALUES (1, 3)")
    sql = "UPDATE t SET v = ? WHERE id = ?" if action else "UPDATE w SET v = ? WHERE id = ?"
    work = desk.begin()
    key = 3 if action else 1
    desk.run(work, (sql, (5, key)))
    if desk.run_again(work, sql, (7, key)) is None:
        desk.run(work, (sql, (7, key)))
    desk.commit(work)
    assert desk.node.rows("SELECT v, twice FROM w") == [(7, 14)]


def test_statement_that_runs_again_assigns_an_id(desk: Desk) -> None:
    desk.node.run("CREATE TABLE note(id INTEGER PRIMARY KEY, text UNIQUE)")
    work, sql = desk.begin(), "INSERT INTO note VALUES (?, ?)"
    desk.run(work, (sql, (5, "own")))
    assert desk.run_again(work, sql, (None, "t")) == [([], 1)]
    first = work.lastrowid
    assert first > 5
    assert desk.run_again(work, sql, (first + 50, "given")) == [([], 1)]
    assert desk.run_again(work, sql, (None, "t")) is None  # the text is taken
    assert work.lastrowid == first + 50
    assert desk.run_again(work, sql, (None, "u")) == [([], 1)]
    assert work.lastrowid > first + 50
    desk.commit(work)
    assert [text for (text,) in desk.node.rows("SELECT text FROM note ORDER BY id")] == ["own", "t", "given", "u"]


def test_statements_with_triggers_loops_or_system_tables_do_not_run_again(desk: Desk) -> None:
    """Dependent reads and new texts do not either; a write of one row with RETURNING does."""
    plain(desk)
    executor = desk.interactive.engine.lend(desk.interactive).executor
    work = desk.begin()
    texts = [
        ("UPDATE log SET v = v + 1 WHERE v > ?", (1,)),
        ("UPDATE account SET v = v + 1 WHERE id = ?", (1,)),
        ("SELECT c.id FROM child c JOIN account a ON a.id = c.parent WHERE c.id = ?", (1,)),
        ("UPDATE log SET v = v + 1 WHERE v > ? RETURNING v", (1,)),
        ("SELECT name FROM sqlite_schema WHERE rowid = ?", (1,)),
    ]
    for sql, values in texts:
        desk.run(work, (sql, values))
        assert executor.texts.again(sql) is None, sql
    assert executor.texts.again("SELECT 1 FROM account WHERE id = ?") is None
    returning = "INSERT INTO log VALUES (?, 0) RETURNING v"
    desk.run(work, (returning, (900,)))
    assert executor.texts.again(returning) is not None
    desk.interactive.end(work)
