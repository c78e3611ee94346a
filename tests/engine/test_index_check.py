"""The check covers every kind of index, and reports damaged ones only."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from bedrockish.engine.storage.index_check import check_range, tables_with_indexes
from bedrockish_journal.storage import packing, store

SCHEMA = """
CREATE TABLE t(id INTEGER PRIMARY KEY, a, b TEXT UNIQUE, c TEXT COLLATE nocase, d, g AS (d * 2));
CREATE INDEX plain ON t(a);
CREATE INDEX both ON t(a DESC, d);
CREATE UNIQUE INDEX folded ON t(c);
CREATE INDEX other_way ON t(c COLLATE rtrim, b);
CREATE INDEX made ON t(lower(b), a COLLATE nocase DESC, (d + 1) ASC) WHERE d > 5 AND b <> ',(';
CREATE INDEX part ON t(d) WHERE
  a IS NOT NULL;
CREATE INDEX own ON t(id);
CREATE INDEX computed ON t(g);
CREATE INDEX "with ""quotes"" (and ON)" ON t('x' || b);
CREATE TABLE w(x, y, z, PRIMARY KEY(x, y)) WITHOUT ROWID;
CREATE INDEX value ON w(z);
CREATE INDEX half ON w(y);
CREATE TABLE k(id INTEGER PRIMARY KEY DESC, v);
CREATE TABLE keyed(a PRIMARY KEY, v);
CREATE TABLE "5 x"("a b" UNIQUE, rowid, oid);
CREATE TABLE none(a);
CREATE INDEX spare ON none(a);
"""
ROWS = """
WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 1200)
  INSERT INTO t(id, a, b, c, d) SELECT i, iif(i % 3, NULL, i), 'B' || i, 'c' || i, i % 10 FROM s;
INSERT INTO w SELECT id, b, c FROM t;
INSERT INTO k SELECT id, a FROM t;
INSERT INTO keyed SELECT a, a FROM t;
INSERT INTO "5 x" SELECT b, 1, 2 FROM t;
INSERT INTO t(id, a, b, c, d) VALUES (5000, 1e308, CAST(x'ff' AS TEXT), x'00', 9.0), (-7, '', '', NULL, NULL);
"""
COLUMNS = {"t": ("id", "a", "b", "c", "d")}  # the writable columns
T_ROW = "id = 606"
LACKING = [
    *[("t", name, T_ROW, "606") for name in ("plain", "both", "folded", "other_way", "part", "own", "computed")],
    ("t", "made", T_ROW, "606"),
    ("t", 'with "quotes" (and ON)', T_ROW, "606"),
    ("t", "sqlite_autoindex_t_1", T_ROW, "606"),
    ("t", "plain", "id = 1000", "1000"),  # one of many rows with NULL there
    ("w", "value", "x = 700", "700, 'B700'"),
    ("w", "half", "x = 700", "700, 'B700'"),
    ("k", "sqlite_autoindex_k_1", "id = 606", "1201"),  # under a new rowid
    ("keyed", "sqlite_autoindex_keyed_1", "a = 606", "1201"),
    ("5 x", "sqlite_autoindex_5 x_1", "_rowid_ = 606", "1201"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with apsw.Connection(str(path)) as db:
        db.execute(SCHEMA + ROWS).fetchall()
        store.create(db)
    return path


def found(path: Path, limit: int = 500) -> Iterator[str]:
    db = apsw.Connection(str(path))
    packing.unpack_on(db)  # as a node's readers do
    for name in tables_with_indexes(db):
        after, rows = None, 0
        while True:
            one = check_range(db, name, after, limit)
            rows += one.count
            if one.lacks:
                yield one.lacks
            after = one.last
            if after is None:
                break
        assert one.lacks or rows == db.execute(f'SELECT count(*) FROM main."{name}" NOT INDEXED').get, name
    db.close()


def test_index_check_finds_nothing_in_sound_indexes(path: Path) -> None:
    with apsw.Connection(str(path)) as db:
        expected = {"t", "w", "k", "keyed", "5 x", "none", "bedrockish_journal", "bedrockish_packed"}
        assert set(tables_with_indexes(db)) == expected
    for limit in (1, 7, 500, 5000):
        assert list(found(path, limit)) == []


def move(path: Path, index: str, root: int) -> int:
    """Let an index begin at another page of the file; return where it began."""
    with apsw.Connection(str(path)) as db:
        before = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (index,)).get
        db.pragma("writable_schema", 1)
        db.execute("UPDATE sqlite_schema SET rootpage = ? WHERE name = ?", (root, index))
    db.close()
    return int(before)


def forget(path: Path, table: str, index: str, where: str) -> None:
    """Take rows out of one index: insert them again while the schema points to another, empty one."""
    columns = ", ".join(COLUMNS.get(table, ("*",)))
    with apsw.Connection(str(path)) as db:
        db.execute(f'CREATE TABLE kept AS SELECT {columns} FROM "{table}" WHERE {where}')
        db.execute(f'DELETE FROM "{table}" WHERE {where}')
        spare = int(db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'spare'").get)
    db.close()
    root = move(path, index, spare)
    into = f'"{table}"({columns})' if table in COLUMNS else f'"{table}"'
    with apsw.Connection(str(path)) as db:
        db.execute(f"INSERT INTO {into} SELECT * FROM kept")
    db.close()
    move(path, index, root)


@pytest.mark.parametrize(("table", "index", "where", "row"), LACKING)
def test_a_row_that_an_index_lacks_is_named(path: Path, table: str, index: str, where: str, row: str) -> None:
    forget(path, table, index, where)
    assert list(found(path)) == [f"row {row} of {table} is not in its index {index}"]
