"""Values read as files, databases as scripts, and copies of databases, as in sqlite3."""

import os
import pathlib
import sqlite3
from contextlib import closing

import pytest

import bedrockish.dbapi as db
from bedrockish.dbapi import whole
from bedrockish.dbapi.whole import Blob

pytestmark = pytest.mark.cluster


def test_iterdump_makes_the_database_again(made: db.Connection, tmp_path: pathlib.Path) -> None:
    """The statements of the dump make the database again in sqlite3; and backup() copies the rows."""
    again = sqlite3.connect(":memory:")
    again.executescript("".join(f"{line}\n" for line in made.iterdump()))
    copied = sqlite3.connect(tmp_path / "copy.sqlite")
    made.backup(copied)
    for other in (again, copied):
        for table in ("thing", "child"):
            want = made.execute(f"SELECT * FROM {table}").fetchall()
            assert other.execute(f"SELECT * FROM {table}").fetchall() == want
        assert other.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'by_b'").fetchone() == (1,)
        assert other.execute("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'bedrockish%'").fetchone() == (0,)
    with pytest.raises(db.ProgrammingError, match="has tables already"):
        made.backup(copied)
    assert not made.in_transaction
    again.close()
    copied.close()


def test_backup_keeps_rowids_and_the_numbers_besides_tables(made: db.Connection) -> None:
    """A program may refer to rows by their rowids, and a migration tool reads the version."""
    made.executescript(
        "CREATE TABLE bare(rowid TEXT, a, b AS (a)); CREATE TABLE numbered(id INTEGER PRIMARY KEY AUTOINCREMENT)"
    )
    made.execute("INSERT INTO bare(oid, rowid, a) VALUES (-7, 'x', 1), (50, 'y', 2)")
    made.execute("INSERT INTO numbered VALUES (1), (900)")
    made.execute("DELETE FROM numbered WHERE id = 900")
    made.commit()
    made.execute("PRAGMA user_version = 12")
    made.execute("PRAGMA application_id = -3")
    made.commit()
    with closing(sqlite3.connect(":memory:")) as copied:
        made.backup(copied)
        assert copied.execute("SELECT oid, * FROM bare").fetchall() == [(-7, "x", 1, 1), (50, "y", 2, 2)]
        assert copied.execute("INSERT INTO numbered VALUES (NULL) RETURNING id").fetchone() == (901,)
        assert copied.execute("PRAGMA user_version").fetchone() == (12,)
        assert copied.execute("PRAGMA application_id").fetchone() == (-3,)
    made.executescript("DROP TABLE bare; DROP TABLE numbered; PRAGMA user_version = 0; PRAGMA application_id = 0")


def test_iterdump_keeps_nul_and_every_kind_of_value(made: db.Connection) -> None:
    made.execute("CREATE TABLE kinds(id INTEGER PRIMARY KEY, x)")
    values = ["a\0b", "\0" * 2_000, "it's", b"\0\xff", -0.0, 1e300, float("inf"), -(2**63), None, ""]
    made.executemany("INSERT INTO kinds(x) VALUES (?)", [(value,) for value in values])
    made.commit()
    with closing(sqlite3.connect(":memory:")) as again:
        again.executescript("\n".join(made.iterdump()))
        found = [value for (value,) in again.execute("SELECT x FROM kinds ORDER BY id")]
    assert list(map(repr, found)) == list(map(repr, values))


def test_iterdump_writes_a_table_of_many_columns(made: db.Connection) -> None:
    columns = [f"c{number}" for number in range(600)]
    made.execute(f"CREATE TABLE broad({', '.join(columns)})")
    made.execute(f"INSERT INTO broad({columns[-1]}) VALUES (1)")
    (line,) = [line for line in made.iterdump() if line.startswith('INSERT INTO "broad"')]
    assert line.endswith(f"VALUES({'NULL,' * 599}1);")


def test_tables_larger_than_a_result_are_copied_and_dumped(
    made: db.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page of rows is larger than a result may be, and the table WITHOUT ROWID has several pages."""
    monkeypatch.setattr(whole, "PAGE", 80)
    made.executescript(
        "CREATE TABLE large(id INTEGER PRIMARY KEY, a); CREATE TABLE keyed(k TEXT COLLATE NOCASE, n, a, "
        "PRIMARY KEY(k COLLATE BINARY DESC, n)) WITHOUT ROWID"
    )
    for first in range(0, 75, 25):  # a transaction changes at most 32 MiB
        rows = [(number, 1 << 20) for number in range(first, first + 25)]
        made.executemany("INSERT INTO large VALUES (?, zeroblob(?))", rows)
        made.commit()
    keys = [(letter, number) for letter in "aAbBcC" for number in range(30)]
    made.executemany("INSERT INTO keyed VALUES (?, ?, zeroblob(10))", keys)
    made.commit()
    with closing(sqlite3.connect(":memory:")) as copied:
        made.backup(copied)
        assert copied.execute("SELECT count(*), sum(length(a)) FROM large").fetchone() == (75, 75 << 20)
        assert sorted(copied.execute("SELECT k, n FROM keyed")) == sorted(keys)
    dumped = [text for text in made.iterdump() if text.startswith('INSERT INTO "keyed"')]
    assert (len(set(dumped)), len(dumped)) == (180, 180)
    made.executescript("DROP TABLE large; DROP TABLE keyed")


def test_many_rows_are_dumped_in_pieces(made: db.Connection) -> None:
    """Each row is dumped once, even if rowids have gaps or are negative."""
    made.executemany("INSERT INTO thing(id, a) VALUES (?, ?)", [(n * 7 - 5_000, n + 10) for n in range(2_500)])
    made.commit()
    lines = [line for line in made.iterdump() if line.startswith('INSERT INTO "thing"')]
    assert len(lines) == len(set(lines)) == 2_503


def test_blobopen_reads_a_blob_like_sqlite3(made: db.Connection) -> None:
    """Errors are sqlite3's own."""
    with made.blobopen("thing", "b", 1) as blob:
        assert (len(blob), blob.read(1), blob.tell(), blob[1], blob[-1], blob[:2]) == (
            3,
            b"\x00",
            1,
            255,
            16,
            b"\x00\xff",
        )
        blob.seek(-1, os.SEEK_END)
        assert blob.read() == b"\x10"
        with pytest.raises(ValueError, match="out of blob range"):
            blob.seek(4)
        with pytest.raises(IndexError):
            blob[3]
        with pytest.raises(db.NotSupportedError, match="UPDATE"):
            blob.write(b"x")
    with pytest.raises(db.ProgrammingError, match="closed"):
        blob.read()
    assert made.blobopen("thing", "b", 2).read() == b"it's"
    for row, says in ((9, "no such rowid: 9"), (3, "type real")):
        with pytest.raises(db.OperationalError, match=says):
            made.blobopen("thing", "b", row)
    assert isinstance(blob, Blob)


@pytest.mark.parametrize("name", ["notthere", '"'])
def test_blob_of_a_missing_column_is_an_error(connection: db.Connection, name: str) -> None:
    """SQLite takes the name of an unknown column for a string; that string is not opened as a blob."""
    connection.execute("CREATE TABLE IF NOT EXISTS blobs(x)")
    connection.execute("INSERT INTO blobs(rowid, x) VALUES (1, x'00')")
    with pytest.raises(db.OperationalError):
        connection.blobopen("blobs", name, 1)
    connection.rollback()
