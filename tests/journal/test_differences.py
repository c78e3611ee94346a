"""A comparison of two databases finds every row that differs, and names it by table and key."""

from pathlib import Path

import apsw
import pytest

from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, encode_changes
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from bedrockish_journal.storage import store
from bedrockish_journal.verify.differences import UNTOLD, Difference, differences, last_writers

SCHEMA = """
CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT, balance REAL);
CREATE TABLE tag(name TEXT, number INTEGER, note, PRIMARY KEY(name, number)) WITHOUT ROWID;
CREATE TABLE log(line TEXT);
CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value);
INSERT INTO account VALUES (1, 'Ada', 1.5), (2, 'Ben', NULL), (3, 'Cyd', 3.0);
INSERT INTO tag VALUES ('a', 1, x'00'), ('b', 2, 'x'), ('c', 3, 0.0);
INSERT INTO log VALUES ('one'), ('two');
"""
CASES = [
    ("UPDATE account SET balance = 9 WHERE id = 2", [("account", "2", "balance is 9.0 and should be NULL")]),
    ("UPDATE account SET id = 7 WHERE id = 3", [("account", "7", "is not from"), ("account", "3", "is missing")]),
    ("DELETE FROM tag WHERE name = 'b'", [("tag", "'b', 2", "is missing")]),
    (
        "UPDATE tag SET note = CAST(note AS TEXT) WHERE name = 'a'",
        [("tag", "'a', 1", "note is CAST(X'00' AS TEXT) and should be X'00'")],
    ),
    ("UPDATE log SET line = 'zwei' WHERE rowid = 2", [("log", "2", "line is 'zwei' and should be 'two'")]),
    ("INSERT INTO log VALUES ('three')", [("log", "3", "the row 3 of log is not from the journal")]),
    (
        "UPDATE log SET line = CAST(x'6fff' AS TEXT) WHERE rowid = 2",
        [("log", "2", r"line is 'o\xff' and should be 'two'")],
    ),
    ("INSERT INTO tag VALUES (CAST(x'ff' AS TEXT), 9, 1)", [("tag", r"'\xff', 9", "is not from the journal")]),
    (
        "UPDATE log SET line = 'one' || char(0) || '!' WHERE rowid = 1",
        [("log", "1", "line is CAST(X'6f6e650021' AS TEXT) and should be 'one'")],
    ),
    ("UPDATE tag SET note = -0.0 WHERE name = 'c'", [("tag", "'c', 3", "note is -0.0 and should be 0.0")]),
    ("UPDATE tag SET note = 0 WHERE name = 'c'", [("tag", "'c', 3", "note is 0 and should be 0.0")]),
    ("CREATE INDEX i ON log(line)", [("i", None, "i is not from the journal")]),
    ("ALTER TABLE log ADD COLUMN more", [("log", None, "log is defined differently")]),
    ("INSERT INTO bedrockish_meta VALUES ('node', 'A')", [("", None, UNTOLD)]),
]


def make(path: Path, *more: str) -> str:
    db = apsw.Connection(str(path))
    for sql in (SCHEMA, *more):
        db.execute(sql).fetchall()
    db.close()
    return str(path)


@pytest.mark.parametrize(("spoil", "expected"), CASES)
def test_differences_names_the_table_and_the_key_of_each_altered_row(
    tmp_path: Path, spoil: str, expected: list[tuple[str, str | None, str]]
) -> None:
    found = differences(make(tmp_path / "a.db", spoil), make(tmp_path / "b.db"), 10)
    assert [(one.table, one.key) for one in found] == [(table, key) for table, key, _ in expected]
    assert all(text in one.text for one, (_, _, text) in zip(found, expected, strict=True))


def test_differences_returns_at_most_the_requested_number(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", "UPDATE account SET owner = owner || '!'")
    (found,) = differences(path, make(tmp_path / "b.db"), 1)
    assert found == Difference("account", "1", "in the row 1 of account, owner is 'Ada!' and should be 'Ada'")


def test_the_entry_that_wrote_a_row_last_is_found(tmp_path: Path) -> None:
    changes = [
        Change("account", ("id", "owner"), INSERT, 1, 1, None, (1, "Ada")),
        Change("account", ("id", "owner"), UPDATE, 1, 2, (1, "Ada"), (2, "Ada")),
        Change("tag", ("name", "number"), INSERT, None, None, None, ("it's", 1)),
        Change("log", ("line",), DELETE, 9, 9, ("gone",), None),
    ]
    path = make(tmp_path / "a.db")
    db = apsw.Connection(path)
    store.create(db)
    prev = GENESIS
    for tick, change in enumerate(changes, 1):
        transaction = Transaction(
            Txid(tick, "A"), {}, 0, 0, 0, f"c{tick}", "serializable", ROWS, AccessSet(), encode_changes([change]), b""
        )
        entry = Entry("A", tick, {"A": tick}, transaction, None, prev)
        store.append(db, entry, repeat=False, applied_ms=0)
        prev = entry.hash
    db.close()
    rows = [("account", "1"), ("account", "2"), ("tag", "'it''s', 1"), ("log", "9"), ("log", "1"), ("i", None)]
    found = last_writers(path, [Difference(table, key, "") for table, key in rows])
    assert {row: entry.tick for row, entry in found.items()} == {
        ("account", "1"): 2,
        ("account", "2"): 2,
        ("tag", "'it''s', 1"): 3,
        ("log", "9"): 4,
    }
