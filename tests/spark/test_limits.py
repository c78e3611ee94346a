"""The limits of a read: only entries that can match them are planned and decoded, in a few seeks."""

from pathlib import Path

import apsw
import pytest
from pyspark.sql import SparkSession

from bedrockish_journal.model.changes import INSERT, Change, encode_changes
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.options import ReadOptions
from bedrockish_journal.spark.source.plans import HIGHEST, NARROW_MOST, NO_LIMITS, BatchLimits, plan
from bedrockish_journal.spark.source.source import BedrockishReader
from bedrockish_journal.spark.source.tables import TABLES
from bedrockish_journal.storage.store import reading
from tests.spark.make_journals import make_journals
from tests.spark.worlds import World, honest, touching


def test_row_without_leader_or_clock_is_outside_limits_on_them() -> None:
    limits = BatchLimits(frozenset("A"), (3, HIGHEST))
    assert limits.meet("A", 3)
    assert not limits.meet("A", 2)
    assert not limits.meet("A", None)
    assert not limits.meet(None, 3)
    assert BatchLimits(named=frozenset("t")).meet(None, None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return honest(120).write(tmp_path_factory.mktemp("honest"))[0]


def clocks_of(path: Path) -> list[int]:
    db = apsw.Connection(str(path))
    found = [int(str(row[0])) for row in db.execute("SELECT clock FROM bedrockish_journal ORDER BY clock")]
    db.close()
    return found


def test_reader_plan_leaves_out_ticks_that_no_filter_can_meet(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = clocks_of(path)

    def ticks(limits: BatchLimits) -> int:
        with open_feed(str(path)) as feed:
            return sum(high - low + 1 for group in plan(feed.ask, limits, 10) for _, low, high in group)

    everything = ticks(NO_LIMITS)
    assert everything == len(clocks) > 100
    assert 0 < ticks(BatchLimits(frozenset("A"))) < everything / 2
    assert ticks(BatchLimits(frozenset("Z"))) == 0
    narrow = BatchLimits(clocks=(clocks[50], clocks[59]))
    assert 10 <= ticks(narrow) < 40  # a timeline is only roughly in the order of clocks
    assert ticks(BatchLimits(clocks=(clocks[-1] + 1, HIGHEST))) == 0
    monkeypatch.setattr("bedrockish_journal.spark.source.plans.NARROW_MOST", 5)
    assert NARROW_MOST > 5
    assert ticks(narrow) == everything  # too many to plan, so the reader leaves out the others


@pytest.mark.parametrize("where", ["leader = 'A' AND tick = 3", "leader = 'B' AND tick = 1"])
def test_reader_plan_has_at_most_one_part_for_each_entry_even_with_altered_ticks(tmp_path: Path, where: str) -> None:
    path = honest(30).write(tmp_path)[0]
    db = apsw.Connection(str(path))
    db.execute(f"UPDATE bedrockish_journal SET tick = 1 << 60 WHERE {where}")
    (held,) = [int(str(row[0])) for row in db.execute("SELECT count(*) FROM bedrockish_journal")]
    db.close()
    with open_feed(str(path)) as feed:
        assert len(plan(feed.ask, NO_LIMITS, 5)) <= held
    reader = BedrockishReader(
        ReadOptions.parse({"path": str(path), "partition_rows": "5"}), {"tick": "BIGINT"}, TABLES["commits"]
    )
    assert sum(got.num_rows for piece in reader.partitions() for got in reader.read(piece)) == held


def test_reader_omits_rows_outside_its_limits(path: Path) -> None:
    clocks = clocks_of(path)

    def read(table: str, **options: str) -> list[dict[str, object]]:
        parsed = ReadOptions.parse({"path": str(path), "table": table, **options})
        reader = BedrockishReader(parsed, TABLES[table].columns, TABLES[table])
        return [row for piece in reader.partitions() for got in reader.read(piece) for row in got.to_pylist()]

    rows = read("commits", leader="A", clock_from=str(clocks[3]), clock_to=str(clocks[40]))
    assert rows
    assert all(row["leader"] == "A" and clocks[3] <= row["clock"] <= clocks[40] for row in rows)  # type: ignore[operator]
    # Without the founders, who are of no timeline.
    assert {row["leader"] for row in read("members", leader="B")} == {"B"}


def test_changes_of_other_tables_are_left_out(tmp_path: Path) -> None:
    world = World()
    columns = ("id",)
    names = ("t", "u", "T", "t")
    rows = [Change(name, columns, INSERT, place, place, None, (place,)) for place, name in enumerate(names)]
    assert world.commit("A", touching("7"), changes=encode_changes(rows))
    path = world.write(tmp_path)[0]
    options = ReadOptions.parse({"path": str(path), "table": "changes", "tables": "t, T"})
    reader = BedrockishReader(options, {"table": "STRING"}, TABLES["changes"])
    names_read = [
        row["table"] for piece in reader.partitions() for got in reader.read(piece) for row in got.to_pylist()
    ]
    assert names_read == ["t", "T", "t"]
    for given in ("T", "t", "U,T"):
        options = ReadOptions.parse({"path": str(path), "table": "changes", "tables": given})
        reader = BedrockishReader(options, {"table": "STRING"}, TABLES["changes"])
        (batch,) = [got for piece in reader.partitions() for got in reader.read(piece)]
        assert batch.num_rows == 3 + given.count(",")
    with pytest.raises(ValueError, match="'tables' is for the table changes"):
        ReadOptions.parse({"path": "x", "tables": "t"})


@pytest.mark.spark
def test_dataframe_keeps_its_rows_when_its_file_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    world = honest(30)
    path = world.write(tmp_path)[0]
    first = spark.read.format("bedrockish").load(str(path))
    held = first.count()
    assert world.commit("A", touching("later"))
    path.unlink()
    world.write(tmp_path / "new")[0].rename(path)
    assert first.count() == held
    assert spark.read.format("bedrockish").load(str(path)).count() == held + 1


def test_reader_plan_takes_a_constant_number_of_seeks(tmp_path: Path) -> None:
    """The work is counted in steps of SQLite's machine: a hundred million entries need as many as these."""

    def steps(commits: int) -> int:
        (path,) = make_journals(tmp_path / str(commits), commits, nodes=("A",))
        counted = 0

        def count() -> bool:
            nonlocal counted
            counted += 1
            return False

        with reading(path) as db:
            db.set_progress_handler(count, 10)
            groups = plan(db.execute, BatchLimits(clocks=(1, 2)), 50)
            assert groups == []
            groups = plan(db.execute, NO_LIMITS, commits // 10)
        assert len(groups) in (10, 11)
        return counted

    assert steps(4000) < 2 * steps(200)
