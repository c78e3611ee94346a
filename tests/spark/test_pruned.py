"""Journals whose beginning was removed: the rest is read, exported and audited, and the gap is reported."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bedrockish.cli.audit import ReportPrinter
from bedrockish.cli.main import main
from bedrockish_journal.model.errors import JournalPrunedError
from bedrockish_journal.spark.export.export import export
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.options import OPTIONS, ReadOptions
from bedrockish_journal.spark.source.source import BedrockishReader
from bedrockish_journal.spark.source.tables import TABLES
from bedrockish_journal.storage import pruning, schema_history
from tests.spark.test_audits import PANDAS, audit, both, spoil
from tests.spark.test_reader import read
from tests.spark.test_stream import stream
from tests.spark.worlds import honest, touching


def prune(path: Path, part: float) -> dict[str, int]:
    """Remove the oldest part of a journal as a node does; return what was removed of each timeline."""
    db = apsw.Connection(str(path))
    with db:
        db.execute(schema_history.DDL)  # which every node's file has
        upto = pruning.plan(db, pruning.clock_at(db, part))
        assert pruning.remove(db, upto) > 0
    db.close()
    return upto


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three files, two of them without their beginning: one lacks the first two thirds, which include a membership
    change.
    """
    paths = honest(120).write(tmp_path)
    prune(paths[0], 0.7)
    prune(paths[1], 0.3)
    return paths


def test_spark_table_pruned_has_the_marks_of_a_pruned_journal(tmp_path: Path) -> None:
    path = honest(60).write(tmp_path)[0]
    commits = {(row["leader"], row["tick"]): row for row in read(path)}
    members = read(path, table="members")
    assert read(path, table="pruned") == []
    upto = prune(path, 0.9)
    marks = read(path, table="pruned")
    assert {row["leader"]: row["tick"] for row in marks} == upto
    assert all(row["hash"] == commits[row["leader"], row["tick"]]["hash"] for row in marks)
    assert {(row["leader"], row["tick"]) for row in read(path)} == {
        place for place in commits if place[1] > upto.get(place[0], 0)
    }
    # A removed membership stays in the table of members.
    kept = [{**row, "txid": None, "clock": None, "origin": None, "committed_at": None} for row in members]
    assert read(path, table="members") == kept
    assert {row["leader"] for row in read(path, table="members", leader="B")} == {"B"}
    assert [row["leader"] for row in read(path, table="pruned", leader="B")] == ["B"]


def test_entries_removed_between_planning_and_reading_raise(tmp_path: Path) -> None:
    path = honest(60).write(tmp_path)[0]
    reader = BedrockishReader(ReadOptions.parse({"path": str(path)}), {"tick": "BIGINT"}, TABLES["commits"])
    (piece,) = reader.partitions()
    upto = prune(path, 0.5)
    with pytest.raises(JournalPrunedError, match="no longer holds A1") as caught:
        list(reader.read(piece))
    assert caught.value.first == upto["A"] + 1


def test_spark_stream_at_the_end_continues_after_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last entry of each timeline stays, so the journal does not seem to be an older copy."""
    monkeypatch.setattr("bedrockish_journal.spark.source.stream.BEHIND_S", 0.0)
    path = honest(60).write(tmp_path)[0]
    reader = stream(path)
    end = reader.latestOffset({"A": {}}, ReadAllAvailable())
    assert prune(path, 1.0)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_export_begins_again_only_on_request(tmp_path: Path) -> None:
    path, out = honest(60).write(tmp_path)[0], tmp_path / "out"
    upto = prune(path, 0.5)
    ended = CliRunner().invoke(main, ["export-journal", str(path), "--to", str(out)])
    assert ended.exit_code != 0
    assert "no longer holds A1" in ended.output
    assert "an export with --oldest and a new directory" in ended.output
    for expected in (True, False):
        ended = CliRunner().invoke(main, ["export-journal", str(path), "--to", str(out), "--oldest"])
        assert ended.exit_code == 0, ended.output
        assert ("A: 0 new entries" in ended.output) is not expected
    db = apsw.Connection(str(path))
    with db:
        pruning.remove(db, {leader: tick + 1 for leader, tick in upto.items()})
    db.close()
    with open_feed(str(path)) as feed:  # the feed has all entries that were removed from the file
        assert export(feed, str(out)).entries == 0


def test_audit_report_names_the_part_that_was_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    from bedrockish_journal.audit.report import AuditExtent

    ReportPrinter(strict=False, as_json=False).count(
        AuditExtent(["A", "B"], 9, 7, {"A": 5, "B": 4}, {"B": {"B": 1, "A": 2}})
    )
    assert capsys.readouterr().out == (
        "2 nodes (A, B), 7 commits, 9 entries, up to A5 B4\n"
        "B has removed all up to A2 B1: only later entries are checked\n"
    )


def test_unaltered_pruned_journals_have_no_findings(paths: list[Path]) -> None:
    assert audit(paths) == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.filterwarnings(PANDAS)
def test_spark_finds_no_fault_in_pruned_journals(spark: SparkSession, paths: list[Path]) -> None:
    assert both(spark, paths) == []


def test_single_pruned_file_has_no_findings(paths: list[Path]) -> None:
    assert audit(paths[:1]) == []


def test_an_export_that_began_late_is_audited(paths: list[Path], tmp_path: Path) -> None:
    for path in paths[:2]:
        with open_feed(str(path)) as feed:
            export(feed, str(tmp_path / "out"), step=30, oldest=True)
    assert audit([tmp_path / "out", paths[2]]) == []


TAMPERINGS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "DELETE FROM bedrockish_journal WHERE leader = 'B' AND tick = (SELECT tick + 1 FROM bedrockish_pruned "
        "WHERE leader = 'B')",
        "density",
        {"leader": "B"},
    ),
    ("DELETE FROM bedrockish_pruned WHERE leader = 'B'", "density", {"leader": "B"}),
    ("UPDATE bedrockish_pruned SET hash = zeroblob(32) WHERE leader = 'B'", "link", {"leader": "B"}),
    ("UPDATE bedrockish_pruned SET hash = zeroblob(32) WHERE leader = 'B'", "fork", {"leader": "B", "node": "A, B, C"}),
]


@pytest.mark.parametrize(("sql", "check", "expected"), TAMPERINGS)
def test_audit_finds_a_broken_beginning_of_a_pruned_journal(
    paths: list[Path], sql: str, check: str, expected: dict[str, Any]
) -> None:
    spoil(paths[0], sql)
    found = [asdict(one) for one in audit(paths, check)]
    assert [{name: one[name] for name in expected} for one in found] == [expected], found


def test_conflicts_after_the_beginning_are_still_found(tmp_path: Path) -> None:
    world = honest(60)
    first, second = world.commit("A", touching("fresh")), world.commit("B", touching("other"))
    assert first is not None
    assert second is not None
    world.change(second.place, lambda draft: replace(draft, access_set=touching("fresh", "other")))
    world.settle()
    paths = world.write(tmp_path)
    for path in paths:
        prune(path, 0.5)
    assert [(one.leader, one.tick) for one in audit(paths, "conflict")] == [second.place]


def test_every_audit_table_and_option_is_in_the_docs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
    assert all(f"| `{name}` |" in page for name in TABLES)
    assert [name for name in OPTIONS if f"`{name}`" not in page] == []
