"""SQLite's own answers: files of its sqllogictest format, at three nodes and at plain SQLite side by side."""

from contextlib import closing
from functools import partial
from pathlib import Path

import apsw
import pytest
import trio

from bedrockish import open_client
from bedrockish_journal.verify.replay import replay
from tests.cluster.story import command, level, ready, until
from tests.cluster.test_damage import filled, serving
from tests.cluster.test_damaged_pages import spoil_at_b
from tools.cluster import LocalCluster
from tools.logictest.records import FormatError, Printer, Query, Statement, Threshold, hashed, meets, parse
from tools.logictest.run import Outcome, Plain, Report
from tools.sqllogictest import digests, files_of, read, run_all

FOLDER = Path(__file__).parents[1] / "logic"
LAST = "query I nosort\nSELECT a FROM t\n"
DOCUMENTED = "documented.test"  # has a test of its own


def files() -> list[tuple[str, str]]:
    return [(text, name) for text, name in read(files_of((FOLDER,))) if name != DOCUMENTED]


def run(cluster: LocalCluster, *texts: str) -> list[Report]:
    named = [(text, f"{number}.test") for number, text in enumerate(texts, 1)]
    return trio.run(lambda: run_all(cluster, named, quiet=True))


@pytest.mark.cluster
def test_results_and_tables_equal_those_of_sqlite(cluster: LocalCluster) -> None:
    """Run the corpus; refused statements and differences by design are reported apart from
    failures.
    """
    special = """
statement ok
CREATE TABLE auto(id INTEGER PRIMARY KEY, v)

statement ok
INSERT INTO auto(v) VALUES ('a'), ('b')

statement ok
ATTACH ':memory:' AS other

query I nosort
SELECT count(*) FROM auto
----
3
"""
    *reports, last = run(cluster, *(text for text, _ in files()), special)
    assert not [line for report in reports for line in report.wrong + report.other + report.given]
    assert not any(report.refused for report in reports)
    assert sum(report.queries for report in reports) > 80
    assert sum(report.statements for report in reports) > 120
    assert last.wrong == []
    assert last.given == ["auto"] * 3
    assert last.refused.total() == 1
    assert len(last.other) == 1
    assert "SQLite gave 1: '2', not 1: '3'" in last.other[0]
    cluster.stop()
    assert len(digests(cluster)) == 1


@pytest.mark.cluster
async def test_documented_examples_hold_after_a_kill_a_repair_a_restore_and_a_replay(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The last queries of the file have their results at each node, and in the files that were made from the nodes'."""
    text = (FOLDER / DOCUMENTED).read_text(encoding="utf-8")
    (report,) = await run_all(cluster, [(text, DOCUMENTED)], quiet=True)
    assert (report.wrong, report.other, report.given, report.refused) == ([], [], [], {})
    last: list[Query] = []
    for record in parse(text, DOCUMENTED):
        last = [*last, record] if isinstance(record, Query) else []
    assert len(last) > 20
    await hold(cluster, last)
    cluster.nodes[2].kill()
    cluster.nodes[2].start()
    await spoil_at_b(cluster, "tbl")
    async with open_client(cluster.url(1, only=True)) as client:
        await client.upkeep({"do": "scrub"}, timeout=20)
    await until("B is filled again", partial(filled, cluster, 1))
    await serving(cluster)
    await hold(cluster, last)
    backup, restored, made = (tmp_path / f"{name}.db" for name in ("backup", "restored", "made"))
    await trio.to_thread.run_sync(command, "backup", cluster.url(), backup)
    await trio.to_thread.run_sync(command, "restore", "--from", backup, "--to", restored)
    await level(cluster)
    cluster.stop()
    assert len(digests(cluster)) == 1
    replay([node.database for node in cluster.nodes], made, order="random", seed=3)
    for path in (restored, made):
        with closing(apsw.Connection(str(path))) as db:
            for query in last:
                assert Printer().values(db.execute(query.sql).fetchall(), query) == list(query.expected or ()), (
                    query.sql
                )


async def hold(cluster: LocalCluster, queries: list[Query]) -> None:
    """Check the results of queries at each node."""
    await ready(cluster)
    await level(cluster)
    for node in range(len(cluster.nodes)):
        async with open_client(cluster.url(node, only=True)) as client:
            for query in queries:
                rows = (await client.execute(query.sql)).rows
                assert Printer().values(rows, query) == list(query.expected or ()), (node, query.sql)


@pytest.mark.cluster
def test_a_cluster_that_answers_otherwise_is_noticed(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed row, a changed type, a missing error and an additional row are each reported."""
    ask = Plain.run

    def lie(self: Plain, sql: str) -> Outcome:
        said = ask(self, sql)
        if sql == "SELECT 1":
            return Outcome([(1.0,)])
        if sql == "SELECT 2":
            return Outcome(error="no")
        if sql == "DELETE FROM t":
            return Outcome()
        return said

    monkeypatch.setattr(Plain, "run", lie)
    texts = [
        "query I nosort\nSELECT 1\n",
        "query I nosort\nSELECT 2\n",
        f"statement ok\nCREATE TABLE t(a)\n\nstatement ok\nINSERT INTO t VALUES (1)\n\n{LAST}",
    ]
    reports = run(cluster, *texts)
    assert [len(report.wrong) for report in reports] == [1, 1, 0]
    monkeypatch.setattr(Plain, "run", lambda self, sql: ask(self, sql.replace("(1)", "(2)")))
    (report,) = run(cluster, texts[2].replace(LAST, ""))
    assert [line for line in report.wrong if "at its end, table t of node" in line] == report.wrong != []


def test_the_format_is_read_as_its_description_has_it() -> None:
    text = """# a comment
hash-threshold 8

statement ok
CREATE TABLE t(
  a)

skipif sqlite
statement ok
nothing

onlyif mysql
statement ok
nothing

skipif mysql
query IT rowsort label-1
SELECT 1, 'x'
----
1
x

statement error
nonsense

query R
SELECT 1.5

halt

neither
"""
    assert list(parse(text, "f")) == [
        Threshold(8),
        Statement(4, "CREATE TABLE t(\n  a)", True),
        Query(17, "SELECT 1, 'x'", "IT", "rowsort", "label-1", ("1", "x")),
        Statement(23, "nonsense", False),
        Query(26, "SELECT 1.5", "R", "nosort", "", None),
    ]
    for wrong in ("statement maybe\nx", "query X\nSELECT 1", "query I upwards\nSELECT 1", "statement ok", "what"):
        with pytest.raises(FormatError, match="f:1: "):
            list(parse(wrong, "f"))


def test_values_are_written_as_the_format_has_them() -> None:
    printer = Printer()
    row = (None, "", "a\nb", "é", b"a\0b", 1 << 40, "12x", 2.0, 0.1, 3)
    query = Query(1, "", "TTTTTIIIRR", "nosort", "", None)
    values = ["NULL", "(empty)", "a@b", "@@", "a", str(1 << 40), "12", "2", "0.100", "3.000"]
    assert printer.values([row], query) == values
    assert printer.values([row], query, narrow=True)[5] == "0"
    rows = [(2, "b"), (10, "a")]
    assert printer.values(rows, Query(1, "", "IT", "rowsort", "", None)) == ["10", "a", "2", "b"]
    assert printer.values(rows, Query(1, "", "IT", "valuesort", "", None)) == ["10", "2", "a", "b"]
    assert hashed(["1", "2"]) == "2 values hashing to 6ddb4095eb719e2a9f0a3f95677d24e0"
    assert meets(["1", "2"], [hashed(["1", "2"])])
    assert not meets(["1", "3"], [hashed(["1", "2"])])
