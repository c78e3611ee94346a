"""PEP 249, "Connection objects", and the habits of sqlite3 about transactions."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import Any

import pytest
import sqlite_utils

import bedrockish.dbapi as db
from bedrockish import connect
from tests.dbapi.conftest import BY_URL

pytestmark = pytest.mark.cluster


def count(connection: db.Connection, table: str) -> int:
    (found,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert isinstance(found, int)
    return found


def test_closing_a_connection_rolls_back_and_ends_it(url: str, table: str, other: db.Connection) -> None:
    """Uncommitted changes are rolled back; afterwards every use raises; closing again is allowed."""
    connection = db.connect(url)
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.close()
    connection.close()
    assert count(other, table) == 0
    uses = (connection.cursor, connection.commit, connection.rollback, connection.ping, connection.__enter__)
    for use in uses:
        with pytest.raises(db.Error, match="connection is closed"):
            use()


@pytest.mark.parametrize("state", ["in_transaction", "total_changes", "isolation_level"])
def test_closed_connection_refuses_the_attributes_that_sqlite3_refuses(url: str, state: str) -> None:
    """Drivers with a pool of their own find a closed connection by this error, and open another one."""
    with closing(db.connect(url)) as ours, closing(sqlite3.connect(":memory:")) as theirs:
        ours.close()
        theirs.close()
        with pytest.raises(sqlite3.ProgrammingError):
            getattr(theirs, state)
        with pytest.raises(db.ProgrammingError, match="connection is closed"):
            getattr(ours, state)


def test_other_connections_see_rows_after_commit_only(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    """Autocommit is off at first: nothing is seen by others before commit, and rollback rolls it back."""
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    assert count(other, table) == 0
    connection.commit()
    assert count(other, table) == 1
    connection.execute(f"INSERT INTO {table}(id) VALUES (2)")
    connection.rollback()
    connection.commit()
    connection.rollback()
    assert count(other, table) == 1


def test_cursors_of_a_connection_share_its_transaction(connection: db.Connection, table: str) -> None:
    connection.cursor().execute(f"INSERT INTO {table}(id) VALUES (1)")
    assert connection.cursor().execute(f"SELECT id FROM {table}").fetchall() == [(1,)]


def test_block_commits_or_rolls_back_and_stays_open(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    with connection:
        connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    with pytest.raises(db.IntegrityError), connection:
        connection.executemany(f"INSERT INTO {table}(id) VALUES (?)", [(2,), (1,)])
    assert not connection.closed
    assert other.execute(f"SELECT id FROM {table}").fetchall() == [(1,)]


def test_a_block_whose_commit_fails_is_rolled_back(connection: db.Connection, table: str, other: db.Connection) -> None:
    """A deferred foreign key is violated. The next block is not affected, as with sqlite3."""
    connection.execute(
        f"CREATE TABLE {table}c(id INTEGER PRIMARY KEY, up REFERENCES {table} DEFERRABLE INITIALLY DEFERRED)"
    )
    with pytest.raises(db.IntegrityError), connection:
        connection.execute(f"INSERT INTO {table}c VALUES (1, 9)")
    assert not connection.in_transaction
    with connection:
        connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    assert count(other, table) == 1
    assert count(other, f"{table}c") == 0


def test_only_statements_that_write_open_a_transaction(connection: db.Connection, table: str) -> None:
    for sql in (f"SELECT * FROM {table}", f"CREATE TABLE {table}y(a)", f"PRAGMA table_info({table})"):
        connection.execute(sql)
        assert not connection.in_transaction, sql
    for sql in (
        f"INSERT INTO {table}(id) VALUES (1)",
        f"/* x */ UPDATE {table} SET amount = 1",
        f"WITH x AS (SELECT 1 AS id) INSERT INTO {table}(id) SELECT id + 1 FROM x",
        f"DELETE FROM {table}",
        f"REPLACE INTO {table}(id) VALUES (1)",
    ):
        connection.execute(sql)
        assert connection.in_transaction, sql
        connection.rollback()


def test_isolation_level_none_leaves_transactions_to_sql(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.isolation_level = None  # commits, as in sqlite3
    assert count(other, table) == 1
    connection.execute(f"INSERT INTO {table}(id) VALUES (2)")
    assert (connection.in_transaction, count(other, table)) == (False, 2)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"INSERT INTO {table}(id) VALUES (3)")
    assert (connection.in_transaction, count(other, table)) == (True, 2)
    with pytest.raises(db.OperationalError, match="within a transaction"):
        connection.execute("BEGIN")
    connection.execute("ROLLBACK")
    assert (connection.in_transaction, count(other, table)) == (False, 2)
    for sql in ("COMMIT", "ROLLBACK"):
        with pytest.raises(db.OperationalError, match="no transaction is active"):
            connection.execute(sql)


def test_savepoints_are_released_and_rolled_back(connection: db.Connection, table: str, other: db.Connection) -> None:
    connection.isolation_level = None
    connection.execute("SAVEPOINT a")
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.execute("SAVEPOINT b")
    connection.execute(f"INSERT INTO {table}(id) VALUES (2)")
    connection.execute("ROLLBACK TO b")
    connection.execute("RELEASE b")
    with pytest.raises(db.OperationalError, match="no such savepoint"):
        connection.execute("RELEASE b")
    assert count(other, table) == 0
    connection.execute("RELEASE a")  # the savepoint began the transaction, so its release commits
    assert not connection.in_transaction
    assert other.execute(f"SELECT id FROM {table}").fetchall() == [(1,)]


def test_autocommit_decides_when_a_transaction_begins(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    connection.autocommit = True
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    assert count(other, table) == 1
    connection.autocommit = False
    connection.execute(f"SELECT * FROM {table}")
    assert connection.in_transaction
    other.execute(f"INSERT INTO {table}(id) VALUES (2)")
    assert count(connection, table) == 1, "a transaction that has begun to read sees no later commit"
    connection.rollback()
    assert count(connection, table) == 2
    connection.rollback()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_commit_and_rollback_end_a_transaction_of_begin_also_with_autocommit(
    connection: db.Connection, table: str, other: db.Connection, ends: str
) -> None:
    connection.autocommit = True
    connection.execute("BEGIN")
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    getattr(connection, ends)()
    assert not connection.in_transaction
    assert count(other, table) == (1 if ends == "commit" else 0)
    connection.autocommit = False
    assert not connection.in_transaction, "it begins with its first statement"


def test_generator_of_parameters_that_raises_leaves_no_row(connection: db.Connection, table: str) -> None:
    def numbers() -> Iterator[tuple[int]]:
        yield (1,)
        raise KeyError

    with pytest.raises(KeyError):
        connection.executemany(f"INSERT INTO {table}(id) VALUES (?)", numbers())
    assert (count(connection, table), connection.in_transaction) == (0, False)


def test_schema_statements_are_part_of_the_open_transaction(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    connection.autocommit = False
    connection.execute(f"CREATE TABLE {table}z(a)")
    connection.execute(f"INSERT INTO {table}z VALUES (1)")
    assert count(connection, f"{table}z") == 1
    connection.rollback()
    with pytest.raises(db.OperationalError, match="no such table"):
        count(other, f"{table}z")
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.execute(f"CREATE TABLE {table}z(a UNIQUE)")
    connection.execute(f"INSERT INTO {table}z SELECT id FROM {table}")
    with pytest.raises(db.IntegrityError):
        connection.execute(f"INSERT INTO {table}z VALUES (1)")
    connection.commit()
    assert (count(other, table), count(other, f"{table}z")) == (1, 1)
    other.execute("BEGIN")
    other.execute(f"INSERT INTO {table}z VALUES (2)")
    other.execute(f"DROP TABLE {table}z")
    other.rollback()
    assert count(connection, f"{table}z") == 1
    connection.rollback()
    other.execute(f"CREATE INDEX {table}i ON {table}z(a)")  # outside a transaction it is one of its own
    connection.execute(f"DROP TABLE {table}z")
    connection.commit()


def test_foreign_keys_off_holds_during_schema_changes(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    """A table with references to it is rebuilt, with and without an open transaction before the PRAGMA."""
    connection.execute(f"CREATE TABLE {table}c(up REFERENCES {table}(id) ON DELETE CASCADE)")
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.execute(f"INSERT INTO {table}c VALUES (1)")
    connection.commit()
    connection.execute("PRAGMA foreign_keys = 2")  # each number except 0 switches on, as in SQLite
    assert connection.execute("PRAGMA foreign_keys").fetchall() == [(1,)]
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA legacy_alter_table = OFF")
    assert connection.execute("PRAGMA foreign_keys").fetchall() == [(0,)]
    connection.execute("BEGIN")
    connection.execute("PRAGMA foreign_keys = ON")  # no effect in a transaction, as in SQLite
    assert connection.execute("PRAGMA foreign_keys").fetchall() == [(0,)]
    connection.execute(f"CREATE TABLE {table}n(id INTEGER PRIMARY KEY, name TEXT)")
    connection.execute(f"INSERT INTO {table}n(id) SELECT id FROM {table}")
    connection.execute(f"DROP TABLE {table}")
    connection.execute(f"ALTER TABLE {table}n RENAME TO {table}")
    connection.commit()
    assert (count(other, table), count(other, f"{table}c")) == (1, 1)
    with pytest.raises(db.IntegrityError):
        connection.execute(f"INSERT INTO {table}c VALUES (99)")
    connection.rollback()
    connection.execute("PRAGMA foreign_keys = ON")
    other.execute(f"DROP TABLE {table}c")


def test_legacy_alter_table_keeps_the_view_of_a_rebuilt_table(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    """Without the PRAGMA, SQLite refuses RENAME while a view names a table that is missing at that moment."""
    legacy = "PRAGMA legacy_alter_table"
    connection.execute(f"INSERT INTO {table}(id, name) VALUES (1, 'a')")
    connection.commit()
    other.execute(f"CREATE VIEW {table}v AS SELECT name FROM {table}")
    with pytest.raises(db.NotSupportedError, match="send it after BEGIN"):
        connection.execute(f"{legacy} = ON")
    connection.execute("BEGIN")
    connection.execute(f"CREATE TABLE {table}n(id INTEGER PRIMARY KEY, name TEXT, more DEFAULT 5)")
    connection.execute(f"INSERT INTO {table}n(id, name) SELECT id, name FROM {table}")
    connection.execute(f"DROP TABLE {table}")
    connection.execute(f"{legacy} = ON;")
    assert connection.execute(legacy).fetchall() == [(1,)]
    connection.execute(f"ALTER TABLE {table}n RENAME TO {table}")
    connection.execute(f"CREATE VIEW {table}x AS SELECT a FROM missing")
    with pytest.raises(db.OperationalError):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN more")
    connection.execute(f"{legacy} = OFF;")
    assert connection.execute(legacy).fetchall() == [(0,)]
    connection.commit()
    other.execute(f"DROP VIEW {table}x")
    assert other.execute(f"SELECT * FROM {table}v, {table}").fetchall() == [("a", 1, "a", 5)]
    other.execute(f"DROP VIEW {table}v")


def test_cascade_that_is_too_deep_deletes_nothing_in_a_schema_change(connection: db.Connection, table: str) -> None:
    """SQLite itself leaves a part of the rows deleted."""
    name = f"{table}tree"
    connection.execute(f"CREATE TABLE {name}(id INTEGER PRIMARY KEY, up REFERENCES {name} ON DELETE CASCADE)")
    numbers = "WITH z(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM z LIMIT 1200)"
    connection.execute(f"{numbers} INSERT INTO {name} SELECT i, nullif(i - 1, 0) FROM z")
    connection.commit()
    connection.execute("BEGIN")
    connection.execute(f"CREATE TABLE {name}made(x)")
    with pytest.raises(db.OperationalError):
        connection.execute(f"DELETE FROM {name} WHERE id = 2")
    connection.commit()
    assert count(connection, name) == 1200
    connection.rollback()
    connection.execute(f"DELETE FROM {name} WHERE id > 600")
    connection.commit()
    connection.execute(f"DROP TABLE {name}")
    connection.execute(f"DROP TABLE {name}made")


def test_sqlite_utils_transforms_tables_that_views_and_keys_name(url: str, table: str) -> None:
    connection: Any = db.connect(url)
    library: Any = sqlite_utils.Database(connection)
    made = library[table]
    library[f"{table}c"].create({"id": int, "up": int}, pk="id", foreign_keys=[("up", table, "id")])
    made.insert_all([{"id": 1, "name": "a", "amount": 1.5}, {"id": 2, "name": "b"}])
    library[f"{table}c"].insert({"id": 1, "up": 2})
    library.create_view(f"{table}v", f"SELECT id FROM {table}")
    made.transform(rename={"name": "title"}, drop=["data"], types={"amount": str})
    made.transform(drop=["amount"], keep_table=f"{table}kept")
    assert list(made.rows) == [{"id": 1, "title": "a"}, {"id": 2, "title": "b"}]
    assert [row["amount"] for row in library[f"{table}kept"].rows] == ["1.5", None]
    assert [row["id"] for row in library[f"{table}v"].rows] == [1, 2]
    assert [key.other_table for key in library[f"{table}c"].foreign_keys] == [table]
    assert connection.execute("PRAGMA legacy_alter_table").fetchall() == [(0,)]
    library[f"{table}v"].drop()
    for each in (f"{table}c", f"{table}kept"):
        library[each].drop()
    connection.close()


def test_schema_commits_option_commits_before_schema_statements(url: str, table: str, other: db.Connection) -> None:
    connection = db.connect(url, schema_commits=True)
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.execute(f"ALTER TABLE {table} ADD COLUMN more")
    connection.rollback()
    assert count(other, table) == 1
    connection.close()


def test_schema_commits_lets_a_table_be_rebuilt_through_a_temporary_one(url: str, table: str) -> None:
    """Older programs change a table in this way, and Ibis fills a table from a TEMP table."""
    rebuild = (
        f"CREATE TEMPORARY TABLE kept AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, more TEXT)",
        f"INSERT INTO {table}(id, more) SELECT id, 'm' || id FROM kept",
        "DROP TABLE kept",
    )
    connection = db.connect(url)
    connection.execute(f"INSERT INTO {table}(id) VALUES (1), (2)")
    connection.execute(rebuild[0])
    with pytest.raises(db.NotSupportedError, match="schema_commits=True"):
        connection.execute(rebuild[1])
    connection.rollback()
    connection.close()
    connection = db.connect(url, schema_commits=True)
    connection.execute(f"INSERT INTO {table}(id) VALUES (1), (2)")
    for sql in rebuild:
        connection.execute(sql)
    connection.commit()
    assert connection.execute(f"SELECT * FROM {table}").fetchall() == [(1, "m1"), (2, "m2")]
    connection.close()


def test_a_failed_statement_leaves_the_transaction_open(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    with pytest.raises(db.IntegrityError):
        connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.execute(f"INSERT INTO {table}(id) VALUES (2)")
    connection.commit()
    assert count(other, table) == 2


@BY_URL  # by path the transaction is lost only at COMMIT
def test_a_lost_transaction_must_be_rolled_back_before_anything_else(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    other.execute(f"INSERT INTO {table}(id, amount) VALUES (1, 100)")
    connection.autocommit = False
    assert connection.execute(f"SELECT amount FROM {table} WHERE id = 1").fetchone() == (100,)
    other.execute(f"UPDATE {table} SET amount = 50 WHERE id = 1")
    with pytest.raises(db.OperationalError) as caught:
        connection.execute(f"UPDATE {table} SET amount = 101 WHERE id = 1")
    assert (caught.value.code, caught.value.retry) == ("conflict", True)
    assert connection.in_transaction
    with pytest.raises(db.OperationalError):
        connection.execute(f"INSERT INTO {table}(id) VALUES (2)")
    connection.rollback()
    connection.execute(f"UPDATE {table} SET amount = amount + 1 WHERE id = 1")
    connection.commit()
    assert other.execute(f"SELECT * FROM {table}").fetchall() == [(1, None, 51.0, None)]


def test_commit_of_a_lost_transaction_raises_and_ends_the_transaction(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    other.execute(f"INSERT INTO {table}(id, amount) VALUES (1, 100)")
    connection.autocommit = False
    connection.execute(f"SELECT amount FROM {table} WHERE id = 1")
    connection.execute(f"INSERT INTO {table}(id) VALUES (2)")
    other.execute(f"UPDATE {table} SET amount = 50 WHERE id = 1")
    with pytest.raises(db.OperationalError) as caught:
        connection.commit()
    assert caught.value.retry
    assert not connection.in_transaction
    assert count(other, table) == 1


def test_snapshot_isolation_commits_though_a_read_row_has_changed(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    other.execute(f"INSERT INTO {table}(id, amount) VALUES (1, 100)")
    connection.autocommit, connection.isolation = False, "snapshot"
    connection.execute(f"SELECT amount FROM {table} WHERE id = 1")
    connection.execute(f"INSERT INTO {table}(id) VALUES (2)")
    other.execute(f"UPDATE {table} SET amount = 50 WHERE id = 1")
    connection.commit()
    assert count(other, table) == 2


def test_connection_has_total_changes_and_token(connection: db.Connection, table: str, url: str) -> None:
    connection.execute(f"INSERT INTO {table}(id) VALUES (1), (2)")
    connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(1,), (2,), (3,)])
    connection.commit()
    assert connection.total_changes == 4
    second = db.connect(url)
    second.token = connection.token
    assert count(second, table) == 0
    second.close()


def test_row_with_id_0_before_a_schema_change_is_no_conflict(connection: db.Connection, table: str) -> None:
    """An id of 0 leaves ``last_insert_rowid()`` as it was, on the private copy of the schema change, too."""
    connection.execute(f"INSERT INTO {table}(id) VALUES (9)")
    for number in (0, 8, 0):  # the last two run a text again
        connection.execute(f"REPLACE INTO {table}(id) VALUES (?)", (number,))
    connection.executemany(f"REPLACE INTO {table}(id) VALUES (?)", [(number,) for number in (7, 6, 5, 0, 4, 0)])
    connection.execute(f"CREATE INDEX {table}_amount ON {table}(amount)")
    connection.commit()
    assert connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall() == [(0,), *((n,) for n in range(4, 10))]


def test_transaction_whose_only_change_of_the_schema_failed_commits_its_rows(
    connection: db.Connection, table: str
) -> None:
    """The COMMIT must not be refused as if foreign keys were off."""
    connection.execute(f"INSERT INTO {table}(id, amount) VALUES (1, 5), (2, 5)")
    with pytest.raises(db.IntegrityError):
        connection.execute(f"CREATE UNIQUE INDEX {table}_failed ON {table}(amount)")
    with pytest.raises(db.OperationalError, match="already exists"):
        connection.execute(f"CREATE TABLE {table}(id)")
    connection.execute(f"INSERT INTO {table}(id, amount) VALUES (3, 6)")
    connection.commit()
    assert connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall() == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("definition", "change"),
    [
        ("CREATE INDEX {0}_i ON {0}(amount)", "ALTER TABLE {0} DROP COLUMN amount"),
        ("CREATE VIEW {0}_v AS SELECT amount FROM {0}", "ALTER TABLE {0} RENAME COLUMN data TO amount"),
    ],
)
def test_transaction_commits_after_an_alter_that_other_definitions_refuse(
    connection: db.Connection, table: str, other: db.Connection, definition: str, change: str
) -> None:
    connection.execute("BEGIN")
    connection.execute(definition.format(table))
    with pytest.raises(db.OperationalError, match="error in "):
        connection.execute(change.format(table))
    connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    connection.commit()
    assert other.execute(f"SELECT id FROM {table}").fetchall() == [(1,)]
    assert other.execute("SELECT count(*) FROM sqlite_schema WHERE name LIKE ?", (table + "__",)).fetchall() == [(1,)]


def test_schema_statement_that_changes_nothing_leaves_its_transaction_as_it_is(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    """A transaction that changes the schema refuses ``random()`` and needs a private copy of the database."""
    connection.execute(f"CREATE INDEX {table}_i ON {table}(name)")
    connection.execute("BEGIN")
    for sql in (
        f'CREATE TABLE IF NOT EXISTS main."{table.upper()}"(id)',
        f"CREATE VIEW IF NOT EXISTS {table} AS SELECT 1",
        f"CREATE UNIQUE INDEX IF NOT EXISTS {table}_i ON {table}(name);",
        f"DROP VIEW IF EXISTS main.{table}_missing",
    ):
        made = connection.execute(sql)
        assert (made.fetchall(), made.description, made.rowcount) == ([], None, -1)
    connection.execute(f"INSERT INTO {table}(name) VALUES (random())")
    for refused, why in (
        (f"CREATE TABLE IF NOT EXISTS {table}(bad syntax(", "incomplete input"),
        (f"CREATE INDEX IF NOT EXISTS {table}_i ON {table}_missing(x)", "no such table"),
    ):
        with pytest.raises(db.OperationalError, match=why):
            connection.execute(refused)
    connection.execute("COMMIT")
    assert count(other, table) == 1
    connection.execute("BEGIN")
    with pytest.raises(db.OperationalError, match="already an index"):
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table}_i(x)")
    with pytest.raises(db.OperationalError, match="use DROP TABLE"):
        connection.execute(f"DROP VIEW IF EXISTS {table}")
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table}_new(x)")
    connection.execute("COMMIT")
    assert count(other, f"{table}_new") == 0


def test_schema_statement_that_changes_nothing_commits_nothing(connection: db.Connection, url: str, table: str) -> None:
    connection.execute("PRAGMA optimize")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    with connect(url) as client:
        for sql in (
            f"CREATE TABLE IF NOT EXISTS {table}(id)",
            f"DROP VIEW IF EXISTS {table}_missing",
            f"PRAGMA user_version = {version}",
            "PRAGMA optimize",
        ):
            assert client.execute(sql).place is None
        assert client.execute(f"INSERT INTO {table} DEFAULT VALUES").place is not None


def test_answer_that_an_object_exists_does_not_outlive_the_object(
    connection: db.Connection, table: str, other: db.Connection
) -> None:
    connection.execute("BEGIN")
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table}(id)")
    other.execute(f"DROP TABLE {table}")
    with pytest.raises(db.OperationalError, match="the transaction did not happen") as caught, connection:
        connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
    assert caught.value.retry


@pytest.mark.parametrize(
    ("sql", "acts"),
    [
        ("UPDATE acted_on SET v = 5 WHERE id = 1", False),
        ("UPDATE acted_on SET (v, w) = (SELECT 1, id FROM acted_on)", False),
        ("UPDATE acted_on SET v = (SELECT n FROM acted_on_name WHERE acted_on.id = n), w = id == 7", False),  # Prefect
        ("UPDATE acted_on SET v = replace(v, 'a', 'b')", False),
        ("UPDATE acted_on SET (v, id) = (1, 2)", True),
        ("UPDATE acted_on SET v == 1, id == 2", True),
        ("UPDATE OR REPLACE acted_on SET v = 5", True),
        ("INSERT OR REPLACE INTO acted_on(id) VALUES (1)", True),
        ("WITH p AS (SELECT 1 AS n) UPDATE acted_on SET v = n FROM p WHERE acted_on.id = n", False),
        ("INSERT INTO acted_on(id, v) VALUES (1, 2) ON CONFLICT(id) DO UPDATE SET v = excluded.v", False),
        ("INSERT INTO acted_on(id, v) VALUES (1, 2) ON CONFLICT(id) DO UPDATE SET id = 3", True),
        ('UPDATE "Acted_On" SET v = 1, "ID" = 2', True),
        ("UPDATE acted_on SET rowid = 2", True),
        ("UPDATE acted_on SET v = 1 IS DISTINCT FROM 2, id = 2", True),
        ("UPDATE acted_on SET v = (SELECT 1 FROM pragma_user_version WHERE 1), id = 2", True),
        ("UPDATE acted_on_name SET n = 1", True),
        ("UPDATE computed SET n = 3", True),
        ("DELETE FROM acted_on", True),
        ("REPLACE INTO acted_on VALUES (1, 2, 3)", True),
        ("DELETE FROM plain", True),  # by two triggers
        ("INSERT INTO plain VALUES (1)", True),  # no trigger fires at an INSERT, but the statement names their table
    ],
)
def test_updates_with_foreign_keys_off_are_refused_if_they_may_change_a_key(url: str, sql: str, acts: bool) -> None:
    """Airflow fills a column of a parent between OFF and the rebuilding of its table."""
    with closing(db.connect(url, isolation_level=None)) as connection:
        connection.executescript(
            "CREATE TABLE IF NOT EXISTS acted_on(id INTEGER PRIMARY KEY, v, w);"
            "CREATE TABLE IF NOT EXISTS acted_on_name(n TEXT PRIMARY KEY);"
            "CREATE TABLE IF NOT EXISTS computed(n, twice AS (n * 2) STORED UNIQUE);"
            "CREATE TABLE IF NOT EXISTS acting(p REFERENCES acted_on ON DELETE CASCADE, "
            "n REFERENCES acted_on_name(N) ON UPDATE CASCADE, c REFERENCES computed(twice) ON UPDATE SET NULL);"
            "CREATE TABLE IF NOT EXISTS plain(n);"
            "CREATE TRIGGER IF NOT EXISTS first AFTER DELETE ON plain BEGIN UPDATE plain SET n = 1; END;"
            "CREATE TRIGGER IF NOT EXISTS second AFTER UPDATE ON plain BEGIN SELECT 1; DELETE FROM acted_on; END;"
            "PRAGMA foreign_keys = OFF"
        )
        with pytest.raises(db.NotSupportedError, match="would act") if acts else nullcontext():
            connection.execute(sql)


def test_transaction_with_foreign_keys_off_deletes_parents_before_it_changes_the_schema(url: str, table: str) -> None:
    with closing(db.connect(url)) as connection:
        connection.executescript(
            f"CREATE TABLE {table}_child(p REFERENCES {table} ON DELETE CASCADE);"
            f"INSERT INTO {table}(id) VALUES (1), (2); INSERT INTO {table}_child VALUES (1), (2);"
            "PRAGMA foreign_keys = OFF"
        )
        connection.execute(f"DELETE FROM {table} WHERE id = 1")
        connection.execute(f"UPDATE {table} SET id = 3 WHERE id = 2")
        assert connection.execute(f"SELECT count(*) FROM {table}_child").fetchone() == (2,)
        connection.execute(f"CREATE TABLE {table}_more(n)")
        connection.execute(f"UPDATE {table}_child SET p = 3")
        connection.commit()
        assert connection.execute(f"SELECT p FROM {table}_child").fetchall() == [(3,), (3,)]
        connection.execute(f"DELETE FROM {table}")
        connection.execute(f"CREATE TABLE {table}_last(n)")
        with pytest.raises(db.IntegrityError, match="FOREIGN KEY"):
            connection.commit()


def test_foreign_keys_stay_off_after_a_transaction_that_changes_the_schema(url: str, table: str) -> None:
    """Otherwise the foreign keys would act at the next statement, and delete rows that SQLite keeps."""
    with closing(db.connect(url, isolation_level=None)) as connection:
        connection.executescript(
            f"CREATE TABLE {table}_child(p REFERENCES {table} ON DELETE CASCADE);"
            f"INSERT INTO {table}(id) VALUES (1); INSERT INTO {table}_child VALUES (1);"
            "PRAGMA foreign_keys = OFF; BEGIN"
        )
        connection.execute(f"CREATE TABLE {table}_more(n)")
        connection.execute("COMMIT")
        with pytest.raises(db.NotSupportedError, match="would act"):
            connection.execute(f"DELETE FROM {table}")
        with pytest.raises(db.IntegrityError, match="FOREIGN KEY"):
            connection.execute(f"DROP TABLE {table}")
        assert connection.execute(f"SELECT p FROM {table}_child").fetchall() == [(1,)]


def test_a_session_with_temporary_tables_switches_foreign_keys_off(url: str, table: str) -> None:
    with closing(db.connect(url, isolation_level=None)) as connection:
        table += "_keys"
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(f"CREATE TABLE {table}(a PRIMARY KEY)")
        connection.execute(f"INSERT INTO {table} VALUES (1)")
        connection.execute("CREATE TEMP TABLE mine(a)")
        connection.execute(f"CREATE TABLE {table}_more(a REFERENCES {table})")
        connection.execute("ALTER TABLE mine ADD COLUMN b")
        connection.execute("BEGIN")
        connection.execute(f"INSERT INTO {table} VALUES (2)")
        connection.execute(f"UPDATE {table} SET a = a + 10")
        connection.execute("DROP TABLE mine")
        connection.execute("COMMIT")
        assert connection.execute(f"SELECT a FROM {table}").fetchall() == [(11,), (12,)]
        with pytest.raises(db.OperationalError, match="no such table: mine"):
            connection.execute("DROP TABLE mine")
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"DROP TABLE {table}_more")


def test_a_table_with_a_temporary_trigger_is_dropped(url: str, table: str, other: db.Connection) -> None:
    """DROP must remove the table from the database, and not from the session's own workspace only."""
    with closing(db.connect(url, isolation_level=None)) as connection:
        connection.execute(f"CREATE VIEW {table}_seen AS SELECT 1 AS a")
        connection.execute(f"CREATE TEMP TRIGGER one AFTER INSERT ON {table} BEGIN SELECT 1; END")
        connection.execute(f"CREATE TEMP TRIGGER two INSTEAD OF INSERT ON {table}_seen BEGIN SELECT 1; END")
        connection.execute(f"DROP VIEW {table}_seen")
        connection.execute(f"DROP TABLE {table}")
        for name in (table, f"{table}_seen"):
            with pytest.raises(db.OperationalError, match="no such table"):
                connection.execute(f"SELECT * FROM {name}")
        assert other.execute("SELECT name FROM sqlite_schema WHERE tbl_name LIKE ?", (f"{table}%",)).fetchall() == []


def test_refused_temporary_object_leaves_the_session_without_any(url: str) -> None:
    """The node never knew the session's name, so a later statement must not fail with lost TEMP objects."""
    with closing(db.connect(url, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for sql in ("DROP VIEW nowhere", "CREATE TEMP TABLE mine(a)"):
            with pytest.raises(db.Error):
                connection.execute(sql)
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        connection.execute("COMMIT")
        assert connection.execute("SELECT 2").fetchall() == [(2,)]
        connection.execute("CREATE TEMP TABLE mine(a)")
        connection.execute("INSERT INTO mine VALUES (3)")
        with pytest.raises(db.OperationalError, match="already exists"):
            connection.execute("CREATE TEMP TABLE mine(a)")
        assert connection.execute("SELECT a FROM mine").fetchall() == [(3,)]


def test_command_that_configures_an_index_runs_in_the_default_mode(
    connection: db.Connection, other: db.Connection
) -> None:
    """Such an INSERT opens no transaction, and takes part in none."""
    connection.executescript("DROP TABLE IF EXISTS words; CREATE VIRTUAL TABLE words USING fts5(a, b)")
    connection.execute("INSERT INTO words(words, rank) VALUES (?, ?)", ("rank", "bm25(3.0, 1.0)"))
    assert not connection.in_transaction
    assert other.execute("SELECT v FROM words_config WHERE k = 'rank'").fetchone() == ("bm25(3.0, 1.0)",)
    connection.execute("INSERT INTO words VALUES ('one', 'two')")
    with pytest.raises(db.NotSupportedError, match="commit first, and run it alone"):
        connection.execute("INSERT INTO words(words, rank) VALUES ('rank', 'bm25()')")
    connection.commit()
    assert other.execute("SELECT b FROM words('one')").fetchall() == [("two",)]
