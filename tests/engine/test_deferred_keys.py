"""Foreign keys that an open transaction breaks and repairs before its COMMIT."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bedrockish.errors import ConstraintError
from tests.engine.test_budget import Clocks
from tests.engine.test_interactive import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path / "A.sqlite")
    yield found
    found.close()


@pytest.mark.parametrize("mends", ["INSERT INTO p(id) VALUES (9)", "UPDATE p SET id = 9", "DELETE FROM q"])
def test_row_of_a_table_with_virtual_columns_satisfies_a_deferred_key(desk: Desk, mends: str) -> None:
    """COMMIT must not use the count of broken keys from before the statement, or it would refuse the transaction."""
    desk.node.run("CREATE TABLE p(id INTEGER PRIMARY KEY, a UNIQUE ON CONFLICT REPLACE, w AS (a + 1))")
    desk.node.run("CREATE TABLE q(p REFERENCES p(id) DEFERRABLE INITIALLY DEFERRED)")
    desk.node.run("INSERT INTO p(id) VALUES (1)")
    session = desk.begin()
    desk.run(session, "INSERT INTO q(p) VALUES (9)")
    desk.run(session, mends)
    desk.commit(session)


@pytest.mark.parametrize("parent", [9, 1], ids=["broken", "whole"])
def test_deferred_key_stays_broken_after_sqlite_has_rolled_back_an_interrupted_write(
    tmp_path: Path, parent: int
) -> None:
    """After the rollback SQLite has no count of broken keys, and writing the rows again does not restore it.

    If no key was broken before, COMMIT does not search the tables, which takes long for large ones.
    """
    clocks = Clocks()
    desk = Desk(tmp_path / "A.sqlite", seconds=clocks.seconds, busy=clocks.busy)
    desk.node.run("CREATE TABLE p(id INTEGER PRIMARY KEY)", "CREATE TABLE t(x)")
    desk.node.run("CREATE TABLE q(p REFERENCES p(id) DEFERRABLE INITIALLY DEFERRED)")
    session = desk.begin()
    desk.node.run("INSERT INTO p VALUES (1)")
    desk.run(session, ("INSERT INTO q(p) VALUES (?)", (parent,)))
    desk.interrupt_write(session, clocks)
    desk.run(session, "INSERT INTO t VALUES (1)")
    assert session.keys_were_broken == (parent == 9)
    if session.keys_were_broken:
        with pytest.raises(ConstraintError, match="deferred"):
            desk.commit(session)
    desk.interactive.end(session)
    desk.close()


def test_statement_compiled_while_keys_were_deferred_leaves_no_row_after_an_interrupted_write(tmp_path: Path) -> None:
    """After SQLite has rolled back the batch, it defers keys no longer, but keeps statements compiled before."""
    clocks = Clocks()
    desk = Desk(tmp_path / "A.sqlite", seconds=clocks.seconds, busy=clocks.busy)
    desk.node.run("CREATE TABLE q(id INTEGER PRIMARY KEY, up REFERENCES q(id))", "CREATE TABLE t(x)")
    desk.node.run("INSERT INTO q VALUES (2, NULL)")
    desk.node.save()
    first, insert = desk.begin(), "INSERT INTO q VALUES (?, ?)"
    desk.run(first, "PRAGMA defer_foreign_keys = ON")
    with pytest.raises(ConstraintError):  # a row would be written again, and that compiles the statements again
        desk.run(first, (insert, (2, 1)))
    desk.interrupt_write(first, clocks)
    second = desk.begin()
    with pytest.raises(ConstraintError):
        desk.run(second, (insert, (5, 6)))
    assert desk.run(second, "SELECT * FROM q") == [([(2, None)], -1)]
    for one in (first, second):
        desk.interactive.end(one)
    desk.close()
