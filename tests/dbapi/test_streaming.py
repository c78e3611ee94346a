"""The streaming cursor: the results of any cursor, of any size, and errors between rows."""

import pytest

import bedrockish.dbapi as db

pytestmark = pytest.mark.cluster

MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) SELECT i, printf('%0200d', i) FROM n"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@pytest.fixture
def cursor(connection: db.Connection) -> db.Cursor:
    made = connection.cursor(db.StreamingCursor)
    assert isinstance(made, db.StreamingCursor)
    return made


def test_streaming_cursor_returns_all_rows_by_each_way_of_fetching(cursor: db.Cursor) -> None:
    """The reader calls fetchone, fetchmany or fetchall, or iterates, each over more than one batch."""
    count = 9000
    expected = [(number, f"{number:0200}") for number in range(1, count + 1)]
    cursor.execute(MANY, (count,))
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["i", "printf('%0200d', i)"]
    assert cursor.description[0][1] == db.NUMBER
    assert cursor.rowcount == -1
    assert len(cursor._rows) < count
    found = [cursor.fetchone(), *cursor.fetchmany(3), *cursor.fetchmany(4000)]
    assert cursor.rownumber == len(found) == 4004
    assert found + cursor.fetchall() == expected
    assert cursor.rownumber == count
    assert (cursor.fetchone(), cursor.fetchmany(5), cursor.fetchall()) == (None, [], [])
    assert list(cursor.execute(MANY, (count,))) == expected
    assert cursor.execute("SELECT 1 WHERE 0").fetchall() == []
    with pytest.raises(db.ProgrammingError):
        cursor.fetchmany(-1)


def test_dropped_cursors_leave_no_open_streams(connection: db.Connection) -> None:
    """One caller may have 48 streams at a node, which ends an idle one after a minute."""
    for _ in range(60):
        assert connection.cursor(db.StreamingCursor).execute(ENDLESS).fetchone() == (1,)


def test_streaming_cursor_runs_writes_and_transactions_like_any_cursor(
    cursor: db.Cursor, connection: db.Connection, table: str
) -> None:
    """It writes, sees the changes of its open transaction, takes factories, raises errors, and may leave rows."""
    cursor.execute(f"INSERT INTO {table}(name) VALUES ('a'), ('b')")
    assert connection.in_transaction
    assert cursor.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)
    connection.commit()
    cursor.row_factory = db.Row
    row = cursor.execute(f"SELECT name FROM {table} ORDER BY name").fetchone()
    assert row["name"] == "a"
    assert not connection.in_transaction
    cursor.row_factory = None
    cursor.execute(ENDLESS)
    assert cursor.fetchmany(5000)[-1] == (5000,)
    assert cursor.execute(f"SELECT name FROM {table} WHERE name = ?", ("b",)).fetchall() == [("b",)]
    with pytest.raises(db.OperationalError):
        cursor.execute("SELECT nothing FROM nowhere")
    with pytest.raises(db.OperationalError, match="overflow"):
        cursor.execute("SELECT abs(column1) FROM (VALUES (1), (-9223372036854775808))").fetchall()
    cursor.execute(ENDLESS)
    cursor.close()
    with pytest.raises(db.ProgrammingError):
        cursor.fetchone()
    left_open = connection.cursor(db.StreamingCursor)
    left_open.execute(ENDLESS)
    connection.close()
    with pytest.raises(db.ProgrammingError):
        left_open.fetchall()
    left_open.close()
