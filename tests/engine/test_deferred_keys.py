"""Foreign keys that an open transaction breaks and mends before its COMMIT."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.test_interactive import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path / "A.sqlite")
    yield found
    found.close()


@pytest.mark.parametrize("mends", ["INSERT INTO p(id) VALUES (9)", "UPDATE p SET id = 9", "DELETE FROM q"])
def test_row_of_a_table_with_virtual_columns_satisfies_a_deferred_key(desk: Desk, mends: str) -> None:
    """COMMIT was refused: the count of broken keys was that of before the statement."""
    desk.node.run("CREATE TABLE p(id INTEGER PRIMARY KEY, a UNIQUE ON CONFLICT REPLACE, w AS (a + 1))")
    desk.node.run("CREATE TABLE q(p REFERENCES p(id) DEFERRABLE INITIALLY DEFERRED)")
    desk.node.run("INSERT INTO p(id) VALUES (1)")
    session = desk.begin()
    desk.run(session, "INSERT INTO q(p) VALUES (9)")
    desk.run(session, mends)
    desk.commit(session)
