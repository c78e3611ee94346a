"""The first two arguments of ``connect`` as programs for sqlite3 give them: paths, URIs and short timeouts."""

import os
import subprocess
import sys
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest

import bedrockish.dbapi as db
from tools.cluster import clean_environment

pytestmark = pytest.mark.cluster


def test_short_wait_for_locks_does_not_shorten_calls(made: db.Connection, url: str) -> None:
    """A program that gives sqlite3 ten milliseconds for locks still waits for the statements themselves."""
    with closing(db.connect(url, timeout=0.001, isolation_level=None)) as hasty:
        numbers = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100)"  # its commit alone takes longer
        hasty.execute(f"{numbers} INSERT INTO thing(a) SELECT -i FROM n")
        assert hasty.execute("SELECT count(*) FROM thing WHERE a < 0").fetchone() == (100,)


@pytest.mark.parametrize("way", ["bytes", "{}", "//{}", "//localhost{}"])
@pytest.mark.parametrize("interface", ["path"], indirect=True)
def test_bytes_and_uris_of_sqlite_name_the_file_of_a_node(made: db.Connection, url: str, way: str) -> None:
    place: Any = os.fsencode(url) if way == "bytes" else f"file:{way.format(quote(url))}?mode=rw&cache=shared#x"
    with closing(db.connect(place, uri=True, isolation_level=None)) as connection:
        connection.execute("INSERT INTO thing(a) VALUES (5)")
    assert made.execute("SELECT count(*) FROM thing WHERE a = 5").fetchone() == (1,)


@pytest.mark.parametrize("option", ["mode=ro", "immutable=1", "mode=ro&immutable=0"])
@pytest.mark.parametrize("interface", ["path"], indirect=True)
def test_connection_with_mode_ro_only_reads(made: db.Connection, url: str, option: str) -> None:
    """No PRAGMA makes it writable, and rows that others write are there."""
    with closing(db.connect(f"file:{url}?{option}", uri=True)) as reader:
        made.execute("INSERT INTO thing(a) VALUES (6)")
        made.commit()
        assert reader.execute("SELECT count(*) FROM thing WHERE a = 6").fetchone() == (1,)
        reader.execute("PRAGMA query_only = OFF")
        for sql in ("DELETE FROM thing", "CREATE TABLE other(a)"):
            for call in (reader.execute, reader.executescript):
                with pytest.raises(db.OperationalError, match="readonly database: open it without mode=ro") as refused:
                    call(sql)
                assert refused.value.sqlite_errorname == "SQLITE_READONLY"
        reader.execute("BEGIN")
        with pytest.raises(db.OperationalError, match="readonly"):
            reader.execute("UPDATE thing SET a = 7")


@pytest.mark.parametrize("interface", ["path"], indirect=True)
def test_connection_with_mode_ro_has_temp_tables(made: db.Connection, url: str) -> None:
    with closing(db.connect(f"file:{url}?mode=ro", uri=True)) as reader:
        reader.execute("CREATE TEMP TABLE own AS SELECT 1 AS a")
        reader.execute("INSERT INTO own VALUES (2)")
        reader.executemany("INSERT INTO temp.own VALUES (?)", [(3,), (4,)])
        reader.execute("DELETE FROM own WHERE a = 1")
        reader.commit()
        assert reader.execute("SELECT a FROM own").fetchall() == [(2,), (3,), (4,)]
        reader.execute("DROP TABLE own")
        trigger = "CREATE TEMP TRIGGER own AFTER INSERT ON own BEGIN DELETE FROM thing; END"
        for sql in ("DROP TABLE thing", "ANALYZE", trigger, "INSERT INTO own VALUES (5)"):
            with pytest.raises(db.OperationalError, match="readonly"):
                reader.execute(sql)


@pytest.mark.parametrize("interface", ["path"], indirect=True)
def test_connection_with_mode_ro_cannot_write_by_the_name_of_a_temp_table(made: db.Connection, url: str) -> None:
    """A trigger with the name, and a table with the name of a TEMP table that was rolled back or has been lost."""
    made.executescript(
        "DROP TABLE IF EXISTS late; CREATE TABLE touched(a);"
        "CREATE TRIGGER shadowed AFTER INSERT ON touched BEGIN DELETE FROM thing; END"
    )
    with closing(db.connect(f"file:{url}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("CREATE TEMP TABLE shadowed(a)")
        reader.execute("CREATE TEMP TABLE trigger_log(a)")
        reader.execute("BEGIN")
        reader.execute("CREATE TEMP TABLE late(a)")
        reader.execute("ROLLBACK")
        reader.execute("INSERT INTO shadowed VALUES (1)")
        made.execute("CREATE TABLE late(a)")
        for sql in ("DROP TRIGGER shadowed", "INSERT INTO late VALUES (1)"):
            with pytest.raises(db.OperationalError, match="readonly"):
                reader.execute(sql)
        made.execute("DROP TABLE touched")
        made.execute("CREATE TABLE shadowed(a)")
        with pytest.raises(db.Error, match="TEMP"):
            reader.execute("INSERT INTO shadowed VALUES (1)")
        reader.execute("CREATE TEMP TABLE own(a)")
        with pytest.raises(db.OperationalError, match="readonly"):
            reader.execute("INSERT INTO shadowed VALUES (1)")
    made.executescript("DROP TABLE late; DROP TABLE shadowed")


def test_pragma_optimize_in_an_open_transaction_is_a_hint_that_changes_nothing(connection: db.Connection) -> None:
    connection.execute("ANALYZE")
    connection.execute("CREATE TABLE hinted(id INTEGER PRIMARY KEY, a)")
    connection.execute("CREATE INDEX hinted_a ON hinted(a)")
    connection.commit()
    connection.executemany("INSERT INTO hinted VALUES (?, ?)", [(number, number) for number in range(1_000)])
    assert connection.execute("PRAGMA optimize").fetchall() == []
    connection.commit()
    assert connection.execute("SELECT count(*) FROM hinted").fetchone() == (1_000,)
    connection.execute("BEGIN")
    connection.execute("PRAGMA optimize")
    connection.execute("CREATE TABLE late(a)")
    connection.execute("DROP TABLE late")
    connection.commit()
    assert connection.execute("SELECT stat FROM sqlite_stat1 WHERE tbl = 'hinted'").fetchone() is None
    connection.execute("PRAGMA optimize")
    assert connection.execute("SELECT stat FROM sqlite_stat1 WHERE tbl = 'hinted'").fetchone() == ("1000 1",)
    connection.execute("DROP TABLE hinted")
    connection.commit()


@pytest.mark.parametrize("interface", ["path"], indirect=True)
def test_pragma_optimize_gathers_no_statistics_for_a_connection_that_only_reads(made: db.Connection, url: str) -> None:
    made.executescript("CREATE TABLE lacks_statistics(a); INSERT INTO lacks_statistics VALUES (1)")
    versions = "SELECT count(*) FROM bedrockish_schema"
    before = made.execute(versions).fetchone()
    with closing(db.connect(f"file:{url}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("PRAGMA main.optimize")
    made.execute("PRAGMA query_only = ON")
    made.execute("PRAGMA optimize")
    made.execute("PRAGMA query_only = OFF")
    assert made.execute(versions).fetchone() == before
    made.execute("PRAGMA optimize")
    assert made.execute(versions).fetchone() != before
    made.execute("DROP TABLE lacks_statistics")


@pytest.mark.parametrize(
    ("database", "error", "text"),
    [
        (":memory:", db.NotSupportedError, r"bedrockish.node\(\)"),
        ("file::memory:?cache=shared", db.NotSupportedError, "sqlite3 itself"),
        ("file:x?mode=memory&cache=shared", db.NotSupportedError, "sqlite3 itself"),
        ("file:?mode=ro", db.NotSupportedError, "sqlite3 itself"),
        ("file:a.db?mode=rx", db.OperationalError, "no such access mode: rx"),
        ("file://host/a.db", db.OperationalError, "invalid uri authority: host"),
    ],
)
def test_databases_that_no_node_has_are_refused(database: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        db.connect(database, uri=True)


FROZEN = """
import sys, time
from bedrockish import dbapi
old = dbapi.connect(sys.argv[1])
old.execute("CREATE TABLE IF NOT EXISTS frozen(id INTEGER PRIMARY KEY, a)")
modules = [module for name, module in sys.modules.items() if name.startswith("bedrockish")]
assert not [module for module in modules if time.monotonic in vars(module).values()]
time.monotonic = lambda: 1.6e9
for connection in (old, dbapi.connect(sys.argv[1])):
    for _ in range(50):
        connection.execute("INSERT INTO frozen(a) VALUES (1)")
    connection.commit()
    print(connection.execute("SELECT count(*) FROM frozen").fetchone()[0])
    connection.close()
"""


def test_program_whose_tests_freeze_the_time_goes_on(url: str) -> None:
    """Libraries such as freezegun replace time.monotonic, also where a module has imported it by its name."""
    command = [sys.executable, "-c", FROZEN, url]
    told = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=True)
    assert told.stdout.split() == ["50", "100"]


def test_module_has_the_name_dbapi2_of_sqlite3() -> None:
    assert db.dbapi2 is db
