"""SQLite's own lists of statements and PRAGMAs, run at a node and on SQLite: the tables of docs/sql.md."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

import bedrockish.dbapi as dbapi
from tests.cluster.story import ready
from tools.cluster import LocalCluster, local_cluster
from tools.sql_surface import DIFFERS, PRAGMAS, REFUSED, SAME, SETUP, STATEMENTS, Line

pytestmark = pytest.mark.cluster

LINES = (*STATEMENTS, *PRAGMAS)
RESET = (*(f"DROP VIEW IF EXISTS {name}" for name in "vw"), *(f"DROP TABLE IF EXISTS {name}" for name in "tuf"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("surface") / "one", ("A",)) as cluster:
        trio.run(ready, cluster)
        yield cluster


def at_node(cluster: LocalCluster, line: Line) -> list[Any]:
    """Run a line on a connection to the node; return the rows of its last statement."""
    with closing(dbapi.connect(cluster.url(), isolation_level=None)) as connection:
        for sql in (*RESET, *SETUP, *line.statements[:-1]):
            connection.execute(sql)
        return list(connection.execute(line.statements[-1]).fetchall())


def on_sqlite(path: Path, line: Line) -> list[Any] | apsw.Error:
    """Run a line on SQLite; return the rows of its last statement, or its error."""
    with closing(apsw.Connection(str(path))) as db:
        db.pragma("journal_mode", "wal")
        db.pragma("foreign_keys", 1)
        for sql in (*SETUP, *line.statements[:-1]):
            db.execute(sql).fetchall()
        try:
            return list(db.execute(line.statements[-1]).fetchall())
        except apsw.Error as error:
            return error


@pytest.mark.parametrize("line", LINES, ids=[line.name for line in LINES])
def test_statement_of_the_sql_page_has_its_documented_verdict(node: LocalCluster, tmp_path: Path, line: Line) -> None:
    """The rows or the failure are the same, or the statement is accepted, or it is refused by name."""
    if line.verdict == REFUSED:
        with pytest.raises(dbapi.NotSupportedError, match=r"[;,] "):
            at_node(node, line)
        return
    if line.verdict == DIFFERS:
        name, sets, _ = line.statements[-1].partition(" = ")
        before = at_node(node, Line(name, DIFFERS, (name,))) if sets else []
        at_node(node, line)
        if sets:  # the PRAGMA is accepted, and the node's value stays
            assert at_node(node, Line(name, DIFFERS, (*line.statements, name))) == before
        return
    assert line.verdict == SAME
    wanted = on_sqlite(tmp_path / "plain.sqlite", line)
    if not isinstance(wanted, apsw.Error):
        assert at_node(node, line) == wanted
        return
    with pytest.raises(dbapi.DatabaseError) as caught:
        at_node(node, line)
    assert isinstance(caught.value, dbapi.NotSupportedError) or str(wanted)[:20] in str(caught.value)


def test_sql_page_has_a_line_for_each_pragma_of_sqlite() -> None:
    with closing(apsw.Connection(":memory:")) as db:
        known = {str(name) for (name,) in db.execute("PRAGMA pragma_list")}
    assert {line.name.removeprefix("PRAGMA ") for line in PRAGMAS} == known


def test_sql_page_has_at_most_ten_refusals_each_with_an_alternative() -> None:
    refused = [line for line in LINES if line.verdict == REFUSED]
    assert len(refused) <= 10
    assert all(line.how for line in LINES if line.verdict != SAME)
