"""Large transactions: bounded access sets that conflict whenever single keys would, and a bound on their size."""

import pytest

from bedrockish.access_sets import analysis as bulk
from bedrockish.access_sets.analysis import BYTES_MAX, GROUP_MAX, POINTS_MAX, access_set
from bedrockish.access_sets.key_encoding import encode
from bedrockish.engine.execution.prepared_size import check_size
from bedrockish.errors import TooLargeError
from bedrockish_journal.model.access_set import AccessSet, clock_key, conflict, object_of
from tests.engine.nodes import TestNode


def test_many_keys_of_one_object_become_the_range_from_the_first_to_the_last() -> None:
    many = {b"t:many\0" + number.to_bytes(4) for number in range(1000, 1000 + POINTS_MAX)}
    few = {b"t:few\0" + number.to_bytes(4) for number in range(GROUP_MAX)} | {clock_key(7)}
    for reads, writes in ((many | few, set()), (set(), many | few)):
        found = access_set(reads, {(b"i:x\0", b"i:x\0\xff")}, writes, set())
        assert found.read_points | found.write_points == few
        assert (min(many), max(many) + b"\xff") in (*found.read_ranges, *found.write_ranges)
        assert (b"i:x\0", b"i:x\0\xff") in found.read_ranges
        for point in (min(many), max(many), sorted(many)[500], b"t:few\0" + (3).to_bytes(4)):
            assert conflict(found, AccessSet(write_points=frozenset([point]))) is not None
        for other in (b"t:many\0" + (999).to_bytes(4), b"t:many\0" + (1000 + POINTS_MAX).to_bytes(4), b"t:other\0"):
            assert conflict(found, AccessSet(write_points=frozenset([other]))) is None
    assert access_set(few, set(), few, set()) == AccessSet(frozenset(few), (), frozenset(few), ())


def test_a_statement_that_changes_very_many_rows_writes_all_between_them(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement writes all indexes of the table, too, and still reads the parents of each row."""
    monkeypatch.setattr(bulk, "ROWS_MAX", 5)
    node.run("CREATE TABLE p(id INTEGER PRIMARY KEY)")
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a REFERENCES p(id))")
    node.run("CREATE INDEX ta ON t(a)")
    node.run("INSERT INTO p VALUES (1), (2), (3)")
    numbers = "WITH n(i) AS (VALUES (1), (2), (3), (4), (5), (6)) INSERT INTO t SELECT i, 1 + i % 3 FROM n"
    prepared = node.prepare(numbers)
    assert not prepared.access_set.write_points
    assert (b"i:ta\0", b"i:ta\0\xff") in prepared.access_set.write_ranges
    assert len(prepared.access_set.write_ranges) == 4
    for rowid in range(-2, 10):
        for name in (b"t:t\0", b"i:t\0", b"u:t\0"):
            one = AccessSet(frozenset({name + encode(rowid)}))
            assert (conflict(one, prepared.access_set) is not None) == (1 <= rowid <= 6), (name, rowid)
    assert len([key for key in prepared.access_set.read_points if key.startswith(b"i:p\0")]) == 3
    few = node.prepare(numbers + " LIMIT 5")
    assert few.access_set.write_points
    assert not few.access_set.write_ranges
    node.run(numbers)
    moved = node.prepare("UPDATE t SET id = id + 100")
    for rowid in (1, 6, 50, 101, 106):
        assert conflict(AccessSet(frozenset({b"t:t\0" + encode(rowid)})), moved.access_set) is not None
    assert conflict(AccessSet(frozenset({b"t:t\0" + encode(107)})), moved.access_set) is None
    node.run("CREATE TABLE w(a PRIMARY KEY, b) WITHOUT ROWID")
    whole = node.prepare("WITH n(i) AS (VALUES (1), (2), (3), (4), (5), (6)) INSERT INTO w SELECT i, i FROM n")
    assert (b"t:w\0", b"t:w\0\xff") in whole.access_set.write_ranges


@pytest.mark.parametrize(
    ("statement", "spans"),
    [
        ("DELETE FROM t", {"i:plain", "i:one", "i:some", "i:made"}),
        ("UPDATE t SET c = c + 1", {"i:plain", "i:one"}),
        ("UPDATE t SET a = a || 'x'", {"i:plain"}),
        ("UPDATE t SET id = id + 100", {"i:plain", "i:one"}),
        ("INSERT INTO t(a, b, c) SELECT a || 'y', b, c FROM t", {"i:plain"}),
    ],
)
def test_bulk_statement_does_not_conflict_at_indexes_that_it_does_not_write(
    node: TestNode, monkeypatch: pytest.MonkeyPatch, statement: str, spans: set[str]
) -> None:
    """Two rows may have the same value in a UNIQUE index, so the statement must write none; the columns show that."""
    monkeypatch.setattr(bulk, "ROWS_MAX", 5)
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b INT, c INT)")
    for index in ("INDEX plain ON t(b, c)", "UNIQUE INDEX one ON t(a)", "UNIQUE INDEX some ON t(a) WHERE b > 0",
                  "UNIQUE INDEX made ON t(lower(a))"):  # fmt: skip
        node.run(f"CREATE {index}")
    numbers = "WITH n(i) AS (VALUES (1), (2), (3), (4), (5), (6))"
    node.run(f"{numbers} INSERT INTO t SELECT i, 'a' || i, i, i FROM n")
    prepared = node.prepare(statement)
    assert {object_of(low) for low, _ in prepared.spans} == spans
    assert set(prepared.spans) <= set(prepared.access_set.write_ranges)


def test_too_large_transaction_is_refused(node: TestNode) -> None:
    """Rows, results and keys count together; the result of a read-only request does not count."""
    node.run("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
    size = BYTES_MAX // 2 + 1000
    check_size(node.prepare(f"INSERT INTO t VALUES (1, zeroblob({size}))"))
    with pytest.raises(TooLargeError, match="split it"):
        check_size(node.prepare(f"INSERT INTO t VALUES (1, zeroblob({size})) RETURNING a"))
    check_size(node.prepare(f"SELECT zeroblob({size}) UNION ALL SELECT zeroblob({size})"))
    node.run("CREATE INDEX ta ON t(a)")
    with pytest.raises(TooLargeError):
        check_size(node.prepare(f"INSERT INTO t VALUES (1, zeroblob({size}))"))
