"""Nodes' tables are compared a range at a time, at different cuts, and damaged rows are found by table and key."""

import gc
import random
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

import apsw
import cbor2
import pytest

from bedrockish.client import compare_nodes
from bedrockish.client.compare_nodes import ComparisonReport, NodeComparison
from bedrockish.errors import UnavailableError
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import Transaction, decode_transaction
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.verify import row_digests
from bedrockish_journal.verify.compare_rows import UNREADABLE, minority
from bedrockish_journal.verify.row_digests import (
    Range,
    RangeDigest,
    TouchedKeys,
    digest_range,
    pack_digest,
    pack_range,
    unpack_digest,
    unpack_range,
)
from tests.engine.nodes import Engine, Founding, TestNode

MEMBERS = Membership(0, {node: Member(node, f"localhost:{node}") for node in "ABC"})
SCHEMA = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, n REAL)",
    "CREATE TABLE p(a TEXT COLLATE NOCASE, b INT, c BLOB, PRIMARY KEY(a, b DESC)) WITHOUT ROWID",
    "CREATE TABLE plain(x, y AS (x || '!'))",
    "CREATE INDEX t_v ON t(v)",
)
TENS = "SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10"


class Three:
    """Three files; A leads everything, and the others apply it on the test's command."""

    def __init__(self, folder: Path) -> None:
        self.paths = {node: folder / f"{node}.db" for node in "ABC"}
        self.leader = TestNode.__new__(TestNode)
        self.others: dict[str, Engine] = {}
        for node, path in self.paths.items():
            engine = Engine.open(path, founding=Founding(node, MEMBERS, f"store-{node}"))
            if node == "A":
                self.leader.path, self.leader.node, self.leader.engine = path, node, engine
                self.leader.entries, self.leader.head, self.leader.tick = [], b"\0" * 32, 0
            else:
                self.others[node] = engine
        self.lost: set[str] = set()
        self.unreadable: dict[str, str] = {}  # node -> a table that SQLite cannot read there
        self.most_rows = 0  # the most rows of one request
        self.before_asking: Callable[[], None] = lambda: None
        for sql in SCHEMA:
            self.leader.run(sql)
        self.level()

    def level(self, *nodes: str) -> None:
        """Let nodes, by default all, apply their missing entries."""
        for node, engine in self.others.items():
            if node in nodes or not nodes:
                for entry in self.leader.entries[engine.applied.get("A", 0) :]:
                    engine.apply(entry, repeat=False, applied_ms=0)
        self.save()

    def save(self) -> None:
        for engine in (self.leader.engine, *self.others.values()):
            engine.flush()

    def damage(self, node: str, sql: str) -> None:
        """Change a node's file past it, as a disk would."""
        (self.leader.engine if node == "A" else self.others[node]).flush()
        engine = self.leader.engine if node == "A" else self.others[node]
        engine._db.execute("PRAGMA foreign_keys = 0")
        engine._db.execute(sql)
        engine.batch._actions.append((lambda: None, ()))  # an action to flush
        engine.flush()

    def ask(self, node: str) -> Callable[[Range, Vector | None], Awaitable[RangeDigest]]:
        async def ask(asked: Range, beyond: Vector | None) -> RangeDigest:
            if node in self.lost:
                raise UnavailableError(f"{node} is gone")
            if beyond is not None:
                self.before_asking()
            asked, beyond = unpack_range(pack_range(asked, beyond))
            db = apsw.Connection(str(self.paths[node]), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                found = digest_range(db, asked, beyond)
                self.most_rows = max(self.most_rows, found.count)
                if asked.table and self.unreadable.get(node) == asked.table:
                    found = RangeDigest(found.vector, found.schema, unreadable="malformed")
                return unpack_digest(pack_digest(found))
            finally:
                db.close()

        return ask

    async def compare(self, nodes: str = "ABC", limit: int = 7) -> ComparisonReport:
        return await NodeComparison({node: self.ask(node) for node in nodes}, 3, limit=limit).run()

    def close(self) -> None:
        for engine in (self.leader.engine, *self.others.values()):
            engine.close()


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Three]:
    monkeypatch.setattr(compare_nodes, "RETRY_S", 0.0)
    three = Three(tmp_path)
    three.leader.run(*[f"INSERT INTO t VALUES ({n}, 'text {n}', {n}.5)" for n in range(40)])
    three.leader.run(*[f"INSERT INTO p VALUES ('{'ab'[n % 2]}{n // 5}', {n}, x'0{n % 10}')" for n in range(30)])
    three.leader.run(*[f"INSERT INTO plain(x) VALUES ({n})" for n in range(20)])
    three.level()
    yield three
    three.close()


async def test_equal_nodes_have_no_differences(three: Three) -> None:
    report = await three.compare()
    assert (report.differences, report.skipped, report.uncompared, report.lost_nodes) == ([], [], 0, {})
    assert (report.tables, report.rows, report.nodes) == (3, 90, ["A", "B", "C"])


@pytest.mark.parametrize(
    ("sql", "table", "key"),
    [
        ("UPDATE t SET v = 'tExt 17' WHERE id = 17", "t", "17"),
        ("UPDATE t SET n = 17 WHERE id = 17", "t", "17"),
        ("UPDATE t SET v = CAST(x'ff41' AS TEXT) WHERE id = 39", "t", "39"),
        ("DELETE FROM t WHERE id = 0", "t", "0"),
        ("INSERT INTO t VALUES (1000, 'ghost', 1)", "t", "1000"),
        ("UPDATE p SET c = x'ff' WHERE a = 'b1' AND b = 7", "p", "('b1', 7)"),
        ("DELETE FROM p WHERE a = 'a0' AND b = 2", "p", "('a0', 2)"),
        ("UPDATE plain SET x = '3' WHERE x = 3", "plain", ""),
    ],
)
async def test_row_that_no_commit_wrote_is_found(three: Three, sql: str, table: str, key: str) -> None:
    """The report has table, key and the node in the minority; every other row is equal."""
    three.damage("B", sql)
    report = await three.compare()
    found = [(one.table, one.key, one.minority) for one in report.differences]
    assert found == [(table, key or found[0][1], ("B",))]  # a rowid that no statement chose is unpredictable
    assert (report.skipped, report.uncompared) == ([], 0)


async def test_rows_are_judged_by_a_majority_of_all_members(three: Three) -> None:
    """If two nodes differ, neither counts as right; if three nodes all differ, none of them does."""
    three.damage("B", "UPDATE t SET v = 'b' WHERE id = 3")
    (one,) = (await three.compare("AB")).differences
    assert one.minority == ()
    assert "no majority" in str(one)
    three.damage("C", "UPDATE t SET v = 'c' WHERE id = 3")
    (one,) = (await three.compare()).differences
    assert one.minority == ()
    assert minority({"A": "1", "B": "1", "C": "2"}, 5) == ()
    assert minority({"A": "1", "B": "1", "C": "1", "D": "2"}, 5) == ("D",)


async def test_commits_applied_by_some_nodes_are_not_differences(three: Three) -> None:
    """Nodes are at different cuts: only rows without writes in between are compared, and a damaged one among them is
    found.
    """
    three.leader.run("UPDATE t SET v = 'new' WHERE id IN (5, 6)", "DELETE FROM p WHERE a = 'a1'")
    three.leader.run("INSERT INTO t VALUES (700, 'new', 0)")
    three.leader.run("INSERT INTO p VALUES ('zz', 1, x'')", "UPDATE t SET id = 701 WHERE id = 8")
    three.level("B")
    report = await three.compare()
    assert (report.differences, report.skipped) == ([], [])
    assert report.uncompared > 0, "what C has not applied was left open"
    three.damage("C", "UPDATE t SET v = 'wrong' WHERE id = 7")
    report = await three.compare()
    assert [(one.table, one.key, one.minority) for one in report.differences] == [("t", "7", ("C",))]
    three.level()
    assert [one.key for one in (await three.compare()).differences] == ["7"]


async def test_rows_written_during_the_comparison_are_compared_again(three: Three) -> None:
    """Each question finds another cut; a row that was open the first time can be compared later."""
    three.leader.run("UPDATE t SET v = 'new' WHERE id = 5")
    three.save()
    three.before_asking = three.level
    report = await three.compare()
    assert (report.differences, report.uncompared) == ([], 0)


async def test_random_writes_at_random_cuts_never_look_like_damage(three: Three) -> None:
    luck = random.Random(5)
    for round_ in range(25):
        for _ in range(luck.randint(1, 4)):
            row = luck.randrange(45)
            sql = luck.choice(
                [
                    f"INSERT OR REPLACE INTO t VALUES ({row}, 'r{round_}', 1)",
                    f"DELETE FROM t WHERE id = {row}",
                    f"UPDATE p SET c = x'aa' WHERE b = {row}",
                    f"INSERT OR REPLACE INTO p VALUES ('a{row}', {row}, NULL)",
                ]
            )
            three.leader.run(sql)
        if luck.random() < 0.7:
            three.level(*luck.sample("BC", luck.randint(1, 2)))
        three.save()
        three.before_asking = luck.choice([three.level, lambda: None])
        assert not (await three.compare(limit=luck.randint(1, 60))).differences


async def test_comparison_finds_the_node_that_lost_most_of_a_table_even_as_its_leader(three: Three) -> None:
    three.damage("A", "DELETE FROM t")
    report = await three.compare(limit=5)
    assert {one.minority for one in report.differences} == {("A",)}
    assert len(report.differences) == 40


async def test_comparison_continues_without_a_node_that_goes_away(three: Three) -> None:
    three.lost = {"A"}
    report = await three.compare()
    assert (report.nodes, report.lost_nodes) == (["B", "C"], {"A": "A is gone"})
    three.lost = {"A", "B"}
    with pytest.raises(UnavailableError, match="not two nodes"):
        await three.compare()


async def test_a_change_of_the_schema_is_waited_for_and_a_definition_that_differs_is_named(three: Three) -> None:
    three.leader.run("CREATE TABLE late(id INTEGER PRIMARY KEY)")
    three.save()
    report = await three.compare()
    assert "the schema is being changed" in report.skipped[0]
    assert not report.differences
    three.level()
    assert not (await three.compare()).skipped
    three.damage("C", "DROP INDEX t_v")
    (one,) = (await three.compare()).differences
    assert (one.table, one.minority) == ("", ("C",))
    assert "t_v" in str(one)


async def test_unreadable_page_is_reported_with_its_node(three: Three) -> None:
    three.leader.run(*[f"INSERT INTO t VALUES ({1000 + i}, '{'x' * 300}', 0)" for i in range(300)])
    three.level()
    three.others["B"].wal.checkpoint()
    three.others["B"].close()
    with apsw.Connection(str(three.paths["B"])) as db:
        db.pragma("wal_checkpoint(truncate)")
        pages = [page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = 't' AND pagetype = 'leaf'")]
        size = db.pragma("page_size")
    db.close()
    data = bytearray(three.paths["B"].read_bytes())
    first = (pages[len(pages) // 2] - 1) * size
    data[first : first + size] = b"\xee" * size
    three.paths["B"].write_bytes(data)
    three.others["B"] = Engine.open(three.paths["B"], founding=None)
    report = await three.compare(limit=50)
    assert [(one.table, one.key, one.minority) for one in report.differences] == [("t", UNREADABLE, ("B",))]
    assert report.tables == 3


def test_malformed_question_for_a_digest_is_refused() -> None:
    keys: list[Any] = [[], [[1]], [{}], [None], [1 << 63], [True], [1] * 2_001]
    questions: list[dict[str, Any]] = [
        {},
        {"table": 1},
        {"table": "t", "after": 5},
        {"table": "t", "limit": -1},
        {"table": "t", "limit": 1 << 63},
        {"table": "", "beyond": 1},
        {"table": "", "beyond": {"A": 1 << 63}},
        {"table": "", "beyond": {1: 1}},
        *({"table": "t", "upto": key} for key in keys),
    ]
    for packed in questions:
        with pytest.raises(ValueError, match="should"):
            unpack_range(packed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"vector": {"A": inf}},
        {"schema": None},
        {"digest": 1 << 40},  # as many zeros would be allocated for it
        {"count": "many"},
        {"last": [{}]},
        {"rows": {b"key": 1 << 40}},
        {"touched": [1 << 40]},
        {"incomparable": 1},
    ],
)
def test_answer_that_is_not_a_digest_is_refused(wrong: dict[str, Any]) -> None:
    packed = pack_digest(RangeDigest({"A": 1}, 1, b"digest", 1, (1,), {b"key": b"one"}, {b"other"}))
    assert pack_digest(unpack_digest(packed)) == packed
    with pytest.raises(ValueError, match=r"answer has no digest|should be a list"):
        unpack_digest(packed | wrong)


def test_digest_range_refuses_a_key_with_another_number_of_columns(three: Three) -> None:
    """The schema may have changed between the question and the answer."""
    db = apsw.Connection(str(three.paths["A"]), flags=apsw.SQLITE_OPEN_READONLY)
    found = digest_range(db, Range("t", after=(1, 2), limit=10))
    assert found.incomparable == "the key of t has 1 column(s) here"
    db.close()


def test_long_values_are_read_one_row_at_a_time(three: Three) -> None:
    """Encoding several long values at once would block the interpreter; a range keeps only their digests."""
    sizes = (row_digests.LONG_BYTES - 1, row_digests.LONG_BYTES, 300_000)
    values = [value for size in sizes for value in (b"x" * size, "ä" * size)]
    rows = [(1_000 + number, value, None) for number, value in enumerate(values)]
    for row in rows:
        three.leader.run(("INSERT INTO t VALUES (?, ?, ?)", row))
    three.save()
    db = apsw.Connection(str(three.paths["A"]), flags=apsw.SQLITE_OPEN_READONLY)
    expected = {cbor2.dumps((row[0],)): blake2b(cbor2.dumps((row[0], *row)), digest_size=8).digest() for row in rows}
    total = blake2b(b"".join(cbor2.dumps((row[0], *row)) for row in rows), digest_size=8).digest()
    found = digest_range(db, Range("t", after=(999,)), {"A": 10_000})
    assert (found.rows, found.digest, found.count) == (expected, total, len(rows))
    for _ in range(4):
        three.leader.run(f"WITH RECURSIVE n(i) AS ({TENS}) INSERT INTO plain(x) SELECT zeroblob(1 << 20) FROM n")
    three.save()
    gc.collect()
    tracemalloc.start()
    try:
        assert digest_range(db, Range("plain")).count == 60
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    db.close()


async def test_range_of_long_rows_ends_after_some_megabytes(three: Three) -> None:
    """A range of 500 rows of 2 MB would hold the log's snapshot for ten seconds, and three would keep a node busy."""
    for number in range(9):
        three.leader.run(("INSERT INTO t VALUES (?, ?, NULL)", (1_000 + number, b"x" * (1 << 20))))
    three.level()
    db = apsw.Connection(str(three.paths["A"]), flags=apsw.SQLITE_OPEN_READONLY)
    found = digest_range(db, Range("t", after=(999,), limit=500))
    assert (found.count, found.last) == (4, (1_003,))
    found = digest_range(db, Range("t", after=(1_007,), limit=500))
    assert (found.count, found.last) == (1, None)
    db.close()
    three.most_rows = 0
    report = await three.compare(limit=500)
    assert (report.differences, report.rows, three.most_rows) == ([], 99, 44)
    three.damage("B", "UPDATE t SET v = zeroblob(1 << 20) WHERE id = 1008")
    assert [(one.key, one.minority) for one in (await three.compare(limit=500)).differences] == [("1008", ("B",))]


@pytest.mark.parametrize("node", "ABC")
async def test_comparison_reports_an_unreadable_page_and_continues_with_the_other_nodes(
    three: Three, node: str
) -> None:
    """This holds also for the node that makes the ranges; without it no node would get the following ranges."""
    three.unreadable[node] = "t"
    other = "B" if node == "A" else "A"
    three.damage(other, "UPDATE t SET v = 'tExt 39' WHERE id = 39")
    three.damage(other, "UPDATE p SET c = x'ff' WHERE a = 'a0' AND b = 0")
    report = await three.compare()
    assert [(one.table, one.minority) for one in report.differences if one.key == UNREADABLE] == [("t", (node,))]
    assert report.nodes == ["A", "B", "C"]
    assert report.tables == 3
    assert {one.table for one in report.differences if one.key != UNREADABLE} == {"t", "p"}
    assert three.most_rows <= 2 * 7


async def test_other_tables_are_compared_if_a_page_of_one_node_is_unreadable(three: Three) -> None:
    three.unreadable["B"] = "t"
    three.damage("B", "UPDATE plain SET x = 1000 WHERE x = 3")
    report = await three.compare("AB")
    assert [(one.table, one.minority) for one in report.differences if one.key == UNREADABLE] == [("t", ("B",))]
    assert {one.table for one in report.differences} == {"t", "plain"}
    assert report.nodes == ["A", "B"]


async def test_node_that_applies_nothing_is_asked_about_each_range_once(three: Three) -> None:
    """A further try would find the same rows open.

    With repeated questions a damaged node would not catch up with a busy cluster's new rows.
    """
    asked: list[None] = []
    three.before_asking = lambda: asked.append(None)
    three.leader.run(*[f"INSERT INTO t VALUES ({n}, 'new', 0)" for n in range(100, 121)])
    three.save()
    nodes = {node: three.ask(node) for node in "ABC"}
    report = await NodeComparison(nodes, 3, limit=7, tries=1).run()
    assert (report.differences, report.skipped, report.uncompared) == ([], [], 21)
    assert len(asked) == 3 * (1 + 4), "each node about the definitions, and about each range with new rows"


def test_entries_are_decoded_once_for_questions_with_the_same_vector(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each range decoded all entries again, a cluster would decide only a few commits a second."""
    decoded: list[bytes] = []
    real = decode_transaction

    def decode(body: bytes) -> Transaction:
        decoded.append(body)
        return real(body)

    monkeypatch.setattr(row_digests, "decode_transaction", decode)
    beyond, known = {"A": three.leader.engine.applied["A"]}, TouchedKeys()
    db = apsw.Connection(str(three.paths["A"]), flags=apsw.SQLITE_OPEN_READONLY)

    def touched(table: str = "t", vector: Vector = beyond, after: int = 0) -> set[bytes]:
        decoded.clear()
        asked = Range(table, after=(after,), limit=10)
        found = digest_range(db, asked, vector, known)
        assert found == digest_range(db, asked, vector), "as without the keys of earlier questions"
        assert not found.incomparable
        return found.touched

    def keys(*numbers: int) -> set[bytes]:
        return {cbor2.dumps((number,)) for number in numbers}

    three.leader.run("INSERT INTO t VALUES (100, 'a', 0)")
    three.leader.run("INSERT INTO t VALUES (101, 'b', 0)", "INSERT INTO plain(x) VALUES (7)")
    three.save()
    assert (touched(), len(decoded)) == (keys(100, 101), 2 * 2)
    assert (touched(after=20), len(decoded)) == (keys(100, 101), 2)
    three.leader.run("DELETE FROM t WHERE id = 3")
    three.save()
    assert (touched(), len(decoded)) == (keys(3, 100, 101), 1 + 3), "only the new entry"
    assert touched(vector={"A": beyond["A"] + 1}) == keys(3, 101)
    assert len(touched("plain")) == 1
    assert touched() == keys(3, 100, 101)
    db.close()
