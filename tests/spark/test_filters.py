"""The conditions of a query: excluded entries are not read, and conditions that cannot be pushed down still hold."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from bedrockish_journal.model.changes import INSERT, Change, encode_changes
from bedrockish_journal.spark.session import PUSHDOWN
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.files import open_file
from bedrockish_journal.spark.source.filters import limits_of
from bedrockish_journal.spark.source.options import Options
from bedrockish_journal.spark.source.plans import HIGHEST, LOWEST, NARROW_MOST, NO_LIMITS, Limits, plan
from bedrockish_journal.spark.source.source import BedrockishReader, PushingReader
from bedrockish_journal.spark.source.tables import PLACE, TABLES
from tests.spark.make_journals import make_journals
from tests.spark.worlds import START_MS, World, honest, touching

AT = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
CLOCK = int(AT.timestamp()) * 1000 << 22
ONE_MS = 1 << 22


@pytest.mark.parametrize(
    ("condition", "limits", "exact"),
    [
        (EqualTo(("leader",), "A"), Limits(leaders=frozenset("A")), True),
        (EqualNullSafe(("leader",), "A"), Limits(leaders=frozenset("A")), True),
        (EqualNullSafe(("leader",), None), NO_LIMITS, False),
        (In(("leader",), ("A", "B")), Limits(leaders=frozenset("AB")), True),
        (In(("leader",), ("A", None)), NO_LIMITS, False),
        (GreaterThan(("leader",), "A"), NO_LIMITS, False),
        (Not(EqualTo(("leader",), "A")), NO_LIMITS, False),
        (StringStartsWith(("leader",), "A"), NO_LIMITS, False),
        (EqualTo(("table",), "t"), Limits(tables=frozenset("t")), True),
        (EqualTo(("clock",), 7), Limits(clocks=(7, 7)), True),
        (GreaterThan(("clock",), 7), Limits(clocks=(8, HIGHEST)), True),
        (GreaterThanOrEqual(("clock",), 7), Limits(clocks=(7, HIGHEST)), True),
        (LessThan(("tick",), 7), Limits(ticks=(LOWEST, 6)), True),
        (LessThanOrEqual(("tick",), 7), Limits(ticks=(LOWEST, 7)), True),
        (In(("tick",), (9, 3)), Limits(ticks=(3, 9)), False),
        (In(("tick",), ()), NO_LIMITS, False),
        (LessThan(("clock",), 7.5), NO_LIMITS, False),
        (EqualTo(("clock",), True), NO_LIMITS, False),
        (EqualTo(("origin",), "A"), NO_LIMITS, False),
        (GreaterThan(("committed_at",), AT), Limits(clocks=(CLOCK, HIGHEST)), False),
        (
            LessThan(("committed_at",), AT + timedelta(microseconds=1500)),
            Limits(clocks=(LOWEST, CLOCK + 2 * ONE_MS - 1)),
            False,
        ),
        (EqualTo(("committed_at",), AT), Limits(clocks=(CLOCK, CLOCK + ONE_MS - 1)), False),
        (GreaterThan(("committed_at",), datetime(9999, 1, 1, tzinfo=UTC)), Limits(clocks=(HIGHEST, HIGHEST)), False),
        (EqualTo(("committed_at",), "yesterday"), NO_LIMITS, False),
    ],
)
def test_conditions_become_limits(condition: Filter, limits: Limits, exact: bool) -> None:
    assert limits_of(condition, PLACE) == (limits, exact)


def test_limits_are_combined() -> None:
    left = Limits(frozenset("AB"), (3, HIGHEST), tables=frozenset("t"))
    right = Limits(frozenset("BC"), (LOWEST, 9), (1, 2), frozenset("tu"))
    assert left.both(right) == right.both(left) == Limits(frozenset("B"), (3, 9), (1, 2), frozenset("t"))
    assert NO_LIMITS.both(left) == left
    assert left.meet("A", 3, None)
    assert not left.meet("A", 2, 7)
    assert not left.meet("A", None, 7)
    assert not left.meet(None, 3, 7)
    assert Limits(tables=frozenset("t")).meet(None, None, None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return honest(120).write(tmp_path_factory.mktemp("honest"))[0]


def clocks_of(path: Path) -> list[int]:
    db = apsw.Connection(str(path))
    found = [int(str(row[0])) for row in db.execute("SELECT clock FROM bedrockish_journal ORDER BY clock")]
    db.close()
    return found


def test_a_plan_has_only_the_ticks_that_can_meet_the_limits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = clocks_of(path)

    def ticks(limits: Limits) -> int:
        with open_feed(str(path)) as feed:
            return sum(high - low + 1 for group in plan(feed.ask, limits, 10) for _, low, high in group)

    everything = ticks(NO_LIMITS)
    assert everything == len(clocks) > 100
    assert 0 < ticks(Limits(frozenset("A"))) < everything / 2
    assert ticks(Limits(frozenset("Z"))) == 0
    assert ticks(Limits(ticks=(3, 4))) == 6
    assert ticks(Limits(ticks=(4, 3))) == 0
    narrow = Limits(clocks=(clocks[50], clocks[59]))
    assert 10 <= ticks(narrow) < 40  # a timeline is not quite in the order of clocks
    assert ticks(Limits(clocks=(clocks[-1] + 1, HIGHEST))) == 0
    monkeypatch.setattr("bedrockish_journal.spark.source.plans.NARROW_MOST", 5)
    assert NARROW_MOST > 5
    assert ticks(narrow) == everything  # too many to look at: they are left out when they are read


@pytest.mark.parametrize("where", ["leader = 'A' AND tick = 3", "leader = 'B' AND tick = 1"])
def test_ticks_that_were_altered_do_not_make_a_plan_without_end(tmp_path: Path, where: str) -> None:
    path = honest(30).write(tmp_path)[0]
    db = apsw.Connection(str(path))
    db.execute(f"UPDATE bedrockish_journal SET tick = 1 << 60 WHERE {where}")
    (held,) = [int(str(row[0])) for row in db.execute("SELECT count(*) FROM bedrockish_journal")]
    db.close()
    with open_feed(str(path)) as feed:
        assert len(plan(feed.ask, NO_LIMITS, 5)) <= held
    reader = BedrockishReader(
        Options.parse({"path": str(path), "partition_rows": "5"}), {"tick": "BIGINT"}, TABLES["commits"]
    )
    assert sum(got.num_rows for piece in reader.partitions() for got in reader.read(piece)) == held


def push(path: Path, table: str, *conditions: Filter) -> tuple[list[Filter], list[dict[str, Any]]]:
    reader = PushingReader(Options.parse({"path": str(path), "table": table}), TABLES[table].columns, TABLES[table])
    left = list(reader.pushFilters(list(conditions)))
    return left, [row for piece in reader.partitions() for got in reader.read(piece) for row in got.to_pylist()]


def test_reader_skips_entries_excluded_by_filters(path: Path) -> None:
    clocks = clocks_of(path)
    moved = [Not(EqualTo(("origin",), "B")), In(("tick",), (2, 4))]
    left, rows = push(path, "commits", EqualTo(("leader",), "A"), *moved, GreaterThan(("clock",), clocks[3]))
    assert left == moved
    assert {(row["leader"], row["tick"]) for row in rows} <= {("A", tick) for tick in (2, 3, 4)}
    assert all(row["clock"] > clocks[3] for row in rows)
    left, rows = push(path, "members", EqualTo(("leader",), "B"))
    assert {row["leader"] for row in rows} == {"B"}  # not the founders, who are of no timeline
    left, rows = push(path, "changes", EqualTo(("table",), "nothing"))
    assert (left, rows) == ([], [])


def test_changes_of_other_tables_are_left_out(tmp_path: Path) -> None:
    world = World()
    columns = ("id",)
    names = ("t", "u", "T", "t")
    rows = [Change(name, columns, INSERT, place, place, None, (place,)) for place, name in enumerate(names)]
    assert world.commit("A", touching("7"), changes=encode_changes(rows))
    path = world.write(tmp_path)[0]
    _, found = push(path, "changes", EqualTo(("table",), "t"))
    assert [(row["table"], row["seq_in_txn"]) for row in found] == [("t", 0), ("t", 3)]
    options = Options.parse({"path": str(path), "table": "changes", "tables": "t, T"})
    reader = BedrockishReader(options, {"table": "STRING"}, TABLES["changes"])
    names_read = [
        row["table"] for piece in reader.partitions() for got in reader.read(piece) for row in got.to_pylist()
    ]
    assert names_read == ["t", "T", "t"]
    for given in ("T", "t", "U,T"):
        options = Options.parse({"path": str(path), "table": "changes", "tables": given})
        reader = BedrockishReader(options, {"table": "STRING"}, TABLES["changes"])
        (batch,) = [got for piece in reader.partitions() for got in reader.read(piece)]
        assert batch.num_rows == 3 + given.count(",")
    with pytest.raises(ValueError, match="'tables' is for the table changes"):
        Options.parse({"path": "x", "tables": "t"})


def scanned(frame: DataFrame) -> tuple[list[Row], int]:
    """Return the rows of a query, and how many rows the data source gave to Spark for that."""
    rows = frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    while plan.children().size():
        plan = plan.children().head()
    return rows, plan.metrics().get("numOutputRows").get().value()


LOW = (START_MS << 22) + (40 << 20)
MS = START_MS + 20
CASES: list[tuple[str, Callable[[dict[str, Any]], bool], bool]] = [
    ("leader = 'A'", lambda row: row["leader"] == "A", True),
    ("leader IN ('A', 'C') AND tick BETWEEN 3 AND 6", lambda r: r["leader"] in "AC" and 3 <= r["tick"] <= 6, True),
    ("clock < {low} AND origin = 'B'", lambda row: row["clock"] < LOW and row["origin"] == "B", True),
    ("committed_at < timestamp_millis({ms})", lambda row: row["clock"] >> 22 < MS, True),
    ("leader = 'A' OR tick = 3", lambda row: row["leader"] == "A" or row["tick"] == 3, False),
    ("leader LIKE 'A%' AND length(txid) > 3", lambda row: row["leader"] == "A", False),
    ("NOT (leader = 'A')", lambda row: row["leader"] != "A", False),
]


@pytest.mark.spark
def test_spark_reads_fewer_rows_and_gets_the_same(spark: SparkSession, path: Path) -> None:
    everything = [row.asDict() for row in spark.read.format("bedrockish").load(str(path)).collect()]
    for text, holds, pushed in CASES:
        table = spark.read.format("bedrockish").option("pushdown", "yes").option("partition_rows", "10").load(str(path))
        frame = table.where(text.format(low=LOW, ms=MS)).select("seq", "leader", "tick")
        rows, given = scanned(frame)
        assert {row["seq"] for row in rows} == {row["seq"] for row in everything if holds(row)}, text
        assert 0 < len(rows) <= given, text
        assert (given < len(everything)) is pushed, text
        assert (frame.rdd.getNumPartitions() < len(everything) // 10) is pushed, text


@pytest.mark.spark
@pytest.mark.parametrize(("option", "conf"), [("no", "true"), ("no", "false"), ("yes", "false")])
def test_a_dataframe_of_many_queries_answers_each(spark: SparkSession, path: Path, option: str, conf: str) -> None:
    """Spark 4.3 would mix up their conditions if they were handed over."""
    held = len(clocks_of(path))
    spark.conf.set(PUSHDOWN, conf)
    try:
        table = spark.read.format("bedrockish").option("pushdown", option).load(str(path))
        rows, given = scanned(table.where("leader = 'A'"))
        assert 0 < len(rows) < given == held
        assert table.count() == held
        both = table.where("leader = 'A'").union(table.where("leader <> 'A'"))
        assert both.count() == held
    finally:
        spark.conf.set(PUSHDOWN, "true")


@pytest.mark.spark
def test_a_dataframe_is_of_one_moment(spark: SparkSession, tmp_path: Path) -> None:
    world = honest(30)
    path = world.write(tmp_path)[0]
    first = spark.read.format("bedrockish").load(str(path))
    held = first.count()
    assert world.commit("A", touching("later"))
    path.unlink()
    world.write(tmp_path / "new")[0].rename(path)
    assert first.count() == held
    assert spark.read.format("bedrockish").load(str(path)).count() == held + 1


def test_a_plan_takes_a_few_seeks_however_long_the_journal_is(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine: a hundred million entries are planned like these."""

    def steps(commits: int) -> int:
        (path,) = make_journals(tmp_path / str(commits), commits, nodes=("A",))
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        with open_file(str(path)) as db:
            db.set_progress_handler(count, 10)
            groups = plan(db.execute, Limits(clocks=(1, 2)), 50)
            assert groups == []
            groups = plan(db.execute, NO_LIMITS, commits // 10)
        assert len(groups) in (10, 11)
        return counted

    assert steps(4000) < 2 * steps(200)
