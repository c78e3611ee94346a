"""SQLite's own answers: files of its sqllogictest format, at three nodes and at plain SQLite side by side."""

from pathlib import Path

import pytest
import trio

from tools.cluster import LocalCluster
from tools.logictest.records import FormatError, Printer, Query, Statement, Threshold, hashed, meets, parse
from tools.logictest.run import Outcome, Plain, Report
from tools.sqllogictest import digests, files_of, read, run_all

FOLDER = Path(__file__).parents[1] / "logic"
LAST = "query I nosort\nSELECT a FROM t\n"


def files() -> list[tuple[str, str]]:
    return list(read(files_of((FOLDER,))))


def run(cluster: LocalCluster, *texts: str) -> list[Report]:
    named = [(text, f"{number}.test") for number, text in enumerate(texts, 1)]
    return trio.run(lambda: run_all(cluster, named, quiet=True))


@pytest.mark.cluster
def test_every_result_and_all_tables_are_those_of_sqlite(cluster: LocalCluster) -> None:
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
def test_a_cluster_that_answers_otherwise_is_noticed(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another row, another type, an error too few, a row too many in the end."""
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
