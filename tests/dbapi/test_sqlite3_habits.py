"""The first lines of programs written for sqlite3: the same results, or an error that names an alternative."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import create_engine

import bedrockish.dbapi as db
from tests.dbapi.conftest import BY_URL

pytestmark = pytest.mark.cluster


def test_connect_accepts_the_arguments_of_sqlite3(url: str) -> None:
    """``connect`` accepts the arguments by position and by name, in sqlite3's order."""
    with_all = db.connect(url, 5.0, db.PARSE_DECLTYPES, "immediate", False, db.Connection, 100, True)
    assert (with_all.isolation_level, with_all.detect_types) == ("IMMEDIATE", db.PARSE_DECLTYPES)
    with_all.close()

    class Mine(db.Connection):
        """A connection of the program's."""

    named = db.connect(database=url, timeout=0, check_same_thread=False, factory=Mine, uri=True)
    assert isinstance(named, Mine)
    named.close()
    with pytest.raises(db.ProgrammingError, match="derived from Connection"):
        db.connect(url, factory=sqlite3.Connection)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_ours", [True, False])
def test_statement_that_does_not_compile_opens_no_transaction(
    made: db.Connection, other: db.Connection, is_ours: bool
) -> None:
    """Otherwise the program's reads would see an old state, and after a minute all its calls would be refused."""
    found: Any = made
    if not is_ours:
        found = sqlite3.connect(":memory:")
        found.execute("CREATE TABLE thing(id INTEGER PRIMARY KEY, a UNIQUE)")
    for wrong in (
        "INSERT INTO nowhere VALUES (?)",
        "UPDATE thing SET nothing = ?",
        "DELETE FROM thing WHERE nothing = ?",
    ):
        with pytest.raises((db.OperationalError, sqlite3.OperationalError)):
            found.execute(wrong, (1,))
        assert not found.in_transaction, wrong
        with pytest.raises((db.OperationalError, sqlite3.OperationalError)):
            found.executemany(wrong, [(1,), (2,)])
        assert not found.in_transaction, wrong
    found.execute("INSERT INTO thing(id, a) VALUES (77, 77)")
    with pytest.raises((db.OperationalError, sqlite3.OperationalError)):
        found.execute("INSERT INTO nowhere VALUES (1)")
    assert found.in_transaction, "the rows before it stay"
    found.rollback()
    found.rollback()
    for broken in ("INSERT INTO thing(id) VALUES ('x')", "INSERT INTO thing(id) VALUES (5), (5)"):
        with pytest.raises((db.IntegrityError, sqlite3.IntegrityError)):
            found.execute(broken)
        assert found.in_transaction, broken
        found.rollback()
    with pytest.raises((db.OperationalError, sqlite3.OperationalError), match="overflow"):
        found.executemany(
            "INSERT INTO thing(id) VALUES (? + abs(-9223372036854775807 - ?))", [(-(2**63) + 99, 0), (2, 1)]
        )
    assert found.execute("SELECT count(*) FROM thing WHERE id = 98").fetchone() == (1,)
    assert found.in_transaction, "the rows of its first runs stay"
    found.rollback()
    if is_ours:
        with contextlib.suppress(db.OperationalError):
            found.execute("INSERT INTO nowhere VALUES (1)")
        other.execute("INSERT INTO thing(id, a) VALUES (78, 78)")
        found.token = other.token
        assert found.execute("SELECT count(*) FROM thing WHERE id = 78").fetchone() == (1,)
    else:
        found.close()


@pytest.mark.parametrize(
    ("pragma", "tells"),
    [
        ("journal_mode=WAL", "wal"),
        ("journal_mode = DELETE", "wal"),
        ("journal_mode", "wal"),
        ("main.journal_mode", "wal"),
        ("synchronous=OFF", None),
        ("synchronous", 2),
        ("busy_timeout=5000", 0),
        ("cache_size=-20000", None),
        ("temp_store=MEMORY", None),
        ("mmap_size=268435456", 0),
        ("wal_checkpoint(TRUNCATE)", 0),
        ("locking_mode=EXCLUSIVE", "normal"),
        ("secure_delete=ON", 0),
        ("read_uncommitted", 0),
        ("auto_vacuum=FULL", None),
        ("foreign_keys=ON", None),
        ("foreign_keys", 1),
    ],
)
def test_common_pragmas_are_answered_truthfully(connection: db.Connection, pragma: str, tells: object) -> None:
    """The PRAGMAs change nothing, and programs that use them run unchanged."""
    found = connection.execute(f"PRAGMA {pragma}").fetchone()
    assert (None if found is None else found[0]) == tells
    assert not connection.in_transaction


@pytest.mark.parametrize(
    ("pragma", "way"),
    [
        ("trusted_schema=OFF", "leave it on"),
        ("ignore_check_constraints=ON", "drop the CHECK"),
        ("writable_schema=ON", "by ALTER, DROP and CREATE"),
        ("full_column_names=ON", "in the node's configuration"),
    ],
)
def test_pragmas_that_would_change_the_meaning_of_sql_are_refused(
    connection: db.Connection, pragma: str, way: str
) -> None:
    """Without an error, the program would assume that the PRAGMA is in force."""
    with pytest.raises(db.NotSupportedError, match=f"would change this node only; .*{way}"):
        connection.execute(f"PRAGMA {pragma}")


def test_query_only_refuses_writes_of_its_connection(made: db.Connection) -> None:
    """Reads still run; with the PRAGMA off, the connection writes again."""
    made.execute("PRAGMA query_only = 2")  # each number except 0 switches on, as in SQLite
    assert made.execute("PRAGMA query_only").fetchone() == (1,)
    before = made.execute("SELECT count(*) FROM thing").fetchone()
    for sql in ("DELETE FROM thing", "CREATE TABLE other(a)"):
        with pytest.raises(db.OperationalError, match="readonly database") as refused:
            made.execute(sql)
        assert refused.value.sqlite_errorname == "SQLITE_READONLY"
    with pytest.raises(db.OperationalError, match="readonly database"):
        made.executemany("INSERT INTO thing(a) VALUES (?)", [(7,), (8,)])
    with pytest.raises(db.OperationalError, match="readonly database"):
        made.executescript("PRAGMA foreign_keys = OFF; DROP TABLE child; PRAGMA foreign_keys = ON")
    assert made.execute("SELECT count(*) FROM thing").fetchone() == before
    made.execute("PRAGMA query_only = OFF")
    made.execute("CREATE TABLE other(a)")
    made.execute("INSERT INTO other VALUES (1)")
    assert made.execute("SELECT a FROM other").fetchone() == (1,)


@pytest.mark.parametrize("sql", ["BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT p", "RELEASE p", "ROLLBACK TO p", "-- no"])
def test_surplus_values_are_refused_before_the_statement_runs(made: db.Connection, sql: str) -> None:
    made.isolation_level = None
    made.execute("BEGIN")
    made.execute("SAVEPOINT p")
    made.execute("DELETE FROM child")
    with pytest.raises(db.ProgrammingError, match=r"1 value\(s\) were given"):
        made.execute(sql, (1,))
    assert made.in_transaction
    made.execute("ROLLBACK TO p")
    assert made.execute("SELECT count(*) FROM child").fetchone() == (1,)
    made.rollback()


def test_text_with_a_character_for_each_parameter_is_a_sequence(made: db.Connection) -> None:
    """Programs write ``("5")`` for ``("5",)``, which sqlite3 accepts by chance."""
    plain = sqlite3.connect(":memory:")
    for values in ("5", "\u00e9", "ab", b"x", bytearray(b"yz")):
        sql = f"SELECT {', '.join('?' * len(values))}"
        assert made.execute(sql, values).fetchall() == plain.execute(sql, values).fetchall()
    plain.close()
    with pytest.raises(db.ProgrammingError, match="for a single one write"):
        made.execute("SELECT ?", "55")


def test_surplus_named_values_are_ignored(made: db.Connection) -> None:
    made.isolation_level = None
    for sql in ("BEGIN", "SAVEPOINT p", "ROLLBACK TO p", "RELEASE p", "COMMIT"):
        made.execute(sql, {"name": 1})
    assert not made.in_transaction


def test_rowcount_of_a_definition_is_undefined_with_temporary_objects(made: db.Connection) -> None:
    made.execute("CREATE TEMP TABLE own(a)")
    assert made.execute("INSERT INTO own VALUES (1), (2)").rowcount == 2
    for sql in ("DROP INDEX IF EXISTS none", "CREATE TEMP TABLE copy AS SELECT a FROM own", "DROP TABLE copy"):
        assert made.execute(sql).rowcount == -1
    made.rollback()


def test_temporary_autoincrement_tables_have_their_own_ids(made: db.Connection) -> None:
    """Both schemas have a ``sqlite_sequence``; a table's ids come from that of its own schema."""
    made.isolation_level = None
    made.executescript(
        "DROP TABLE IF EXISTS kept; CREATE TABLE kept(id INTEGER PRIMARY KEY AUTOINCREMENT, a);"
        "CREATE TEMP TABLE numbered(id INTEGER PRIMARY KEY AUTOINCREMENT, a); CREATE INDEX temp.by_a ON numbered(a);"
        "INSERT INTO kept VALUES (1000, 'a'); DELETE FROM kept; INSERT INTO numbered(a) VALUES (1), (2); ANALYZE;"
    )
    assert made.execute("SELECT name, seq FROM temp.sqlite_sequence").fetchall() == [("numbered", 2)]
    assert made.execute("INSERT INTO kept(a) SELECT a FROM numbered RETURNING id > 1000").fetchall() == [(1,), (1,)]
    made.execute("DELETE FROM numbered")
    assert made.execute("INSERT INTO numbered(a) VALUES (3) RETURNING id").fetchall() == [(3,)]


@BY_URL
def test_error_for_a_missing_function_names_two_alternatives(connection: db.Connection) -> None:
    """The nodes do not have a program's function: the error names a plugin, and a connection by path."""
    for sql in ("SELECT mine(1)", "SELECT 'a' COLLATE mine ORDER BY 1 COLLATE mine"):
        with pytest.raises(db.OperationalError, match="by a plugin, or on this connection"):
            connection.execute(sql)
    connection.create_function("mine", 1, abs)
    with pytest.raises(db.NotSupportedError, match=r"into a plugin of the nodes .* by the path"):
        connection.execute("SELECT mine(1)")


def test_conflict_has_the_code_and_the_words_of_a_locked_database(url: str, made: db.Connection) -> None:
    made.execute("INSERT INTO thing(a) VALUES (4711)")
    made.commit()
    with db.connect(url) as other:
        for one, change in ((made, 1), (other, 2)):
            one.execute("UPDATE thing SET a = a + ? WHERE a = 4711", (change,))
        other.commit()
        with pytest.raises(db.OperationalError, match=r"run it again.*database is locked") as lost:
            made.commit()
    assert (lost.value.sqlite_errorcode, lost.value.sqlite_errorname, lost.value.retry) == (5, "SQLITE_BUSY", True)


def test_errors_have_sqlites_codes_and_classes(made: db.Connection) -> None:
    """Programs on sqlite3 distinguish errors by these texts."""
    with pytest.raises(db.IntegrityError) as unique:
        made.execute("INSERT INTO thing(a) VALUES (1)")
    assert unique.value.sqlite_errorname == "SQLITE_CONSTRAINT_UNIQUE"
    assert unique.value.sqlite_errorcode == db.SQLITE_CONSTRAINT_UNIQUE == sqlite3.SQLITE_CONSTRAINT_UNIQUE
    made.rollback()
    for sql in ("INSERT INTO thing(rowid) VALUES ('x')", "UPDATE thing SET rowid = 'x'"):
        with pytest.raises(db.IntegrityError, match="datatype mismatch") as mismatch:
            made.execute(sql)
        assert mismatch.value.sqlite_errorname == "SQLITE_MISMATCH"
    made.rollback()
    for sql in ("SELECT * FROM nowhere", "SELEC 1", "SELECT nothing FROM thing"):
        with pytest.raises(db.OperationalError) as wrong:
            made.execute(sql)
        assert (wrong.value.sqlite_errorcode, wrong.value.sqlite_errorname) == (1, "SQLITE_ERROR")
    made.execute("CREATE TABLE later(a REFERENCES thing(a) DEFERRABLE INITIALLY DEFERRED)")
    made.commit()
    made.execute("INSERT INTO later VALUES (12345)")
    with pytest.raises(db.IntegrityError) as broken:
        made.commit()
    assert broken.value.sqlite_errorname == "SQLITE_CONSTRAINT_FOREIGNKEY"
    made.rollback()
    made.execute("DROP TABLE later")
    with pytest.raises(db.DataError) as too_big:
        made.execute("SELECT zeroblob(2000000000)")
    assert too_big.value.sqlite_errorname == "SQLITE_TOOBIG"
    for params in ((), (1, 2)):
        with pytest.raises(db.ProgrammingError):
            made.execute("SELECT ?", params)
    with pytest.raises(AttributeError):
        _ = db.SQLITE_NO_SUCH_THING


def test_fetch_without_a_result_returns_no_rows(made: db.Connection) -> None:
    """An empty statement has no result."""
    cursor = made.cursor()
    assert (cursor.fetchone(), cursor.fetchall()) == (None, [])
    cursor.execute("UPDATE thing SET b = b")
    assert (cursor.fetchone(), cursor.fetchmany(3), cursor.fetchall(), list(cursor)) == (None, [], [], [])
    assert cursor.execute("").fetchone() is None
    assert cursor.execute(" -- nothing\n;").fetchall() == []


def test_begin_after_a_select_continues_the_open_transaction(url: str) -> None:
    """A program whose driver has opened a transaction for a SELECT sends BEGIN IMMEDIATE before it writes."""
    with db.connect(url, autocommit=False) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS after_select(x)")
        connection.commit()
        connection.execute("SELECT 1")
        connection.execute("BEGIN IMMEDIATE TRANSACTION")
        connection.execute("INSERT INTO after_select VALUES (1)")
        with pytest.raises(db.OperationalError, match="within a transaction"):
            connection.execute("BEGIN")
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM after_select").fetchone() == (0,)


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.create_function("lower", 1, abs),
        lambda c: c.create_function("jsonb_set", 3, max),
        lambda c: c.create_aggregate("SUM", 1, object),
        lambda c: c.create_window_function("rank", 1, object),
        lambda c: c.create_collation("NOCASE", lambda _a, _b: 0),
        lambda c: c.set_authorizer(print),
        lambda c: c.serialize(),
        lambda c: c.deserialize(b""),
        lambda c: c.getlimit(0),
        lambda c: c.setlimit(0, 1),
        lambda c: c.load_extension("crypto"),
        lambda c: c("SELECT 1"),
    ],
)
def test_unsupported_features_raise_typed_errors_with_a_way_out(
    connection: db.Connection, use: Callable[[Any], object]
) -> None:
    """The program gets a typed error, and no AttributeError later."""
    with pytest.raises(db.NotSupportedError, match=r"\w+ \w+ \w+"):
        use(connection)


@BY_URL
def test_progress_handler_is_refused(connection: db.Connection) -> None:
    with pytest.raises(db.NotSupportedError, match=r"\w+ \w+ \w+"):
        connection.set_progress_handler(print, 1)


@BY_URL
@pytest.mark.parametrize(
    ("register", "sql", "names"),
    [
        (lambda c: c.create_function("regexp", 2, max), "SELECT 'a' REGEXP 'b'", "the function regexp"),
        (lambda c: c.create_function(name="uuid4", narg=0, func=str), "SELECT uuid4()", "the function uuid4"),
        (lambda c: c.create_aggregate("middle", 2, object), "SELECT middle(1, 2)", "the aggregate middle"),
        (lambda c: c.create_window_function("mine", 1, object), "SELECT mine(1) OVER ()", "the window function mine"),
        (lambda c: c.create_collation("words", max), "SELECT 1 ORDER BY 'a' COLLATE words", "the collation words"),
    ],
)
def test_registered_functions_raise_in_statements_that_need_them(
    connection: db.Connection, register: Callable[[Any], object], sql: str, names: str
) -> None:
    """MLflow, Airflow, Peewee and Pony register functions right after they connect, and seldom use them."""
    register(connection)
    connection.create_function("power", 2, pow)
    connection.create_aggregate("median", 1, object)
    assert connection.execute("SELECT power(2, 3)").fetchone() == (8,)
    with pytest.raises(db.NotSupportedError, match=names):
        connection.execute(sql)
    with pytest.raises(db.OperationalError, match="no such function: unknown_one"):
        connection.execute("SELECT unknown_one()")


def test_case_sensitive_like_pragma_applies_to_later_statements(url: str) -> None:
    """Pony and MLflow set the PRAGMA as soon as they have connected."""
    dialect = "sqlite+bedrockish://"
    engine = create_engine(f"{dialect}/{url}" if url.startswith("/") else url.replace("bedrockish://", dialect))
    with closing(db.connect(url)) as connection, closing(engine.raw_connection()) as other:
        for one in (connection, other.dbapi_connection):
            assert one is not None
            cursor = one.cursor()
            cursor.execute("PRAGMA case_sensitive_like = true")
            assert cursor.execute("SELECT 'a' LIKE 'A', 'a' LIKE 'a'").fetchone() == (0, 1)
    engine.dispose()


def test_setting_a_callback_to_none_removes_it(connection: db.Connection) -> None:
    """A program removes a callback by None, as in sqlite3."""
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    connection.execute("SELECT 1")
    connection.set_trace_callback(None)
    connection.execute("SELECT 2")
    assert seen == ["SELECT 1"]
    connection.set_authorizer(None)
    connection.set_progress_handler(None, 1)
    connection.create_collation("f", None)
    connection.create_function("g", 1, len)
    connection.create_function("g", 1, None)
    with pytest.raises(db.OperationalError, match="no such function: g"):
        connection.execute("SELECT g(1)")
    assert db.complete_statement("SELECT 1;")
    assert db.adapt(1, None, 2) == 2
    with pytest.raises(db.OperationalError, match="no such table"):
        connection.blobopen("t", "x", 1, name="temp")


def test_or_rollback_does_not_count_as_a_lost_transaction(connection: db.Connection) -> None:
    """``OR ROLLBACK`` ends the transaction, and the next statement begins another."""
    connection.execute("CREATE TABLE IF NOT EXISTS rolled(x UNIQUE)")
    connection.execute("DELETE FROM rolled")
    connection.execute("INSERT INTO rolled VALUES (1)")
    with pytest.raises(db.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO rolled VALUES (2), (2)")
    assert not connection.in_transaction
    connection.execute("INSERT INTO rolled VALUES (3)")
    connection.commit()
    assert {x for (x,) in connection.execute("SELECT x FROM rolled")} <= {1, 3}
    assert connection.execute("SELECT count(*) FROM rolled WHERE x = 2").fetchone() == (0,)


def test_trace_callback_gets_begin_and_commit(connection: db.Connection) -> None:
    """The callback gets them in order, and its exceptions are ignored."""
    connection.execute("CREATE TABLE IF NOT EXISTS traced(x)")
    told: list[str] = []
    connection.set_trace_callback(told.append)
    connection.isolation_level = "immediate"
    with connection:
        connection.execute("INSERT INTO traced VALUES (1)")
        connection.executemany("INSERT INTO traced VALUES (?)", [(2,), (3,)])
    connection.execute("INSERT INTO traced VALUES (4)")
    connection.execute("ROLLBACK")
    inserts = ["INSERT INTO traced VALUES (1)", "INSERT INTO traced VALUES (?)"]
    assert told[:4] == ["BEGIN IMMEDIATE", *inserts, "COMMIT"]
    assert told[4:] == ["BEGIN IMMEDIATE", "INSERT INTO traced VALUES (4)", "ROLLBACK"]
    connection.set_trace_callback(lambda _: 1 / 0)
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_errors_of_a_callback_are_printed_when_asked_for(
    connection: db.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    connection.set_trace_callback(lambda _: 1 / 0)
    db.enable_callback_tracebacks(True)
    connection.execute("SELECT 1")
    db.enable_callback_tracebacks(False)
    connection.execute("SELECT 2")
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


def test_reentrant_use_of_a_cursor_raises(connection: db.Connection) -> None:
    """The call comes from a generator of parameters or from a converter."""
    cursor = connection.cursor()

    def parameters() -> Iterator[tuple[int]]:
        cursor.execute("SELECT 1")
        yield (1,)

    connection.execute("CREATE TABLE IF NOT EXISTS again(x)")
    with pytest.raises(db.ProgrammingError, match="Recursive"):
        cursor.executemany("INSERT INTO again VALUES (?)", parameters())
    assert cursor.execute("SELECT 5").fetchone() == (5,)


def test_uninitialized_connection_raises(url: str) -> None:
    """The ``__init__`` of a derived class does not call the base class."""

    class Forgetful(db.Connection):
        def __init__(self, url: str) -> None:
            pass

    class Cursor(db.Cursor):
        def __init__(self, connection: db.Connection) -> None:
            pass

    for use in ("cursor", "commit", "close", "interrupt"):
        with pytest.raises(db.ProgrammingError, match="__init__ not called"):
            getattr(Forgetful(url), use)()
    with db.connect(url) as connection:
        with pytest.raises(db.ProgrammingError, match="__init__ not called"):
            connection.cursor(Cursor).execute("SELECT 1")
        with pytest.raises(TypeError, match="Cursor"):
            connection.cursor(lambda _: 5)  # type: ignore[arg-type, return-value]


def test_connection_subclass_gets_the_arguments_of_connect(url: str) -> None:
    """As in sqlite3, ``connect`` passes on the given arguments, by position and by name, and no others."""
    got: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    class Mine(db.Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            got.append((args, kwargs))
            super().__init__(*args, **{**kwargs, "isolation_level": None})

    with db.connect(url, 5.0, factory=Mine) as connection:
        assert connection.isolation_level is None
        assert got == [((url, 5.0), {"factory": Mine})]
    with db.connect(url, 5.0, 0, None, True, db.Connection) as plain:
        assert type(plain) is db.Connection


def test_named_parameters_may_come_from_a_maps_dunder_missing(connection: db.Connection) -> None:
    class Made(dict[str, str]):
        def __missing__(self, name: str) -> str:
            return name * 2

    assert connection.execute("SELECT :a, @b, $c", Made(a="1")).fetchone() == ("1", "bb", "cc")


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000000)"


LONG = f"SELECT count(*) FROM ({NUMBERS} SELECT i FROM n)"


def interrupted(connection: db.Connection, sql: str) -> tuple[db.OperationalError, float]:
    """Run a statement that takes long, and interrupt it from another thread; return its error and how long it took.

    It is interrupted again and again, since this thread may begin it late.
    """
    over, began = threading.Event(), time.monotonic()

    def interrupt() -> None:
        while not over.wait(0.5):
            connection.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(db.OperationalError) as caught:
            connection.execute(sql)
    finally:
        over.set()
        thread.join()
    assert caught.value.sqlite_errorname == "SQLITE_INTERRUPT"
    return caught.value, time.monotonic() - began


def test_interrupt_ends_a_call_of_another_thread(url: str) -> None:
    """A read is not executed, a write may be, and an open transaction must be rolled back. Later calls succeed."""
    with closing(db.connect(url, 30, isolation_level=None)) as connection:
        connection.interrupt()  # outside a call, so later calls are not affected
        connection.execute("CREATE TABLE IF NOT EXISTS interrupted(x)")
        read, took_s = interrupted(connection, LONG)
        assert read.code == "deadline"
        assert took_s < 20  # it would take the thirty seconds of its time limit
        assert connection.execute("SELECT 1").fetchone() == (1,)
        write, _ = interrupted(connection, f"INSERT INTO interrupted {LONG}")
        assert write.code == "unknown"
        assert "did not happen" not in str(write)
        assert "may have happened" in str(write)
        connection.execute("BEGIN")
        connection.execute("INSERT INTO interrupted VALUES (7)")
        interrupted(connection, LONG)
        assert connection.in_transaction
        with pytest.raises(db.OperationalError):
            connection.execute("SELECT 1")
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM interrupted WHERE x = 7").fetchone() == (0,)
        connection.close()
        with pytest.raises(db.ProgrammingError, match="closed"):
            connection.interrupt()


def test_session_with_temporary_tables_goes_on_right_after_an_interrupt(url: str) -> None:
    """The interrupted statement may still run at the node when the next one comes."""
    with closing(db.connect(url, 30, isolation_level=None)) as connection:
        connection.execute("CREATE TEMP TABLE held(x)")
        connection.execute("INSERT INTO held VALUES (7)")
        for _ in range(3):
            interrupted(connection, LONG)
            assert connection.execute("SELECT x FROM held").fetchall() == [(7,)]


@pytest.mark.parametrize(
    "texts",
    [
        [
            "CREATE TABLE {t}(id INTEGER PRIMARY KEY, at TIMESTAMP)",
            "INSERT INTO {t}(at) VALUES ('2026-01-01 00:00:00')",
        ],
        ["CREATE TABLE {t}(id INTEGER)", "ALTER TABLE {t} ADD COLUMN at TIMESTAMP", "INSERT INTO {t} VALUES (1, NULL)"],
        ["CREATE TABLE o{t}(at TIMESTAMP)", "ALTER TABLE o{t} RENAME TO {t}"],
        ["CREATE TABLE o{t}(at TIMESTAMP)", "CREATE VIEW {t} AS SELECT at FROM o{t}"],
    ],
)
@pytest.mark.filterwarnings("ignore:The default timestamp converter is deprecated:DeprecationWarning")
def test_declared_types_are_those_of_the_open_transaction(url: str, texts: list[str]) -> None:
    found = []
    for connection in (
        db.connect(url, detect_types=db.PARSE_DECLTYPES, isolation_level=None),
        sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES, isolation_level=None),
    ):
        connection.execute("BEGIN")
        for sql in texts:
            connection.execute(sql.format(t="own"))
        found.append(connection.execute("SELECT at FROM own").fetchall())
        connection.execute("ROLLBACK")
        with pytest.raises((db.OperationalError, sqlite3.OperationalError), match="no such table"):
            connection.execute("SELECT at FROM own")
        connection.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", [{}, {"isolation_level": None}, {"autocommit": True}, {"autocommit": False}])
def test_last_insert_rowid_and_changes_belong_to_the_connection(url: str, mode: dict[str, Any]) -> None:
    connection, other = db.connect(url, **mode), db.connect(url)
    asked = "SELECT last_insert_rowid(), changes(), total_changes()"
    name = f"counted{abs(hash(str(mode)))}"
    connection.execute(f"CREATE TABLE {name}(id INTEGER PRIMARY KEY, x TEXT)")
    connection.commit()
    first = connection.execute(f"INSERT INTO {name}(x) VALUES ('a') RETURNING id").fetchone()[0]
    assert connection.execute(asked).fetchone() == (first, 1, 1)
    connection.commit()
    assert connection.execute(asked).fetchone() == (first, 1, 1)
    assert [column[0] for column in connection.execute(asked).description or ()] == [
        "last_insert_rowid()",
        "changes()",
        "total_changes()",
    ]
    connection.execute(f"UPDATE {name} SET x = changes() WHERE id < 0")
    assert connection.execute(asked).fetchone() == (first, 0, 1)
    assert other.execute(asked).fetchone() == (0, 0, 0)
    connection.execute(f"INSERT INTO {name}(id, x) VALUES (last_insert_rowid() + 1, changes())")
    assert connection.execute(f"SELECT x FROM {name} WHERE id = last_insert_rowid()").fetchone() == ("0",)
    assert connection.execute(asked).fetchone() == (first + 1, 1, 2)
    with pytest.raises(db.IntegrityError):
        connection.execute(f"INSERT INTO {name}(id) VALUES ({first})")
    assert connection.execute(asked).fetchone() == (first + 1, 0, 2)
    connection.commit()
    connection.execute(f"UPDATE {name} SET x = 'b' WHERE id = {first}")
    connection.commit()
    with pytest.raises(db.IntegrityError):  # the first statement of a transaction, with which BEGIN is sent
        connection.execute(f"INSERT INTO {name}(id) VALUES ({first})")
    assert connection.execute(asked).fetchone() == (first + 1, 0, 3)
    connection.rollback()
    connection.execute(f"UPDATE {name} SET x = 'c'")
    with pytest.raises(db.IntegrityError, match="datatype mismatch"):
        connection.execute("SELECT 1 LIMIT 'a'")
    with pytest.raises(db.OperationalError, match="no such collation"):  # the statement was not compiled
        connection.execute(f"INSERT INTO {name}(x) SELECT x FROM {name} ORDER BY x COLLATE missing")
    assert connection.execute("SELECT changes()").fetchone() == (2,)
    with pytest.raises(db.IntegrityError, match="datatype mismatch"):
        connection.execute(f"UPDATE {name} SET id = 'text'")
    assert connection.execute("SELECT changes()").fetchone() == (0,)
    connection.close()
    other.close()


@pytest.mark.parametrize("begin", ["", "BEGIN TRANSACTION named"])
def test_last_insert_rowid_in_the_returning_of_an_insert_is_that_of_the_new_row(url: str, begin: str) -> None:
    found = []
    for connection in (db.connect(url, isolation_level=None), sqlite3.connect(":memory:", isolation_level=None)):
        connection.execute("DROP TABLE IF EXISTS returned")
        connection.execute("CREATE TABLE returned(id INTEGER PRIMARY KEY, x)")
        connection.execute(begin)
        connection.execute("INSERT INTO returned VALUES (7, 0)")
        for sql in (
            "INSERT INTO returned VALUES (8, last_insert_rowid()) RETURNING x, last_insert_rowid(), changes()",
            "WITH w AS (SELECT 9) REPLACE INTO returned SELECT 9, 0 FROM w RETURNING (SELECT last_insert_rowid())",
            "UPDATE returned SET x = 5 WHERE id = 7 RETURNING last_insert_rowid()",
        ):
            found.append(connection.execute(sql).fetchall())
        connection.close()
    assert found[:3] == found[3:] == [[(7, 8, 1)], [(9,)], [(9,)]]


@pytest.mark.parametrize("begin", ["", "BEGIN"])
def test_last_insert_rowid_in_the_returning_of_an_insert_without_a_new_id_is_that_of_the_session(
    url: str, begin: str
) -> None:
    found = []
    for connection in (db.connect(url, isolation_level=None), sqlite3.connect(":memory:", isolation_level=None)):
        connection.execute("DROP TABLE IF EXISTS returned")
        connection.execute("DROP TABLE IF EXISTS keyed_by_id")
        connection.execute("CREATE TABLE returned(id INTEGER PRIMARY KEY, x)")
        connection.execute("CREATE TABLE keyed_by_id(id PRIMARY KEY) WITHOUT ROWID")
        connection.execute("INSERT INTO returned VALUES (7, 0)")
        connection.execute(begin)
        for sql in (
            "INSERT INTO returned VALUES (7, 1) ON CONFLICT DO UPDATE SET x = 2 RETURNING last_insert_rowid(), x",
            "INSERT INTO keyed_by_id VALUES (1) RETURNING last_insert_rowid()",
            "INSERT INTO returned VALUES (8, 0), (7, 1) ON CONFLICT DO UPDATE SET x = 3 RETURNING last_insert_rowid()",
        ):
            cursor = connection.execute(sql)
            assert cursor.description
            found.append((cursor.description[0][0], cursor.fetchall()))
        connection.close()
    name = "last_insert_rowid()"
    assert found[:3] == found[3:] == [(name, [(7, 2)]), (name, [(7,)]), (name, [(8,), (8,)])]


def test_rollback_after_a_lost_commit_hides_no_error(url: str) -> None:
    """SQLite keeps the transaction open after a COMMIT that fails, so programs, such as Peewee, send ROLLBACK."""
    with contextlib.closing(db.connect(url)) as other, contextlib.closing(db.connect(url)) as connection:
        other.executescript("CREATE TABLE uncommitted(n INT); INSERT INTO uncommitted VALUES (0)")
        connection.isolation_level = None
        for sql in ("BEGIN", "SELECT n FROM uncommitted", "INSERT INTO uncommitted VALUES (1)"):
            connection.execute(sql)
        other.execute("UPDATE uncommitted SET n = 2")
        other.commit()
        with pytest.raises(db.OperationalError, match="run it again"):
            connection.execute("COMMIT")
        connection.execute("ROLLBACK")
        for sql in ("ROLLBACK", "COMMIT"):
            with pytest.raises(db.OperationalError, match="no transaction is active"):
                connection.execute(sql)


def test_executemany_that_fails_counts_the_rows_that_stay(url: str, table: str) -> None:
    """sqlite3 counts them as well; a program may continue with the id of the row that it inserted last."""
    asked = f"SELECT last_insert_rowid(), changes(), total_changes(), (SELECT count(*) FROM {table})"
    runs = (
        (f"INSERT INTO {table}(id, name) VALUES (?, ?)", [(3, "c"), (4, "d"), (5, "a"), (6, "e")]),
        (f"INSERT INTO {table}(id, name) VALUES (?, ?)", [(7, "f"), (8,), (9, "g")]),
        (f"UPDATE {table} SET name = ? WHERE id > ?", [("x", 4), ("x", 2)]),
        (f"INSERT INTO {table}(id) VALUES (?)", [*((number,) for number in range(10, 1500)), (1,)]),
    )
    found: list[list[Any]] = []
    for connection in (db.connect(url), sqlite3.connect(":memory:")):
        with closing(connection):
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table}(id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
            connection.executemany(runs[0][0], [(1, "a"), (2, "b")])
            told: list[Any] = []
            for sql, values in runs:
                with pytest.raises((db.Error, sqlite3.Error)):
                    connection.executemany(sql, values)
                told += [connection.total_changes, *connection.execute(asked)]
            connection.rollback()
            found.append([*told, connection.total_changes, *connection.execute(asked)])
    assert found[0] == found[1]


def test_executemany_outside_of_a_transaction_leaves_the_counts_if_it_fails(url: str, table: str) -> None:
    with closing(db.connect(url, isolation_level=None)) as connection:
        connection.execute(f"INSERT INTO {table}(id) VALUES (1)")
        for many in (2, 1200):
            with pytest.raises(db.IntegrityError):
                connection.executemany(f"INSERT INTO {table}(id) VALUES (?)", [(many - one,) for one in range(many)])
            asked = "SELECT last_insert_rowid(), changes(), total_changes()"
            assert connection.execute(asked).fetchone() == (1, 0, 1)
            assert connection.total_changes == 1


@pytest.mark.parametrize(
    "sql", ["VACUUM", "REINDEX", "PRAGMA synchronous = 1", "PRAGMA foreign_keys = ON", "PRAGMA cache_size = 10"]
)
def test_statement_without_columns_in_sqlite_has_no_description(made: db.Connection, sql: str) -> None:
    """SQLAlchemy takes a result with a description for rows."""
    with closing(sqlite3.connect(":memory:")) as plain:
        for one in (plain, made):
            cursor = one.execute(sql)
            assert (cursor.description, cursor.fetchall()) == (None, [])
