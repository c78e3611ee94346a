"""The stream: offsets, batches, errors for removed entries; and each commit once, however often Spark dies."""

import shutil
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import cbor2
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from bedrockish_journal.model.errors import FileMissingError, JournalError, JournalPrunedError
from bedrockish_journal.model.vector import covers
from bedrockish_journal.spark import parquet_batches
from bedrockish_journal.spark.source.options import ReadOptions
from bedrockish_journal.spark.source.reading import parts, read_part
from bedrockish_journal.spark.source.stream import BedrockishStreamReader, Offset
from bedrockish_journal.spark.source.typed_rows import table_of
from tests.spark.worlds import World, honest, touching

COLUMNS = "leader,tick"
OF: Offset = {"cluster:id": {}, "table:commits": {}}  # the cluster and the table of the streams, as offsets name them


def stream(path: object, **options: str) -> BedrockishStreamReader:
    parsed = ReadOptions.parse({"path": str(path), "columns": COLUMNS, **options})
    table = table_of(parsed)
    return BedrockishStreamReader(parsed, table.chosen(parsed.name, parsed.columns), table)


def rows(reader: BedrockishStreamReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    return [row for piece in reader.partitions(start, end) for got in reader.read(piece) for row in got.to_pylist()]


def offsets(reader: BedrockishStreamReader, limit: ReadLimit) -> list[Offset]:
    found = [reader.initialOffset()]
    while not found[1:] or found[-1] != found[-2]:
        found.append(reader.latestOffset(found[-1], limit))
    return found[:-1]


def prune(path: Path, leader: str, upto: int) -> None:
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM bedrockish_journal WHERE leader = ? AND tick <= ?", (leader, upto))
    db.close()


@pytest.fixture(scope="module")
def world() -> World:
    return honest(60)


@pytest.fixture(scope="module")
def files(world: World, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return world.write(tmp_path_factory.mktemp("honest"))


@pytest.mark.parametrize("most", [1, 7, 10_000])
def test_batches_are_causal_prefixes_that_hold_each_commit_once(world: World, files: list[Path], most: int) -> None:
    reader = stream(files[1])
    steps = offsets(reader, ReadMaxRows(most))
    entries = world.entries()
    read: list[tuple[str, int]] = []
    for start, end in pairwise(steps):
        batch = [(row["leader"], row["tick"]) for row in rows(reader, start, end)]
        assert 0 < len(batch) <= most
        assert all(covers(end["B"], {**entries[place].after, place[0]: place[1]}) for place in batch)
        assert list(end["B"]) == sorted(end["B"])
        read += batch
    assert sorted(read) == sorted(entries)


def test_stream_reads_each_file_to_its_own_end(world: World, files: list[Path]) -> None:
    reader = stream(files[0].parent, partition_rows="10")
    begin, end = offsets(reader, ReadAllAvailable())
    assert begin == {"A": {}, "B": {}, "C": {}, **OF}
    assert end == {**{node: world.applied(node) for node in "ABC"}, **OF}
    assert len(rows(reader, begin, end)) == 3 * len(world.drafts)
    assert reader.partitions(end, end) == []


def test_option_starting_sets_the_begin_of_a_stream(files: list[Path], tmp_path: Path) -> None:
    assert stream(files[0], starting="now").initialOffset() == stream(files[0]).latestOffset({}, ReadAllAvailable())
    assert stream(files[0], starting="oldest").initialOffset() == {"A": {}, **OF}
    path = honest(60).write(tmp_path)[0]
    prune(path, "B", 4)
    assert stream(path, starting="oldest").initialOffset() == {"A": {"B": 4}, **OF}
    with pytest.raises(ValueError, match="starting cannot be 'soon'; it is 'beginning' or 'oldest' or 'now'"):
        stream(path, starting="soon")


def test_stream_with_available_now_ends_at_the_initial_end_of_the_journal(tmp_path: Path) -> None:
    world = honest(30)
    path = world.write(tmp_path)[0]
    reader = stream(path)
    reader.prepareForTriggerAvailableNow()
    end = {"A": world.applied("A"), **OF}
    assert world.commit("A", touching("later"))
    path.unlink()
    world.write(tmp_path / "new")[0].rename(path)
    assert reader.latestOffset({"A": {}}, ReadAllAvailable()) == end
    assert reader.latestOffset(end, ReadMaxRows(5)) == end
    assert stream(path).latestOffset(end, ReadMaxRows(5))["A"]["A"] == end["A"]["A"] + 1


def test_stream_until_safe_skips_unsafe_commits(tmp_path: Path) -> None:
    world = honest(60)
    path = world.write(tmp_path)[0]
    entries = world.entries()
    db = apsw.Connection(str(path))
    reader = stream(path, until="safe")
    assert offsets(reader, ReadAllAvailable())[-1] == {"A": {}, **OF}  # the node knows no safe commit yet
    clocks = sorted(entry.txid.clock for entry in entries.values())
    end: Offset = {}
    for safe in (clocks[20], clocks[-1]):
        db.execute("INSERT OR REPLACE INTO bedrockish_meta VALUES ('safe', ?)", (safe,))
        end = offsets(reader, ReadMaxRows(7))[-1]
        inside = {place: one for place, one in entries.items() if place[1] <= end["A"].get(place[0], 0)}
        assert all(one.txid.clock <= safe for one in inside.values())
        assert all(covers(end["A"], one.after) for one in inside.values())
        nexts = [entries.get((leader, tick + 1)) for leader, tick in end["A"].items()]
        assert all(one.txid.clock > safe for one in nexts if one is not None)
        assert stream(path, until="safe", starting="now").initialOffset() == end
    assert end == {"A": world.applied("A"), **OF}
    db.close()


def _of_another_cluster(path: Path) -> Path:
    """Let a file say that it is of the cluster ``other``."""
    db = apsw.Connection(str(path))
    founding = cbor2.loads(db.execute("SELECT value FROM bedrockish_meta WHERE key = 'bootstrap'").get)
    founding[2] = "other"
    db.execute("UPDATE bedrockish_meta SET value = ? WHERE key = 'bootstrap'", (cbor2.dumps(founding),))
    db.close()
    return path


def test_stream_continues_in_no_other_cluster_and_at_no_other_node(tmp_path: Path) -> None:
    """Another cluster's commits would be skipped up to the offset; another node has the commits that were read."""
    world = honest(60)
    mine, b, _ = world.write(tmp_path / "one")
    other = _of_another_cluster(world.write(tmp_path / "other")[0])
    start = stream(mine).latestOffset({}, ReadMaxRows(5))
    for limit in (ReadAllAvailable(), ReadMaxRows(5)):
        with pytest.raises(JournalError, match="of the cluster other, and the stream has read the cluster id"):
            stream(other).latestOffset(start, limit)
        with pytest.raises(JournalError, match="has the journal of node B, and the stream has read that of A"):
            stream(b).latestOffset(start, limit)
    more = stream(f"{mine},{b}").latestOffset(start, ReadAllAvailable())
    assert {"A", "B"} < more.keys()
    assert stream(b).latestOffset(more, ReadAllAvailable()) == more, "the file of A was taken away"
    of_before: Offset = {"A": start["A"]}
    assert stream(other).latestOffset(of_before, ReadMaxRows(5)).keys() == {"A", "cluster:other", "table:commits"}
    end = stream(mine).latestOffset({}, ReadAllAvailable())
    with pytest.raises(JournalError, match="of the cluster other, and the stream has read the cluster id"):
        stream(other).partitions(start, end)  # a batch that the checkpoint has, and that a crash cut off


def test_file_that_is_replaced_under_a_running_stream_or_read_is_an_error(tmp_path: Path) -> None:
    """A stream that went on would skip the other cluster's commits up to its offset, and return those after it."""
    world = honest(60)
    path, b, _ = world.write(tmp_path / "one")
    other = _of_another_cluster(world.write(tmp_path / "other")[0])
    reader, options = stream(path), ReadOptions.parse({"path": str(path), "columns": COLUMNS})
    begin, end = offsets(reader, ReadAllAvailable())
    (piece,), (part,) = reader.partitions(begin, end), parts(options, table_of(options))
    for file, error in (
        (other, "node A of the cluster other, and had that of node A of the cluster id"),
        (b, "node B"),
    ):
        path.unlink()
        path.hardlink_to(file)
        with pytest.raises(JournalError, match=error):
            list(reader.read(piece))
        with pytest.raises(JournalError, match=error):
            list(read_part(part, options, table_of(options), {"tick": "BIGINT"}))
        with pytest.raises(JournalError, match="the stream has read"):
            reader.latestOffset(end, ReadAllAvailable())


def test_read_of_a_journal_that_was_cut_after_the_plan_is_an_error(tmp_path: Path) -> None:
    """Otherwise the rows after the cut would be missing without an error."""
    path = honest(60).write(tmp_path)[0]
    options = ReadOptions.parse({"path": str(path), "columns": COLUMNS})
    (part,) = parts(options, table_of(options))
    last = next(high for leader, _, high in part.spans if leader == "C")
    for condition, ends in (("tick = ?", f"ends at C{last - 1}"), ("tick <= ?", "has no entry")):
        db = apsw.Connection(str(path))
        db.execute(f"DELETE FROM bedrockish_journal WHERE leader = 'C' AND {condition}", (last,))
        db.close()
        with pytest.raises(JournalError, match=f"its timeline C {ends}, and had C{last} when the read was planned"):
            list(read_part(part, options, table_of(options), {"tick": "BIGINT"}))


def test_stream_from_an_older_copy_of_its_file_raises_after_a_while(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is filled again lacks the newest entries for a moment only; an older copy would keep the stream
    waiting for ever.
    """
    path = Path(shutil.copy(files[1], tmp_path / "B.sqlite"))
    reader = stream(path)
    end = offsets(reader, ReadAllAvailable())[-1]
    leader, tick = sorted(end["B"].items())[0]
    with closing(apsw.Connection(str(path))) as db:
        db.execute("DELETE FROM bedrockish_journal WHERE leader = ? AND tick = ?", (leader, tick))
    assert reader.latestOffset(end, ReadAllAvailable()) == end, "it may be there again in a moment"
    told = f"goes up to {leader}{tick - 1}, and the stream has read it up to {leader}{tick}: it is an older copy"
    monkeypatch.setattr("bedrockish_journal.spark.source.stream.BEHIND_S", 0.0)
    with pytest.raises(JournalError, match=told):
        reader.latestOffset(end, ReadAllAvailable())
    shutil.copy(files[1], path)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    monkeypatch.undo()
    with closing(apsw.Connection(str(path))) as db:
        db.execute("DELETE FROM bedrockish_journal WHERE leader = ? AND tick = ?", (leader, tick))
    once = stream(path)
    once.prepareForTriggerAvailableNow()
    with pytest.raises(JournalError, match=told):
        once.latestOffset(end, ReadAllAvailable())


def test_stream_of_another_table_does_not_continue_a_checkpoint(tmp_path: Path) -> None:
    """The batches would have rows of both tables, and those of each table would lack a part."""
    path = honest(20).write(tmp_path)[0]
    first, second = stream(path), stream(path, table="changes")
    begin, end = offsets(first, ReadAllAvailable())
    for call in (lambda: second.latestOffset(end, ReadAllAvailable()), lambda: second.partitions(begin, end)):
        with pytest.raises(JournalError, match=r"reads the table changes, and its checkpoint is of .* table commits"):
            call()
    assert second.latestOffset({"A": {}}, ReadAllAvailable()).keys() == {"A", "cluster:id", "table:changes"}
    assert first.partitions(begin, {"A": end["A"]}), "a checkpoint of an earlier release names no table"


@pytest.mark.parametrize("names", [(0, 0), (0, 1)])
def test_journals_of_two_clusters_are_not_read_together(tmp_path: Path, names: tuple[int, int]) -> None:
    first = honest(20).write(tmp_path / "one")[names[0]]
    second = _of_another_cluster(honest(20).write(tmp_path / "other")[names[1]])
    for copies in ("fail", "newest"):
        options = ReadOptions.parse({"path": f"{first},{second}", "copies": copies})
        with pytest.raises(JournalError, match="read one cluster at a time"):
            parts(options, table_of(options))
        with pytest.raises(JournalError, match="read one cluster at a time"):
            stream(options.path, copies=copies).initialOffset()


def test_pruned_entries_are_an_error_and_not_skipped(tmp_path: Path) -> None:
    path = honest(60).write(tmp_path)[0]
    reader = stream(path)
    end = reader.latestOffset({"A": {}}, ReadAllAvailable())
    prune(path, "B", 4)
    starts: list[Offset] = [{"A": {}}, {"A": {"B": 3}}]
    for start in starts:
        with pytest.raises(JournalPrunedError, match="its timeline B begins at B5") as caught:
            reader.latestOffset(start, ReadMaxRows(3))
        assert (caught.value.leader, caught.value.first) == ("B", 5)
        with pytest.raises(JournalPrunedError):  # even if the removal comes between planning and reading
            rows(reader, start, end)
    after = {"A": {"A": 2, "B": 4}}
    assert min(row["tick"] for row in rows(reader, after, end) if row["leader"] == "B") == 5


def test_gap_in_the_journal_or_a_lost_file_is_an_error(tmp_path: Path) -> None:
    path = honest(60).write(tmp_path)[0]
    reader = stream(path)
    end = reader.latestOffset({"A": {}}, ReadAllAvailable())
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM bedrockish_journal WHERE leader = 'B' AND tick = 5")
    db.close()
    with pytest.raises(JournalError, match="entries from B1 to B"):
        rows(reader, {"A": {}}, end)
    with pytest.raises(FileMissingError, match="the file of node Z is gone"):
        reader.partitions({}, {"Z": {"A": 1}})


@pytest.mark.spark
def test_spark_writes_each_change_once_across_restarts(spark: SparkSession, tmp_path: Path) -> None:
    world = honest(30)
    path = world.write(tmp_path)[0]

    def run() -> list[tuple[str, int]]:
        source = spark.readStream.format("bedrockish").option("max_commits", "15").load(str(path))
        sink = source.writeStream.foreachBatch(parquet_batches(tmp_path / "out"))
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        table = pq.read_table(tmp_path / "out", columns=["leader", "tick", "batch"])
        return sorted(zip(table["leader"].to_pylist(), table["tick"].to_pylist(), strict=True))

    assert run() == sorted(world.entries())
    assert run() == sorted(world.entries())
    for number in range(20):
        assert world.commit("ABC"[number % 3], touching(f"later{number}"))
        world.settle()
    path.unlink()
    world.write(tmp_path / "new")[0].rename(path)
    assert run() == sorted(world.entries())
