"""Tables and keys of 2,000 columns, which SQLite allows, are compared, replayed and found to differ."""

from pathlib import Path

import apsw
import pytest

from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, Row
from bedrockish_journal.storage import schema_history, store
from bedrockish_journal.storage.table_layout import Applier
from bedrockish_journal.storage.wide_rows import UNREADABLE, select
from bedrockish_journal.verify.differences import differences
from bedrockish_journal.verify.replay import digest
from bedrockish_journal.verify.row_digests import Range, digest_range

COLUMNS = tuple(f"c{place}" for place in range(2_000))
NAMES = ", ".join(COLUMNS)
ROW: Row = tuple(range(2_000))
OTHER: Row = (*ROW[:-1], "changed")
SCHEMA = f"""CREATE TABLE wide({NAMES});
  CREATE TABLE keyed({NAMES}, PRIMARY KEY({NAMES})) WITHOUT ROWID;
  CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
  INSERT INTO bedrockish_meta VALUES ('schema_version', 1)"""


def make(path: Path, row: Row) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.execute(SCHEMA).fetchall()
    store.create(db)
    schema_history.create(db)
    for table in ("wide", "keyed"):
        db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * 2_000)})", row).fetchall()
    return db


def test_digests_and_differences_include_rows_with_2000_columns(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one.db", ROW), make(tmp_path / "other.db", OTHER)
    assert digest(one) == digest(tmp_path / "one.db") != digest(other)
    for table in ("wide", "keyed"):
        found = [digest_range(db, Range(table), {}) for db in (one, other)]
        assert found[0].count == found[1].count == 1
        assert found[0].digest != found[1].digest
    one.close()
    other.close()
    told = [one.text for one in differences(str(tmp_path / "one.db"), str(tmp_path / "other.db"), 10)]
    key = ", ".join(map(str, ROW))
    assert told == [
        f"the row {key} of keyed is not from the journal",
        f"the row {key[:-4]}'changed' of keyed is missing",
        "in the row 1 of wide, c1999 is 1999 and should be 'changed'",
    ]


@pytest.mark.parametrize(("table", "rowid"), [("wide", 1), ("keyed", None)])
def test_changes_of_rows_with_2000_columns_are_replayed(tmp_path: Path, table: str, rowid: int | None) -> None:
    db = make(tmp_path / "one.db", ROW)
    applier = Applier(db)
    moved = rowid and 7
    texts = tuple(f"t{value!r}" for value in OTHER)
    applier.apply(Change(table, COLUMNS, UPDATE, rowid, moved, ROW, texts))
    applier.apply(Change(table, COLUMNS, UPDATE, moved, moved, texts, OTHER))
    applier.apply(Change(table, COLUMNS, DELETE, moved, moved, OTHER, None))
    applier.apply(Change(table, COLUMNS, INSERT, rowid, rowid, None, ROW))
    key = "rowid" if rowid else "c0"
    assert [*select(db, [key, *COLUMNS], f"FROM {table}")] == [(rowid or 0, *ROW)]


def test_a_text_that_is_not_utf8_is_read_as_bytes_in_any_column(tmp_path: Path) -> None:
    db = make(tmp_path / "one.db", ROW)
    db.execute("UPDATE wide SET c1999 = CAST(x'ff' AS TEXT), c0 = 'a'").fetchall()
    (row,) = select(db, ["rowid", *COLUMNS], "FROM wide ORDER BY rowid")
    assert row == (1, "a", *ROW[1:-1], [UNREADABLE, b"\xff"])
