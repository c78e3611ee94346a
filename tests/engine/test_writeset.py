"""What changed rows are said to write, and what they read to keep constraints."""

from typing import Any

import apsw
import pytest

from bedrockish.engine.keys import Spec, encode, index_prefix, table_key
from bedrockish.engine.schema import read_schema
from bedrockish.engine.writeset import WriteKeys
from journal.footprint import object_range


def keys_of(ddl: str) -> WriteKeys:
    db = apsw.Connection(":memory:")
    db.create_collation("odd", lambda a, b: (a > b) - (a < b))
    db.execute(ddl).fetchall()
    return WriteKeys(read_schema(db))


PEOPLE = """
CREATE TABLE people(id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE, email UNIQUE, age);
CREATE INDEX by_name ON people(name, age DESC);
"""
NAME = (Spec("NOCASE"), Spec(descending=True), Spec())
EMAIL = "sqlite_autoindex_people_1"
ANN = (1, "Ann", "a@b", 40)


def test_an_inserted_row_writes_its_place_and_its_entries() -> None:
    points, ranges = keys_of(PEOPLE).keys("people", 1, 1, None, ANN)
    assert ranges == []
    assert set(points) == {
        table_key("people", 1),
        index_prefix("by_name", ["ann", 40, 1], NAME),
        index_prefix(EMAIL, ["a@b", 1], (Spec(), Spec())),
        index_prefix(EMAIL, ["a@b"], (Spec(),)),
    }


def test_an_update_writes_old_and_new_entries_and_those_that_stay() -> None:
    points, _ = keys_of(PEOPLE).keys("people", 1, 1, ANN, (1, "Ann", "a@b", 41))
    assert set(points) == {
        table_key("people", 1),
        index_prefix("by_name", ["ann", 40, 1], NAME),
        index_prefix("by_name", ["ann", 41, 1], NAME),
        index_prefix(EMAIL, ["a@b", 1], (Spec(), Spec())),  # who came to the row by its email must notice
    }


def test_a_row_that_moves_writes_both_places() -> None:
    points, _ = keys_of(PEOPLE).keys("people", 1, 2, ANN, (2, *ANN[1:]))
    assert {table_key("people", 1), table_key("people", 2)} <= set(points)


def test_equal_unique_values_meet_and_nulls_do_not() -> None:
    keys = keys_of(PEOPLE)
    one = set(keys.keys("people", 1, 1, None, ANN)[0])
    same = set(keys.keys("people", 2, 2, None, (2, "Bob", "a@b", 1))[0])
    null = set(keys.keys("people", 2, 2, None, (2, "Bob", None, 1))[0])
    other_null = set(keys.keys("people", 3, 3, None, (3, "Bo", None, 1))[0])
    assert one & same == {index_prefix(EMAIL, ["a@b"], (Spec(),))}
    assert not null & other_null


def test_the_rowid_is_taken_from_the_rowid_not_from_its_column() -> None:
    points, _ = keys_of(PEOPLE).keys("people", 9, 9, None, (None, *ANN[1:]))
    assert index_prefix("by_name", ["ann", 40, 9], NAME) in points


def test_without_rowid_the_primary_key_is_the_place() -> None:
    keys = keys_of("CREATE TABLE w(a, b, c, PRIMARY KEY(b DESC, a)) WITHOUT ROWID; CREATE INDEX by_c ON w(c)")
    points, _ = keys.keys("w", None, None, None, (1, 2, 3))
    place = index_prefix("x", [2, 1], (Spec(descending=True), Spec()))[len(b"i:x\0") :]
    assert set(points) == {b"t:w\0" + place, b"i:by_c\0" + encode(3) + place}


@pytest.mark.parametrize("index", ["lower(a)", "a COLLATE odd", "v"])
def test_an_index_that_rows_do_not_tell_is_keyed_by_row(index: str) -> None:
    keys = keys_of(f"CREATE TABLE x(a, v AS (a || 'x')); CREATE UNIQUE INDEX i ON x({index})")
    points, ranges = keys.keys("x", 4, 4, None, ("text",))
    assert (set(points), ranges) == ({table_key("x", 4), b"i:i\0" + encode(4)}, [])


def test_a_primary_key_under_a_foreign_collation_is_the_whole_table() -> None:
    keys = keys_of("CREATE TABLE x(a COLLATE odd PRIMARY KEY, b) WITHOUT ROWID")
    assert keys.keys("x", None, None, None, ("p", 1)) == ([], [object_range("t:x")])


FAMILY = """
CREATE TABLE parents(id INTEGER PRIMARY KEY, code TEXT COLLATE NOCASE UNIQUE, note);
CREATE TABLE children(id INTEGER PRIMARY KEY, parent REFERENCES parents, code TEXT REFERENCES parents(code), note);
"""


def child(keys: WriteKeys, before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> set[bytes]:
    return set(keys.reads("children", 1, 1, before, after)[0])


def parent(keys: WriteKeys, before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> set[bytes]:
    return set(keys.keys("parents", 5, 5, before, after)[0])


def test_a_new_child_meets_the_removal_of_its_parent() -> None:
    keys = keys_of(FAMILY)
    gone = parent(keys, (5, "X", 0), None)
    assert child(keys, None, (1, "5", None, 0)) <= gone  # the parent's affinity decides what "5" is
    assert child(keys, None, (1, None, "x", 0)) <= gone
    assert child(keys, (1, 4, None, 0), (1, 5, None, 0)) & gone


def test_a_child_is_not_disturbed_by_its_parents_other_columns() -> None:
    keys = keys_of(FAMILY)
    noted = parent(keys, (5, "X", 0), (5, "X", 1))
    assert not child(keys, None, (1, 5, "x", 0)) & noted
    assert child(keys, None, (1, 5, "x", 0)) & parent(keys, (5, "X", 0), (5, "Y", 0))


def test_only_a_child_that_starts_to_point_somewhere_reads() -> None:
    keys = keys_of(FAMILY)
    assert child(keys, None, (1, None, None, 0)) == set()
    assert child(keys, (1, 5, "x", 0), (1, 5, "x", 1)) == set()
    assert child(keys, (1, 5, "x", 0), None) == set()


@pytest.mark.parametrize(
    ("child_type", "parent_type", "agree"),
    [("INT", "INTEGER", True), ("", "INT", True), ("TEXT", "INT", True), ("", "TEXT", False), ("VARCHAR", "TEXT", True),
     ("INT", "TEXT", False), ("TEXT", "", False), ("REAL", "BLOB", False)],
)  # fmt: skip
def test_a_child_reads_every_parent_where_sqlites_two_ways_to_match_them_differ(
    child_type: str, parent_type: str, agree: bool
) -> None:
    """SQLite lets a parent '2' become '2.0' under a child 2, which is an orphan when it is written the next time."""
    parents, children = f"id {parent_type} UNIQUE", f"id, p {child_type} REFERENCES parents(id)"
    keys = keys_of(f"CREATE TABLE parents({parents}); CREATE TABLE children({children})")
    assert keys.reads("children", 1, 1, None, (1, 2))[1] == ([] if agree else [object_range("t:parents")])
    assert keys.reads("children", 1, 1, (1, 2), (7, 2))[1] == ([] if agree else [object_range("t:parents")])


def test_a_parent_that_cannot_be_keyed_is_read_whole() -> None:
    keys = keys_of("CREATE TABLE p(a COLLATE odd UNIQUE); CREATE TABLE children(id, a REFERENCES p(a))")
    assert keys.reads("children", 1, 1, None, (1, "x")) == ([], [object_range("t:p")])
