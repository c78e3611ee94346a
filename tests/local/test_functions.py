"""Functions, aggregates and collations of the program, on a node's file."""

import gc
import itertools
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import apsw
import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, select, update

from bedrockish import dbapi
from bedrockish.engine.storage import system_tables
from bedrockish.local import connections
from bedrockish.local.program_functions import Registration
from bedrockish.local.reads import LocalReads
from bedrockish.local.workspace_pool import WorkspacePool
from tools.cluster import LocalCluster, LocalNode


class Longest:
    def __init__(self) -> None:
        self.found = ""

    def step(self, value: str) -> None:
        self.found = max(self.found, value, key=len)

    def finalize(self) -> str:
        return self.found


def by_length(left: str, right: str) -> int:
    return (len(left) - len(right)) << 40  # sqlite3 accepts an order of any size


@pytest.fixture
def db(node: LocalNode, table: str) -> Iterator[Any]:
    made = dbapi.connect(node.database)
    made.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, a TEXT)")
    made.execute(f"INSERT INTO {table} VALUES (1, 'three'), (2, 'xx'), (3, 'seventh')")
    made.commit()
    yield made
    made.close()


def test_functions_run_in_reads_and_in_open_transactions(db: Any, table: str) -> None:
    db.execute(f"SELECT count(*) FROM {table}").fetchone()
    db.create_function("twice", 1, lambda value: 2 * value)
    db.create_aggregate("longest", 1, Longest)
    db.create_collation("by_length", by_length)
    for _ in range(2):
        assert db.execute(f"SELECT twice(a) FROM {table} WHERE id = 2").fetchone() == ("xxxx",)
        assert db.execute(f"SELECT longest(a) FROM {table}").fetchone() == ("seventh",)
        rows = db.execute(f"SELECT id FROM {table} ORDER BY a COLLATE by_length DESC").fetchall()
        assert rows == [(3,), (1,), (2,)]
        db.execute(f"UPDATE {table} SET a = a WHERE id = 1")
        assert db.in_transaction
    db.create_function("thrice", 1, lambda value: 3 * value)
    db.execute(f"UPDATE {table} SET a = thrice(a) WHERE twice(id) = 4")
    db.commit()
    assert db.execute(f"SELECT a FROM {table} WHERE id = 2").fetchone() == ("xxxxxx",)
    db.execute(f"INSERT INTO {table} VALUES (twice(8), twice('y'))")
    db.commit()
    assert db.execute(f"SELECT a FROM {table} WHERE id = 16").fetchone() == ("yy",)


def test_aggregates_without_rows_are_null_as_in_sqlite3(db: Any, table: str) -> None:
    db.create_aggregate("longest", 1, Longest)
    db.create_window_function("longest_window", 1, Longest)
    for name in ("longest", "longest_window"):
        assert db.execute(f"SELECT {name}(a) FROM {table} WHERE id = 0").fetchone() == (None,)


def test_function_that_raises_gives_the_error_of_sqlite3(db: Any, table: str) -> None:
    db.create_function("broken", 0, lambda: 1 // 0)
    for begin in (False, True):
        if begin:
            db.execute(f"UPDATE {table} SET a = a WHERE id = 1")
        with pytest.raises(dbapi.OperationalError, match="user-defined function raised exception"):
            db.execute(f"SELECT broken() FROM {table}")
    db.rollback()


def test_overflow_in_a_function_or_aggregate_gives_the_error_of_sqlite3(db: Any, table: str) -> None:
    class Large:
        def step(self, value: Any) -> None:
            """Ignore the row."""

        def finalize(self) -> int:
            return 1 << 63

    def overflow() -> None:
        raise OverflowError("too large")

    db.create_function("overflow", 0, overflow)
    db.create_function("large", 0, lambda: 1 << 63)
    db.create_aggregate("largest", 1, Large)
    for begin in (False, True):
        if begin:
            db.execute(f"UPDATE {table} SET a = a WHERE id = 1")
        for called in ("overflow()", "large()", "largest(id)"):
            with pytest.raises(dbapi.DataError, match="string or blob too big") as caught:
                db.execute(f"SELECT {called} FROM {table}").fetchall()
            assert caught.value.sqlite_errorname == "SQLITE_TOOBIG"
    db.rollback()


def test_collation_that_is_not_callable_raises_type_error(db: Any) -> None:
    with pytest.raises(TypeError, match="parameter must be callable"):
        db.create_collation("wrong", 42)


@pytest.mark.parametrize("value", [object(), "\ud803"])
def test_function_whose_result_sqlite_cannot_store_gives_the_error_of_sqlite3(db: Any, value: Any) -> None:
    db.create_function("unstorable", 0, lambda: value)
    with pytest.raises(dbapi.OperationalError, match="user-defined function raised exception"):
        db.execute("SELECT unstorable()")


def test_removed_sql_function_raises_no_such_function(db: Any, table: str) -> None:
    db.create_function("mine", 0, lambda: 1)
    assert db.execute("SELECT mine()").fetchone() == (1,)
    db.create_function("mine", 0, None)
    # no advice, because the program has removed the function
    with pytest.raises(dbapi.Error, match=r"^no such function: mine$"):
        db.execute("SELECT mine()")


def test_function_in_the_schema_is_refused(db: Any, table: str) -> None:
    """The file must have the same meaning on every node."""
    db.create_function("mine", 1, lambda value: value, deterministic=True)
    with pytest.raises(dbapi.Error, match="the function mine exists in this program only, and the statement runs at"):
        db.execute(f"CREATE INDEX {table}i ON {table}(mine(a))")
    db.rollback()


def test_functions_of_sqlite_that_a_definition_calls_stay_in_place(db: Any, table: str) -> None:
    """Rows that the program's function of the same name had made would not fit the nodes' tables."""
    db.execute(f"CREATE TABLE {table}_g(id INTEGER PRIMARY KEY, a INT, g AS (power(a, 2)) UNIQUE)")
    db.execute(f"INSERT INTO {table}_g VALUES (1, 2)")
    db.commit()
    db.create_function("power", 2, lambda *_: 5)
    for number in (1, -1):
        db.create_function("Power", number, lambda *_: 6)
    db.create_function("power", 2, None)
    with pytest.raises(dbapi.IntegrityError), db:
        db.execute(f"INSERT INTO {table}_g VALUES (2, -2)")
    with db:
        db.execute(f"INSERT INTO {table}_g VALUES (3, 3)")
    assert db.execute(f"SELECT g FROM {table}_g ORDER BY id").fetchall() == [(4.0,), (9.0,)]


def test_schema_change_after_a_function_of_the_program_names_the_reason(db: Any, table: str) -> None:
    """A ConflictError would have the program run the transaction again without end."""
    db.create_function("mine", 1, lambda value: value)
    db.execute(f"UPDATE {table} SET a = mine(a)")
    with pytest.raises(dbapi.NotSupportedError, match=r"lacks mine, .* two transactions") as error:
        db.execute(f"CREATE TABLE {table}_new(a)")
    assert not error.value.retry
    db.rollback()
    db.execute(f"CREATE TABLE {table}_new(a)")
    db.execute(f"INSERT INTO {table}_new SELECT mine(a) FROM {table}")
    db.commit()
    assert db.execute(f"SELECT count(*) FROM {table}_new").fetchone() == (3,)


def test_write_outside_of_a_transaction_calls_a_function_that_the_node_lacks(db: Any, table: str) -> None:
    db.isolation_level = None
    db.create_function("twice", 1, lambda value: 2 * value)
    db.create_collation("by_length", by_length)
    assert db.execute(f"UPDATE {table} SET a = twice(a) WHERE id = 2").rowcount == 1
    assert db.execute(f"INSERT INTO {table} VALUES (twice(8), 'y') RETURNING id").fetchone() == (16,)
    assert db.execute(f"DELETE FROM {table} WHERE a = 'three' COLLATE by_length").rowcount == 1
    assert db.executemany(f"UPDATE {table} SET a = twice(?) WHERE id = ?", [("p", 2), ("q", 3)]).rowcount == 2
    assert not db.in_transaction
    assert db.execute(f"SELECT a FROM {table} ORDER BY id").fetchall() == [("pp",), ("qq",), ("y",)]
    with pytest.raises(dbapi.OperationalError, match=r"no such function: thrice.*or on this connection"):
        db.execute(f"UPDATE {table} SET a = thrice(a)")


def test_regexp_match_of_sqlalchemy_runs_in_the_program(db: Any, node: LocalNode, table: str) -> None:
    engine = create_engine(f"bedrockish:///{node.database}")
    rows = Table(table, MetaData(), Column("id", Integer, primary_key=True), Column("a", String))
    found = select(rows.c.id).where(rows.c.a.regexp_match("^(three|x+)$")).order_by(rows.c.id)
    changed = update(rows).where(rows.c.a.regexp_match("^s")).values(a="t")
    with engine.begin() as connection:
        assert connection.execute(found).scalars().all() == [1, 2]
        assert connection.execute(changed).rowcount == 1
        own = connection.connection.dbapi_connection
        assert own is not None
        own.create_function("regexp", 2, lambda _pattern, _text: True)  # the program's own has precedence
        assert len(connection.execute(found).all()) == 3
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.execute(changed).rowcount == 3
    engine.dispose()


def test_function_registered_by_url_is_not_called(alone: LocalCluster) -> None:
    with dbapi.connect(alone.url()) as db:
        db.create_function("mine", 0, lambda: 1)
        with pytest.raises(dbapi.NotSupportedError, match="the function mine"):
            db.execute("SELECT mine()")
    db.close()


class Running:
    """A sum over the frame of a window."""

    def __init__(self) -> None:
        self.total = 0

    def step(self, value: int) -> None:
        self.total += value

    def inverse(self, value: int) -> None:
        self.total -= value

    def value(self) -> int:
        return self.total

    def finalize(self) -> int:
        return self.total


def test_window_function_of_the_program_works_in_reads_and_writes(db: Any, table: str) -> None:
    db.create_window_function("running", 1, Running)
    sql = f"SELECT running(id) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM {table}"
    assert db.execute(sql).fetchall() == [(1,), (3,), (5,)]
    db.execute(f"INSERT INTO {table} SELECT 100 + running(id) OVER (ORDER BY id), 'w' FROM {table}")
    db.commit()
    assert db.execute(f"SELECT id FROM {table} WHERE id > 100 ORDER BY id").fetchall() == [(101,), (103,), (106,)]
    db.create_window_function("running", 1, None)
    with pytest.raises(dbapi.Error, match="running"):
        db.execute(sql)


LONG = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 3000000) SELECT count(*) FROM n"


@pytest.mark.parametrize("level", ["session", "strict"])
def test_progress_handler_ends_a_statement(node: LocalNode, db: Any, table: str, level: str) -> None:
    with closing(dbapi.connect(f"bedrockish:///?local={node.database}&read={level}")) as mine:
        asked, ticks = list[int](), itertools.count()
        mine.set_progress_handler(lambda: asked.append(1), 1_000)
        # on a busy machine no snapshot may be durable in time, and then the node executes the statement
        for _ in range(10):
            assert mine.execute(LONG).fetchone() == (3_000_000,)
            if asked:
                break
        assert len(asked) > 1_000
        mine.set_progress_handler(lambda: next(ticks) > 1_000, 100)
        with pytest.raises(dbapi.OperationalError, match="interrupted"):
            mine.execute(LONG)
        mine.execute("BEGIN")
        mine.execute(f"UPDATE {table} SET a = 'u' WHERE id = 1")
        with pytest.raises(dbapi.OperationalError, match="interrupted"):
            mine.execute(LONG)
        mine.rollback()
        mine.set_progress_handler(lambda: 1 / 0, 10)
        with pytest.raises(dbapi.OperationalError, match="interrupted"):
            mine.execute(LONG)
        mine.set_progress_handler(None, 0)
        assert mine.execute(f"SELECT a FROM {table} WHERE id = 1").fetchone() == ("three",)


@pytest.mark.parametrize("begin", ["", "BEGIN", "CREATE TEMP TABLE own(a)"])
def test_handler_that_closes_its_connection_ends_the_statement(
    node: LocalNode, table: str, db: Any, begin: str
) -> None:
    gc.collect()
    opened = len(connections._open)
    mine = dbapi.connect(node.database, isolation_level=None)
    mine.execute(begin or "SELECT 1")
    if begin == "BEGIN":
        mine.execute(f"UPDATE {table} SET a = 'u' WHERE id = 1")
    asked = list[int]()

    def ask() -> int:
        asked.append(1)
        if len(asked) == 3:
            mine.close()
        return 0

    mine.set_progress_handler(ask, 1_000)
    with pytest.raises(dbapi.ProgrammingError, match="closed"):
        mine.execute(LONG)
    assert 3 <= len(asked) < 100
    assert db.execute(f"SELECT a FROM {table} WHERE id = 1").fetchone() == ("three",)
    gc.collect()
    assert len(connections._open) <= opened, "its files are closed"


def test_names_that_differ_in_the_case_of_other_letters_are_two_functions(db: Any, table: str) -> None:
    """SQLite folds ASCII letters only."""
    db.create_function("Ä", 0, lambda: "upper")
    db.create_function("ä", 0, lambda: "lower")
    db.execute(f"UPDATE {table} SET a = Ä() || ä()")  # on another connection, which gets all functions
    assert db.execute(f"SELECT DISTINCT a FROM {table}").fetchall() == [("upperlower",)]


def test_function_may_be_registered_while_a_transaction_begins(node: LocalNode) -> None:
    with closing(LocalReads(str(node.database))) as reads:
        late = Registration(("function", "late", 0), lambda _: None)
        reads.registrations["early"] = Registration(("function", "early", 0), lambda _: reads.register(late))
        with closing(apsw.Connection(":memory:")) as db:
            system_tables.create(db)
            WorkspacePool(reads).prepare(db)
        assert reads.registrations[late.key] is late


def test_replaced_function_or_handler_is_not_kept(db: Any, table: str) -> None:
    """Programs set a progress handler around each query."""
    kept = []

    def made() -> Any:
        def function(*_: Any) -> int:
            return 0

        kept.append(weakref.ref(function))
        return function

    class Aggregate(Longest):
        pass

    for _ in range(5):
        db.create_function("Mine", 1, made())
        db.create_function("MINE", 2, made())
        db.create_collation("mine", made())
        db.set_progress_handler(made(), 1000)
        assert db.execute(f"SELECT mine(a), mine(a, a) FROM {table} ORDER BY a COLLATE mine").fetchone() == (0, 0)
    db.set_progress_handler(None, 0)
    db.create_aggregate("mine", 2, Aggregate)
    assert db.execute(f"SELECT mine(a) FROM {table}").fetchone() == (0,)
    db.execute(f"UPDATE {table} SET a = a")  # on other connections
    assert db.execute(f"SELECT mine(a) FROM {table}").fetchone() == (0,)
    db.commit()
    gc.collect()
    assert sum(one() is not None for one in kept) == 2


@pytest.mark.parametrize("begins", [False, True])
def test_declared_types_of_a_statement_with_an_own_function_or_file(
    node: LocalNode, table: str, tmp_path: Path, begins: bool
) -> None:
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as plain:
        plain.execute("CREATE TABLE days(day DATE)")
        plain.execute("INSERT INTO days VALUES ('2026-01-02')")
        plain.commit()
    with closing(dbapi.connect(node.database, detect_types=dbapi.PARSE_DECLTYPES, isolation_level=None)) as db:
        db.execute(f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, day DATE)")
        db.execute(f"INSERT INTO {table} VALUES (1, '2026-01-01')")
        if begins:
            db.execute("BEGIN")
        db.create_function("mine", 1, lambda value: value)
        first = [(date(2026, 1, 1), 1)]
        assert db.execute(f"SELECT day, mine(id) FROM {table}").fetchall() == first
        if begins:
            returning = f"UPDATE {table} SET id = mine(id) RETURNING day, id"
            assert db.execute(returning).fetchall() == first
            assert db.execute(returning).fetchall() == first
            db.execute("COMMIT")
        db.execute("ATTACH ? AS other", (str(other),))
        if begins:
            db.execute("BEGIN")
        assert db.execute("SELECT day FROM other.days").fetchall() == [(date(2026, 1, 2),)]
