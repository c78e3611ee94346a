"""A lake in Spark: rows at a moment, versions, views, and nothing of a commit that is not whole."""

import re
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from bedrockish.transfer.lake_sinks import DeltaTables
from bedrockish_journal.feed.change_feed import Cursor
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change
from bedrockish_journal.model.errors import FileMissingError, JournalError, MomentError
from bedrockish_journal.spark.lake import Lake
from tests.client.test_lake import FEED, PAGE, KilledError, commit, copied, row, written
from tests.client.test_lake import TWO as SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ODD = Change("any thing", ("id", "v"), INSERT, 1, 1, None, (1, b"\0"))
MORE = [
    commit(6, statements=['CREATE TABLE "any thing"(id INTEGER PRIMARY KEY, v TEXT)']),
    commit(7, [ODD]),
    commit(8, [row("u", INSERT, 1, after="again"), row("u", UPDATE, 1, "again", "twice")]),
    commit(9, [Change("u", ("id", "v"), UPDATE, 2, 5, (2, "y"), (5, "moved"))]),
    replace(commit(10, [row("u", DELETE, 1, "twice")]), clock=(10 << 22) + 5, cursor=Cursor((10 << 22) + 5, "A")),
]


def lake(folder: Path) -> Any:
    sink = DeltaTables(folder)
    written(folder, sink, [*FEED, *MORE])
    return sink


def values(found: "DataFrame", *columns: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, found.select(*columns).collect()), key=repr)


def test_rows_at_a_moment_and_their_versions(spark: "SparkSession", tmp_path: Path) -> None:
    folder = tmp_path / "a b+ü"
    folder.mkdir()
    lake(folder)
    found = Lake(spark, folder)
    assert found.tables == ["t", "u", "x_any_20_thing"]
    assert found.commits().count() == len(FEED) + len(MORE)

    with sqlite3.connect(folder / "mirror.db") as mirror:
        for table, columns in (("t", "id, v, w"), ("u", "id, v")):
            true = mirror.execute(f"SELECT {columns} FROM {table}").fetchall()
            assert values(found.rows(table), *columns.split(", ")) == sorted(true, key=repr), table
    mirror.close()
    assert dict(found.rows("t").dtypes)["v"] == "string"
    assert dict(found.rows("t").dtypes)["w"] == "bigint"
    assert values(found.rows("any thing"), "id", "v", "_other") == [(1, None, '{"v":{"$blob":"AA=="}}')]

    at = {number: commit(number).clock for number in range(1, 11)}
    assert values(found.rows("u", at[2] - 1), "id", "v") == []
    assert values(found.rows("u", at[3]), "id", "v") == [(1, "a"), (2, "x")]
    assert values(found.rows("u", commit(3).at), "id", "v") == [(1, "a"), (2, "x")]
    assert values(found.rows("u", commit(10).at), "id", "v") == [(5, "moved")], "a time has all of its millisecond"
    assert values(found.rows("u", commit(3).at - timedelta(milliseconds=1)), "id", "v") == [(1, "a")]
    assert values(found.rows("u", at[8]), "id", "v") == [(1, "twice"), (2, "y")]
    assert values(found.rows("u", 1 << 62), "id", "v") == [(5, "moved")]
    assert values(found.history("u"), "id", "v", "_commit_clock", "_clock_to") == [
        (1, "a", at[2], at[5]),
        (1, "again", at[8], at[8]),
        (1, "twice", at[8], at[10] + 5),
        (2, "x", at[3], at[4]),
        (2, "y", at[4], at[9]),
        (5, "moved", at[9], None),
    ]
    [(begin, end)] = values(found.history("u").where("v = 'x'"), "_valid_from", "_valid_to")
    assert (end - begin) == commit(4).at - commit(3).at

    found.register("then_", as_of=at[3])
    assert [tuple(one) for one in spark.sql("SELECT id, v FROM then_u ORDER BY id").collect()] == [(1, "a"), (2, "x")]
    with pytest.raises(MomentError):
        found.register("never_", as_of=datetime(2026, 1, 1))
    names = found.register("lake_")
    ends = ("", "__changes", "__history", "__as_of")
    assert names == sorted(f"lake_{name}{end}" for name in found.tables for end in ends)
    sql = "SELECT v, count(*) FROM lake_u JOIN lake_u__changes USING (v) GROUP BY v"
    assert values(spark.sql(sql), "v", "count(1)") == [("moved", 1)]
    for moment in (commit(3).at, commit(8).at, commit(10).at, commit(3).at - timedelta(milliseconds=1)):
        then = spark.sql(f"SELECT * FROM lake_u__as_of(TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}')")
        assert then.columns == found.rows("u").columns
        assert values(then, "id", "v") == values(found.rows("u", moment), "id", "v"), moment
    with pytest.raises(AnalysisException, match=r"(?i)time.?travel"):  # why there is a function for it
        spark.sql("SELECT * FROM lake_u TIMESTAMP AS OF current_timestamp()").collect()


def test_nothing_of_a_commit_that_is_not_whole(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaTables(tmp_path)
    written(tmp_path, sink, FEED[:2])
    was = sink.append

    def killed(table: str, rows: Any, batch: int) -> None:
        if table == "u":
            raise KilledError
        was(table, rows, batch)

    monkeypatch.setattr(sink, "append", killed)
    with pytest.raises(KilledError):
        written(tmp_path, sink, FEED)
    monkeypatch.undo()
    found = Lake(spark, tmp_path)
    assert values(found.rows("t"), "v") == values(found.rows("u"), "v") == [("a",)]
    assert found.changes("t").count() == found.commits().count() - 1 == 1
    written(tmp_path, sink, FEED)
    assert found.changes("t").count() == 1, "what was made stays as it was"
    assert values(Lake(spark, tmp_path).rows("t"), "v") == [("b",)]


def test_lake_names_its_limits(spark: "SparkSession", tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileMissingError, match="is no lake, or has nothing yet"):
            Lake(spark, folder)
    copied(tmp_path / "copy", 3)
    written(tmp_path / "copy", DeltaTables(tmp_path / "copy"), [])
    from bedrockish.transfer.lake import Lake as Writer

    with Writer(tmp_path / "copy", DeltaTables(tmp_path / "copy")) as writer:
        assert sum(writer.write_copy()) == 6
    found = Lake(spark, tmp_path / "copy")
    assert found.rows("t").count() == found.rows("w", as_of=1 << 22).count() == 3
    with pytest.raises(MomentError, match=r"is before the copy that the lake .* begins with"):
        found.rows("t", as_of=(1 << 22) - 1)
    with pytest.raises(MomentError, match="is in no time zone"):
        found.rows("t", as_of=datetime(2026, 1, 1))
    assert found.rows("t", as_of=datetime(2026, 1, 1, tzinfo=UTC)).count() == 3
    assert found.register("copied_")
    for name in ("t", "w"):
        of = f"SELECT * FROM copied_{name}__as_of"
        assert spark.sql(f"{of}(TIMESTAMP '2026-01-01 00:00:00')").count() == 3
        with pytest.raises(Exception, match="is before the copy that the lake begins with"):  # Py4J's or Spark's
            spark.sql(f"{of}(timestamp_millis(0))").collect()
    with pytest.raises(FileMissingError, match=r"no table 'nothing'; it has t, w"):
        found.changes("nothing")


def test_examples_of_the_lake_page_run(spark: "SparkSession", tmp_path: Path) -> None:
    table = "CREATE TABLE account(id INTEGER PRIMARY KEY, v TEXT)"
    written(
        tmp_path,
        DeltaTables(tmp_path),
        [commit(1, statements=[table]), commit(2, [row("account", INSERT, 1, after="a")])],
    )
    [code] = re.findall(r"```python\n(from datetime.*?)```", PAGE, flags=re.DOTALL)
    exec(code.replace("/data/lake", str(tmp_path)).replace(".show()", ".collect()"), {"spark": spark})


def test_views_of_one_name_are_refused(spark: "SparkSession", tmp_path: Path) -> None:
    feed = [
        commit(1, statements=[SCHEMA[0], "CREATE TABLE t__changes(id INTEGER PRIMARY KEY, v TEXT)"]),
        commit(2, [row("t", INSERT, 1, after="a"), row("t__changes", INSERT, 1, after="a")]),
    ]
    written(tmp_path, DeltaTables(tmp_path), feed)
    with pytest.raises(JournalError, match="two views would be called t__changes"):
        Lake(spark, tmp_path).register()
