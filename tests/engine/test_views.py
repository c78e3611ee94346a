"""Triggers in open transactions: views that they make writable, and their effects when a statement fails."""

from pathlib import Path

import apsw
import pytest

from bedrockish.errors import ConstraintError
from tests.engine.test_interactive import Desk, desk, plain

__all__ = ["desk"]


def test_view_stays_writable_while_entries_are_applied(desk: Desk) -> None:
    """While rows of others are applied, triggers are off; a view that only they make writable stays so."""
    plain(desk)
    desk.node.run("CREATE VIEW shown AS SELECT id, v FROM account")
    desk.node.run(
        "CREATE TRIGGER put INSTEAD OF INSERT ON shown BEGIN UPDATE account SET v = new.v WHERE id = new.id; END"
    )
    session = desk.begin()
    desk.node.run("DELETE FROM child WHERE id = 0")
    assert desk.interactive.parts.applier._is_off
    desk.run(session, "INSERT INTO shown VALUES (1, 41)")
    desk.node.run("DELETE FROM child WHERE id = 1")
    desk.run(session, "INSERT INTO shown VALUES (2, 42); INSERT INTO shown VALUES (3, 43)")
    desk.commit(session)
    assert desk.node.rows("SELECT v FROM account ORDER BY id") == [(0,), (41,), (42,), (43,)]


FAILING = """CREATE TABLE log(n INTEGER PRIMARY KEY, what)
CREATE TABLE t(id INTEGER PRIMARY KEY, v UNIQUE)
CREATE TABLE w(k TEXT COLLATE NOCASE, v UNIQUE, PRIMARY KEY (k)) WITHOUT ROWID
CREATE TABLE g(id INTEGER PRIMARY KEY, v UNIQUE, twice AS (v * 2))
CREATE TRIGGER before_t BEFORE INSERT ON t BEGIN INSERT INTO log(what) VALUES (new.v); END
CREATE TRIGGER before_w BEFORE INSERT ON w BEGIN DELETE FROM w WHERE k = 'gone'; REPLACE INTO w VALUES ('KEPT', 7); END
CREATE TRIGGER before_g BEFORE INSERT ON g WHEN new.id > 5 BEGIN UPDATE g SET v = v + 100 WHERE id = 1; END
"""


@pytest.mark.parametrize("table", ["t", "w", "g"])
@pytest.mark.parametrize("how", ["FAIL", "ABORT", "IGNORE"])
def test_effects_of_triggers_before_a_failed_row_follow_the_conflict_clause(
    tmp_path: Path, table: str, how: str
) -> None:
    """With OR FAIL the effects stay, even if the statement itself changed nothing; with ABORT they are rolled back."""
    desk, db = Desk(tmp_path / "A.sqlite"), apsw.Connection(":memory:")
    for text in FAILING.splitlines():
        desk.node.run(text)
        db.execute(text)
    filled = ["INSERT INTO t VALUES (1, 1)", "INSERT INTO w VALUES ('gone', 1)", "INSERT INTO g(id, v) VALUES (1, 1)"]
    session = desk.begin()
    db.execute("BEGIN")
    for text in filled:
        desk.run(session, text)
        db.execute(text)
    for values in ("(1, 1)", "(7, 5), (8, 5), (9, 6)", "(1, 1)"):
        text = f"INSERT OR {how} INTO {table}({'k' if table == 'w' else 'id'}, v) VALUES {values}"
        theirs = ours = None
        try:
            db.execute(text)
        except apsw.ConstraintError as error:
            theirs = str(error)
        try:
            desk.run(session, text)
        except ConstraintError as error:
            ours = error.message
        assert ours == theirs
        for name in ("t", "w", "g", "log"):
            assert desk.run(session, f"SELECT * FROM {name}")[0][0] == db.execute(f"SELECT * FROM {name}").fetchall()
    desk.commit(session)
    db.execute("COMMIT")
    for name in ("t", "w", "g", "log"):
        assert desk.node.rows(f"SELECT * FROM {name}") == db.execute(f"SELECT * FROM {name}").fetchall()
    desk.close()
