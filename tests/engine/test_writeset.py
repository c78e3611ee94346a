"""The declared writes of changed rows, and the reads for their constraints."""

from typing import Any

import apsw
import pytest

from bedrockish.access_sets.catalog import read_schema
from bedrockish.access_sets.key_encoding import Spec, column_key, encode, table_key
from bedrockish.access_sets.writeset import WriteKeys
from bedrockish_journal.model.access_set import conflict, object_range
from tests.engine.conftest import MakeNode
from tests.engine.index_keys import index_prefix


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


def test_insert_writes_the_row_key_and_the_index_entries() -> None:
    points, ranges = keys_of(PEOPLE).keys("people", 1, 1, None, ANN)
    assert ranges == []
    assert set(points) == {
        table_key("people", 1),
        index_prefix("by_name", ["ann", 40, 1], NAME),
        index_prefix(EMAIL, ["a@b", 1], (Spec(), Spec())),
        index_prefix(EMAIL, ["a@b"], (Spec(),)),
        b"u:people\0" + encode(1),
    }


def test_update_writes_old_new_and_unchanged_index_entries() -> None:
    points, _ = keys_of(PEOPLE).keys("people", 1, 1, ANN, (1, "Ann", "a@b", 41))
    assert set(points) == {
        table_key("people", 1),
        index_prefix("by_name", ["ann", 40, 1], NAME),
        index_prefix("by_name", ["ann", 41, 1], NAME),
        # a reader that found the row by its email must notice the change
        index_prefix(EMAIL, ["a@b", 1], (Spec(), Spec())),
        column_key(b"u:people\0" + encode(1), "age"),
    }


def test_row_with_a_new_rowid_writes_both_rowids() -> None:
    points, _ = keys_of(PEOPLE).keys("people", 1, 2, ANN, (2, *ANN[1:]))
    assert {table_key("people", 1), table_key("people", 2)} <= set(points)


def test_equal_unique_values_conflict_and_nulls_do_not() -> None:
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


def test_row_key_without_rowid_is_the_primary_key() -> None:
    keys = keys_of("CREATE TABLE w(a, b, c, PRIMARY KEY(b DESC, a)) WITHOUT ROWID; CREATE INDEX by_c ON w(c)")
    points, _ = keys.keys("w", None, None, None, (1, 2, 3))
    place = index_prefix("x", [2, 1], (Spec(descending=True), Spec()))[len(b"i:x\0") :]
    assert set(points) == {b"t:w\0" + place, b"i:by_c\0" + encode(3) + place}


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ("a COLLATE odd", b""),
        ("a, v COLLATE odd", encode("text")),
        ("lower(a), v COLLATE odd, a", encode("text")),
        ("v", encode("textx")),
    ],
)
def test_index_key_has_the_known_values_and_then_the_rowid(index: str, told: bytes) -> None:
    keys = keys_of(f"CREATE TABLE x(a, v AS (a || 'x')); CREATE INDEX i ON x({index})")
    points, ranges = keys.keys("x", 4, 4, None, ("text",))
    assert (set(points), ranges) == ({table_key("x", 4), b"i:i\0" + told + encode(4)}, [])


COMPUTED = (  # an index on x(id, a, b, v AS (lower(a))), and its entry for the row (4, 'Text', 7)
    ("lower(a)", ("text",)),
    ("v", ("text",)),
    ("lower(a), b DESC", ("text", 7)),
    ("b, v COLLATE NOCASE", (7, "text")),
    ("\"b\" + 1, [a] || ')' || ',' DESC", (8, "Text),")),
    ("CASE WHEN b > 5 THEN lower(a) END ASC", ("text",)),
    ("lower(a) /* , ( */, -- ) , (\n b", ("text", 7)),
    ("CAST(b AS TEXT)", ("7",)),
    ("a || id", ("Text4",)),
)


@pytest.mark.parametrize("unique", ["CREATE UNIQUE INDEX i ON x({})", 'CREATE UNIQUE INDEX IF NOT EXISTS "i" ON x({})'])
@pytest.mark.parametrize(("index", "entry"), COMPUTED)
def test_computed_unique_value_is_a_key(unique: str, index: str, entry: tuple[Any, ...]) -> None:
    keys = keys_of("CREATE TABLE x(id INTEGER PRIMARY KEY, a TEXT, b INT, v AS (lower(a)));" + unique.format(index))
    specs = tuple(
        Spec("NOCASE" if "NOCASE" in index and part == "text" else "BINARY", "DESC" in index and part in (7, "Text),"))
        for part in entry
    )
    points, ranges = keys.keys("x", 4, 4, None, (4, "Text", 7))
    assert ranges == []
    assert set(points) == {
        table_key("x", 4),
        index_prefix("i", entry, specs),
        index_prefix("i", [*entry, 4], (*specs, Spec())),
    }
    moved, _ = keys.keys("x", 4, 4, (4, "Text", 7), (4, "Text", 7))
    assert set(moved) == {table_key("x", 4), index_prefix("i", [*entry, 4], (*specs, Spec()))}


def test_expression_on_text_bytes_is_computed_in_the_encoding_of_the_file() -> None:
    ddl = "CREATE TABLE x(a TEXT); CREATE UNIQUE INDEX i ON x(length(CAST(a AS BLOB)))"
    for encoding, length in (("UTF-8", 2), ("UTF-16le", 4)):
        points, _ = keys_of(f"PRAGMA encoding = '{encoding}'; {ddl}").keys("x", 4, 4, None, ("ab",))
        assert index_prefix("i", [length], (Spec(),)) in points


def test_update_writes_the_old_and_the_new_computed_value() -> None:
    keys = keys_of("CREATE TABLE x(a TEXT, b); CREATE UNIQUE INDEX i ON x(lower(a))")
    points, _ = keys.keys("x", 4, 4, ("One", 1), ("TWO", 1))
    assert {index_prefix("i", [one], (Spec(),)) for one in ("one", "two")} < set(points)
    null, _ = keys.keys("x", 4, 4, None, (None, 1))
    place = b"u:x\0" + encode(4)
    assert set(null) == {table_key("x", 4), index_prefix("i", [None, 4], (Spec(), Spec())), place}


def test_value_that_cannot_be_computed_writes_the_whole_table() -> None:
    """A partial index computes the value only for its own rows."""
    keys = keys_of("CREATE TABLE x(a); CREATE UNIQUE INDEX i ON x(a ->> '$.k') WHERE json_valid(a)")
    points, ranges = keys.keys("x", 4, 4, None, ('{"k": 5}',))
    assert (index_prefix("i", [5], (Spec(),)) in points, ranges) == (True, [])
    points, ranges = keys.keys("x", 4, 4, ('{"k": 5}',), ("no JSON",))
    assert points == []
    assert object_range("t:x") in ranges
    assert object_range("i:i") in ranges


def test_unique_value_with_a_users_collation_writes_the_whole_index() -> None:
    """Bytes do not show which values the collation holds equal."""
    keys = keys_of("CREATE TABLE x(a TEXT COLLATE odd UNIQUE, b)")
    name = "sqlite_autoindex_x_1"
    for old, new, whole in (
        (None, ("p", 1), True),
        (("p", 1), None, True),
        (("p", 1), ("q", 1), True),
        (("p", 1), ("p", 2), False),
        (None, (None, 1), False),
        ((None, 1), ("p", 1), True),
    ):
        points, ranges = keys.keys("x", 4, 4, old, new)
        assert table_key("x", 4) in points
        assert ranges == ([object_range("i:" + name)] if whole else []), (old, new)


def test_primary_key_with_a_users_collation_writes_the_whole_table() -> None:
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


def test_new_child_conflicts_with_the_removal_of_its_parent() -> None:
    keys = keys_of(FAMILY)
    gone = parent(keys, (5, "X", 0), None)
    assert child(keys, None, (1, "5", None, 0)) <= gone  # the parent's affinity decides what "5" is
    assert child(keys, None, (1, None, "x", 0)) <= gone
    assert child(keys, (1, 4, None, 0), (1, 5, None, 0)) & gone


def test_child_does_not_conflict_with_changes_of_other_columns_of_its_parent() -> None:
    keys = keys_of(FAMILY)
    noted = parent(keys, (5, "X", 0), (5, "X", 1))
    assert not child(keys, None, (1, 5, "x", 0)) & noted
    assert child(keys, None, (1, 5, "x", 0)) & parent(keys, (5, "X", 0), (5, "Y", 0))


def test_only_a_child_with_a_new_reference_reads_its_parent() -> None:
    keys = keys_of(FAMILY)
    assert child(keys, None, (1, None, None, 0)) == set()
    assert child(keys, (1, 5, "x", 0), (1, 5, "x", 1)) == set()
    assert child(keys, (1, 5, "x", 0), None) == set()


@pytest.mark.parametrize(
    ("child_type", "parent_type", "agree"),
    [("INT", "INTEGER", True), ("", "INT", True), ("TEXT", "INT", True), ("", "TEXT", False), ("VARCHAR", "TEXT", True),
     ("INT", "TEXT", False), ("TEXT", "", False), ("REAL", "BLOB", False)],
)  # fmt: skip
def test_child_reads_all_parents_if_sqlite_matches_them_in_two_ways(
    child_type: str, parent_type: str, agree: bool
) -> None:
    """SQLite lets a parent '2' become '2.0' under a child 2, which then violates the key at its next write."""
    parents, children = f"id {parent_type} UNIQUE", f"id, p {child_type} REFERENCES parents(id)"
    keys = keys_of(f"CREATE TABLE parents({parents}); CREATE TABLE children({children})")
    assert keys.reads("children", 1, 1, None, (1, 2))[1] == ([] if agree else [object_range("t:parents")])
    assert keys.reads("children", 1, 1, (1, 2), (7, 2))[1] == ([] if agree else [object_range("t:parents")])


def test_a_parent_that_cannot_be_keyed_is_read_whole() -> None:
    keys = keys_of("CREATE TABLE p(a COLLATE odd UNIQUE); CREATE TABLE children(id, a REFERENCES p(a))")
    assert keys.reads("children", 1, 1, None, (1, "x")) == ([], [object_range("t:p")])


@pytest.mark.parametrize("index", ["lower(name)", "low", "name COLLATE odd"])
def test_uniqueness_check_of_a_computed_value_does_not_count_as_read(make_node: MakeNode, index: str) -> None:
    """The keys of the new rows suffice, so INSERTs of other values run in parallel, at serializable, too."""
    node = make_node(prepare=lambda db: db.create_collation("odd", lambda a, b: (a > b) - (a < b)))
    node.run(
        "CREATE TABLE x(id INTEGER PRIMARY KEY, name TEXT, low AS (lower(name)))",
        f"CREATE UNIQUE INDEX i ON x({index})",
    )

    def met(*statements: str) -> bool:
        one, other = (node.prepare(sql).access_set for sql in statements)
        return conflict(one, other) is not None

    insert = "INSERT INTO x(id, name) VALUES ({}, '{}')"
    assert met(insert.format(1, "same"), insert.format(2, "same"))
    assert met(insert.format(1, "a"), insert.format(2, "b")) == ("odd" in index)
    ignore = "INSERT OR IGNORE INTO x(id, name) VALUES (2, 'b')"
    assert met(insert.format(1, "a"), ignore), "whether it is there decides what happens, and may be anywhere"
