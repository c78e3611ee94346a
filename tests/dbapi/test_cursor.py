"""PEP 249, "Cursor objects": attributes and methods, clause by clause."""

import math

import pytest

import bedrockish.dbapi as db

pytestmark = pytest.mark.cluster


def fill(connection: db.Connection, table: str, count: int = 5) -> db.Cursor:
    rows = [(number, f"n{number}") for number in range(1, count + 1)]
    return connection.executemany(f"INSERT INTO {table}(id, name) VALUES (?, ?)", rows)


def test_description_has_seven_items_for_each_column(connection: db.Connection, table: str) -> None:
    """Name and type code are set; the other five may be None. A result without rows has a description, too."""
    cursor = connection.cursor()
    assert cursor.description is None
    cursor.execute(f"SELECT id, name AS other FROM {table}")
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["id", "other"]
    assert all(len(column) == 7 for column in cursor.description)
    assert all(column[2:] == (None,) * 5 for column in cursor.description)


def test_description_is_none_without_a_result(connection: db.Connection, table: str) -> None:
    cursor = connection.execute("SELECT 1")
    cursor.execute(f"INSERT INTO {table}(id) VALUES (1)")
    assert cursor.description is None


def test_rowcount_is_that_of_the_last_statement(connection: db.Connection, table: str) -> None:
    """The count is -1 before a statement and if it is unknown; otherwise it is that of the last statement."""
    cursor = connection.cursor()
    assert cursor.rowcount == -1
    cursor.execute(f"CREATE TABLE {table}x(a)")
    assert cursor.rowcount == -1
    assert fill(connection, table).rowcount == 5
    assert cursor.execute(f"UPDATE {table} SET amount = 1 WHERE id < 3").rowcount == 2
    assert cursor.execute(f"DELETE FROM {table} WHERE id = 77").rowcount == 0
    assert cursor.execute(f"SELECT * FROM {table}").rowcount == -1
    assert cursor.execute(f"DELETE FROM {table} RETURNING id").rowcount == 5


def test_callproc_and_nextset_are_absent(connection: db.Connection) -> None:
    """PEP 249 makes both methods optional: SQLite has no procedures, and one statement has one result."""
    assert not hasattr(connection.cursor(), "callproc")
    assert not hasattr(connection.cursor(), "nextset")


def test_close_makes_the_cursor_unusable(connection: db.Connection) -> None:
    cursor = connection.execute("SELECT 1")
    cursor.close()
    cursor.close()
    for use in (
        cursor.fetchone,
        cursor.fetchall,
        cursor.fetchmany,
        lambda: cursor.execute("SELECT 1"),
        cursor.__next__,
    ):
        with pytest.raises(db.Error, match="cursor is closed"):
            use()


def test_cursors_of_a_closed_connection_are_unusable(url: str) -> None:
    connection = db.connect(url)
    cursor = connection.execute("SELECT 1")
    connection.close()
    with pytest.raises(db.Error, match="connection is closed"):
        cursor.fetchone()


def test_parameters_by_position_and_by_name(connection: db.Connection) -> None:
    assert connection.execute("SELECT ?, ?", (1, "b")).fetchone() == (1, "b")
    assert connection.execute("SELECT ?2, ?1", [1, 2]).fetchone() == (2, 1)
    assert connection.execute("SELECT :a, @b, $a", {"a": 1, "b": 2}).fetchone() == (1, 2, 1)
    assert connection.execute("SELECT ?", (value for value in (7,))).fetchone() == (7,)
    for wrong in ((1,), (1, 2, 3), {"a": 1}):
        with pytest.raises(db.ProgrammingError):
            connection.execute("SELECT ?, ?", wrong)
    for shape in ("abc", b"abc", 5):  # sqlite3 takes "ab" as two values
        with pytest.raises(db.ProgrammingError, match="sequence or a map"):
            connection.execute("SELECT ?, ?", shape)


@pytest.mark.parametrize(
    "value",
    [None, 0, -1, 2**63 - 1, -(2**63), 0.1, 1e308, -0.0, math.inf, "", "é\0日本🙂", "'", b"", b"\0\xff", "x" * 100_000],
)
def test_values_are_returned_exactly_as_stored(connection: db.Connection, value: object) -> None:
    (found,) = connection.execute("SELECT ?", (value,)).fetchone()
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)


def test_values_of_similar_types_are_stored_as_by_sqlite3(connection: db.Connection) -> None:
    class Text(str):
        pass

    row = connection.execute("SELECT ?, ?, ?, ?, ?", (True, bytearray(b"a"), memoryview(b"b"), Text("c"), math.nan))
    assert row.fetchone() == (1, b"a", b"b", "c", None)


def test_values_that_cannot_be_stored_are_refused(connection: db.Connection) -> None:
    with pytest.raises(db.DataError, match="64 bits"):
        connection.execute("SELECT ?", (2**63,))
    with pytest.raises(db.ProgrammingError, match="register_adapter"):
        connection.execute("SELECT ?", (object(),))
    with pytest.raises(db.Error):
        connection.execute("SELECT ?", ("\ud800",))


def test_integer_of_5000_digits_is_a_data_error(connection: db.Connection) -> None:
    """Python refuses to write out so many digits, even in the text of an error."""
    with pytest.raises(db.DataError, match=r"^an integer of 16610 bits has more than 64 bits"):
        connection.execute("SELECT ?", (10**5_000,))


def test_executemany_takes_any_iterable_and_has_no_result(connection: db.Connection, table: str) -> None:
    """``executemany`` accepts any sequence or iterator of parameters, and does nothing for an empty one."""
    cursor = connection.cursor()
    cursor.executemany(f"INSERT INTO {table}(id) VALUES (?)", ((number,) for number in range(2500)))
    assert cursor.rowcount == 2500
    assert cursor.description is None
    cursor.executemany(
        f"UPDATE {table} SET name = :name WHERE id = :id", [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}]
    )
    assert cursor.rowcount == 2
    assert cursor.executemany(f"DELETE FROM {table} WHERE id = ?", []).rowcount == 0
    with pytest.raises(db.ProgrammingError, match="write only"):
        cursor.executemany("SELECT ?", [(1,)])


def test_executemany_fills_a_table_that_its_transaction_has_made(connection: db.Connection, table: str) -> None:
    """The nodes get such rows as a few statements of many rows; a failed one still keeps the rows before it."""
    connection.execute("BEGIN")
    connection.execute(f"CREATE TABLE {table}_made(a UNIQUE, b)")
    cursor = connection.executemany(f"INSERT INTO {table}_made VALUES (?, ?)", ((i, "it's") for i in range(1200)))
    assert cursor.rowcount == 1200
    with pytest.raises(db.IntegrityError):
        connection.executemany(f"INSERT INTO {table}_made VALUES (?, NULL)", [(1200,), (1201,), (3,), (1202,)])
    assert connection.execute(f"INSERT INTO {table}_made VALUES (-1, ?)", (b"x",)).lastrowid == 1203
    connection.commit()
    found = connection.execute(f"SELECT rowid, a, b FROM {table}_made ORDER BY rowid").fetchall()
    assert found == [(i + 1, i, "it's" if i < 1200 else None) for i in range(1202)] + [(1203, -1, b"x")]
    connection.execute(f"DROP TABLE {table}_made")


def test_executemany_without_transactions_is_all_or_nothing(connection: db.Connection, table: str) -> None:
    connection.autocommit = True
    for count in (3, 1500):
        with pytest.raises(db.IntegrityError):
            connection.executemany(f"INSERT INTO {table}(id) VALUES (?)", [(n,) for n in range(count)] + [(0,)])
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.executemany(f"INSERT INTO {table}(id) VALUES (?)", [(n,) for n in range(1500)])
    assert not connection.in_transaction
    assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (1500,)


def test_fetchone_returns_one_row_and_then_none(connection: db.Connection, table: str) -> None:
    """``fetchone`` returns one row after the other, and then None at each call."""
    fill(connection, table, 2)
    cursor = connection.execute(f"SELECT id FROM {table} ORDER BY id")
    assert [cursor.fetchone() for _ in range(4)] == [(1,), (2,), None, None]


def test_fetchmany_returns_as_many_rows_as_requested(connection: db.Connection, table: str) -> None:
    """The default is ``arraysize``, which is 1 at first; at the end of the result ``fetchmany`` returns fewer rows,
    then none.
    """
    fill(connection, table)
    cursor = connection.execute(f"SELECT id FROM {table} ORDER BY id")
    assert cursor.arraysize == 1
    assert cursor.fetchmany() == [(1,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(2,), (3,)]
    assert cursor.fetchmany(size=10) == [(4,), (5,)]
    assert cursor.fetchmany() == []
    with pytest.raises(db.ProgrammingError):
        cursor.fetchmany(-1)


def test_fetchall_returns_the_rest_of_the_rows(connection: db.Connection, table: str) -> None:
    """``fetchall`` returns the rest of the rows, and then an empty sequence."""
    fill(connection, table, 3)
    cursor = connection.execute(f"SELECT id FROM {table} ORDER BY id")
    cursor.fetchone()
    assert cursor.fetchall() == [(2,), (3,)]
    assert cursor.fetchall() == []


def test_fetched_result_survives_delete_and_rollback(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    fill(connection, table)
    connection.commit()
    cursor = connection.execute(f"SELECT id FROM {table} ORDER BY id")
    first = cursor.fetchone()
    other.execute(f"DELETE FROM {table}")
    connection.rollback()
    assert [first, *cursor.fetchall()] == [(1,), (2,), (3,), (4,), (5,)]


def test_cursor_is_its_own_iterator_and_has_a_rownumber(connection: db.Connection, table: str) -> None:
    """Optional extensions of PEP 249: a cursor is its own iterator, and has the number of its row."""
    fill(connection, table, 3)
    cursor = connection.execute(f"SELECT id FROM {table} ORDER BY id")
    assert iter(cursor) is cursor
    assert cursor.rownumber == 0
    assert next(cursor) == (1,)
    assert cursor.rownumber == 1
    assert list(cursor) == [(2,), (3,)]
    assert connection.cursor().rownumber is None


def test_setinputsizes_and_setoutputsize_are_accepted(connection: db.Connection) -> None:
    """setinputsizes and setoutputsize may do nothing, and must be there."""
    cursor = connection.cursor()
    cursor.setinputsizes([None, 20])
    cursor.setoutputsize(1000)
    cursor.setoutputsize(1000, 1)
    assert cursor.execute("SELECT 1").fetchone() == (1,)


def test_cursor_has_the_attribute_connection(connection: db.Connection) -> None:
    assert connection.cursor().connection is connection


def test_lastrowid_is_that_of_the_last_insert(connection: db.Connection, table: str) -> None:
    """Optional extension of PEP 249: the last row that this cursor's execute inserted; other statements do not change
    it.
    """
    cursor = connection.cursor()
    assert cursor.lastrowid is None
    cursor.execute(f"INSERT INTO {table}(id, name) VALUES (41, 'a')")
    assert cursor.lastrowid == 41
    cursor.execute(f"INSERT INTO {table}(name) VALUES ('b')")
    given = cursor.lastrowid
    assert connection.execute(f"SELECT name FROM {table} WHERE id = ?", (given,)).fetchone() == ("b",)
    connection.execute(f"INSERT INTO {table}(id) VALUES (99999)")
    cursor.execute("SELECT 1")
    cursor.execute(f"UPDATE {table} SET amount = 1")
    cursor.execute(f"WITH x AS (SELECT 1) DELETE FROM {table} WHERE id = 5")
    cursor.executemany(f"INSERT INTO {table}(name) VALUES (?)", [("c",)])
    assert cursor.lastrowid == given
    cursor.execute(f"REPLACE INTO {table}(id, name) VALUES (41, 'z')")
    assert cursor.lastrowid == 41


def test_lastrowid_after_an_upsert_that_updates_is_that_of_the_connection(
    connection: db.Connection, table: str
) -> None:
    """As in sqlite3, a cursor takes SQLite's value after each INSERT, even if the INSERT has added no row."""
    connection.execute(f"CREATE UNIQUE INDEX {table}_name ON {table}(name)")
    upsert = f"INSERT INTO {table}(id, name) VALUES (5, 'z') ON CONFLICT (name) DO UPDATE SET id = 6"
    assert connection.execute(upsert).lastrowid
    given = connection.execute(f"INSERT INTO {table}(name) VALUES ('last')").lastrowid
    assert connection.execute(upsert).lastrowid == given
    connection.commit()
    assert connection.execute(f"INSERT OR IGNORE INTO {table}(name) VALUES ('z')").lastrowid == given


def test_execute_refuses_several_statements(connection: db.Connection, table: str) -> None:
    connection.execute("SELECT ';' -- ; no\n ; ").fetchall()
    with pytest.raises(db.ProgrammingError, match="executescript"):
        connection.execute("SELECT 1; SELECT 2")
    connection.execute(f"CREATE TRIGGER {table}_t AFTER INSERT ON {table} BEGIN SELECT 1; SELECT 2; END;")
    with pytest.raises(TypeError, match="SQL text"):
        connection.execute(5)  # type: ignore[arg-type]


def test_executescript_commits_and_runs_each_statement(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    """The script commits the open transaction first, then each statement alone; an error keeps earlier statements."""
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.executescript(
        f"""
        INSERT INTO {table}(id, name) VALUES (2, 'a;b'); -- one; two
        CREATE TRIGGER {table}_d AFTER DELETE ON {table} BEGIN
          INSERT INTO {table}(name) VALUES ('gone'); SELECT 1;
        END;
        BEGIN; INSERT INTO {table}(id) VALUES (3); ROLLBACK;
        DELETE FROM {table} WHERE id = 1
        """
    )
    assert not connection.in_transaction
    assert other.execute(f"SELECT name FROM {table} ORDER BY name").fetchall() == [("a;b",), ("gone",)]
    with pytest.raises(db.IntegrityError):
        connection.executescript(f"INSERT INTO {table}(id) VALUES (9); INSERT INTO {table}(id) VALUES (9); SELEC")
    assert other.execute(f"SELECT count(*) FROM {table} WHERE id = 9").fetchone() == (1,)


@pytest.mark.parametrize(("bad", "error"), [("\0", ValueError), ("'\ud8ff'", UnicodeEncodeError)])
def test_executescript_rejects_an_unencodable_script_whole(
    connection: db.Connection, table: str, bad: str, error: type[Exception]
) -> None:
    """The errors are those of sqlite3, and no statement of the script has run."""
    with pytest.raises(error):
        connection.executescript(f"INSERT INTO {table}(id) VALUES (7); {bad}; SELECT 1")
    assert connection.execute(f"SELECT count(*) FROM {table} WHERE id = 7").fetchone() == (0,)


def test_row_factory_is_called_for_each_row(connection: db.Connection) -> None:
    cursor = connection.cursor()
    connection.row_factory = db.Row
    row = connection.execute("SELECT 1 AS one, 2 AS Two").fetchone()
    assert isinstance(row, db.Row)
    assert (row["one"], row["TWO"], row[-1], row[:1]) == (1, 2, 2, (1,))
    assert (row.keys(), tuple(row), len(row), dict(row)) == (["one", "Two"], (1, 2), 2, {"one": 1, "Two": 2})
    assert row == connection.execute("SELECT 1 AS one, 2 AS Two").fetchone()
    assert hash(row) == hash(connection.execute("SELECT 1 AS one, 2 AS Two").fetchone())
    assert row != connection.execute("SELECT 1 AS one, 3 AS Two").fetchone()
    with pytest.raises(IndexError, match="no column is named"):
        row["three"]
    assert cursor.execute("SELECT 1").fetchone() == (1,), "cursors keep the factory that they were made with"
    cursor.row_factory = lambda cursor, row: {c[0]: v for c, v in zip(cursor.description or (), row, strict=True)}
    assert cursor.execute("SELECT 5 AS five").fetchall() == [{"five": 5}]


def test_text_factory_is_called_for_each_text(connection: db.Connection) -> None:
    connection.text_factory = bytes
    assert connection.execute("SELECT 'é', 1").fetchone() == ("é".encode(), 1)
    connection.text_factory = lambda data: data.decode().upper()
    assert connection.execute("SELECT 'é', 1").fetchone() == ("É", 1)
