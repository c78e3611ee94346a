"""The data source without Spark: options, files, plans and the reader's rows, called directly."""

import math
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import cbor2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedrockish_journal.arrow import read_journal
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change, encode_changes
from bedrockish_journal.model.errors import (
    EntryMalformedError,
    FileMissingError,
    FileUnreadableError,
    JournalError,
    NoJournalError,
    NotDatabaseError,
)
from bedrockish_journal.spark.source.columns import BATCH_BYTES
from bedrockish_journal.spark.source.feeds import expand, nodes_of, open_feed
from bedrockish_journal.spark.source.json_rows import parse_row, row_text
from bedrockish_journal.spark.source.options import ReadOptions
from bedrockish_journal.spark.source.plans import NO_LIMITS, plan
from bedrockish_journal.spark.source.source import BedrockishReader, BedrockishSource
from bedrockish_journal.spark.source.tables import TABLES
from bedrockish_journal.spark.source.typed_rows import table_of
from tests.spark.worlds import NODES, World, honest, touching


@pytest.fixture(scope="module")
def world() -> World:
    return honest(60)


@pytest.fixture(scope="module")
def files(world: World, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return world.write(tmp_path_factory.mktemp("honest"))


def read(path: object, **options: str) -> list[dict[str, Any]]:
    parsed = ReadOptions.parse({"path": str(path), **options})
    table = table_of(parsed)
    reader = BedrockishReader(parsed, table.chosen(parsed.name, parsed.columns), table)
    return [row for piece in reader.partitions() for got in reader.read(piece) for row in got.to_pylist()]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give the node files"),
        ({"path": "x", "tabel": "commits"}, "no option 'tabel'"),
        ({"path": "x", "table": "rows"}, "no table 'rows'; the tables are commits, changes"),
        ({"path": "x", "clock_from": "soon"}, "clock_from cannot be 'soon'"),
        ({"path": "x", "clock_to": str(1 << 63)}, "clock_to cannot be"),
        ({"path": "x", "partition_rows": "0"}, "a whole number from 1"),
        ({"path": "x", "malformed": "maybe"}, "it is 'fail' or 'skip'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ReadOptions.parse(options)


@pytest.mark.parametrize(("columns", "text"), [("tick,colour", "no column 'colour'"), ("tick,tick", "selected twice")])
def test_wrong_columns_are_refused(columns: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        BedrockishSource({"path": "x", "columns": columns}).schema()


def test_option_path_accepts_lists_globs_and_directories(files: list[Path]) -> None:
    names = [str(path) for path in files]
    assert expand(",".join(names)) == names
    assert expand(str(files[0].parent)) == names
    assert expand(f"{files[0].parent}/[AB].db") == names[:2]
    assert expand(f"{names[0]},{names[0]}") == names[:1]


def test_unusable_files_are_named(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match="no such file"):
        read(tmp_path / "none.db")
    os.mkfifo(tmp_path / "pipe.db")
    with pytest.raises(FileUnreadableError, match=r"pipe\.db is not a file"):
        read(tmp_path / "pipe.db")
    with pytest.raises(FileMissingError, match=r"no file that ends in \.db"):
        read(tmp_path)
    for url in (files[0].as_uri(), "s3://bucket/a.db", "https://ann:secret@host/a.db"):
        with pytest.raises(FileMissingError, match="is not the URL of a node; write bedrockish://host:port") as caught:
            read(url)
        assert "secret" not in str(caught.value)
    (tmp_path / "text.db").write_text("hello")
    with pytest.raises(NotDatabaseError, match="not a SQLite database"):
        read(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "bare.db") as bare:
        bare.execute("CREATE TABLE t(x)")
    bare.close()
    with pytest.raises(NoJournalError, match="without a journal"):
        read(tmp_path / "bare.db")
    (tmp_path / "torn.db").write_bytes(files[0].read_bytes()[:100] + b"\xff" * 8000)
    with pytest.raises(NotDatabaseError, match="malformed"):
        read(tmp_path / "torn.db")
    copy = tmp_path / "copy.db"
    copy.write_bytes(files[0].read_bytes())
    with pytest.raises(JournalError, match="both of node A"):
        nodes_of([str(files[0]), str(copy)])


def test_commits_table_equals_the_entries(world: World, files: list[Path]) -> None:
    entries = world.entries()
    rows = read(files[1])
    assert sorted((row["leader"], row["tick"]) for row in rows) == sorted(entries)
    for row in rows:
        entry = entries[row["leader"], row["tick"]]
        assert (row["node"], row["clock"], row["origin"]) == ("B", *entry.txid)
        assert row["txid"] == str(entry.txid)
        assert dict(row["after"]) == entry.after
        assert dict(row["quorum"]) == entry.quorum
        assert row["joined"] == [command for command, _ in entry.transaction.joined]
        assert (row["adopted_from"], row["config"]) == (entry.adopted_from, entry.transaction.config)
        assert (row["prev"], row["label"], row["body"]) == (entry.prev, entry.label, entry.transaction.body)
        assert (row["hash"], row["malformed"]) == (entry.hash, None)
        assert int(row["committed_at"].timestamp() * 1000) == entry.txid.clock >> 22
    assert [(row["leader"], row["tick"]) for row in sorted(rows, key=lambda row: row["seq"])] == world.orders["B"]
    assert sum(row["repeat"] for row in rows) == 1
    assert any(row["joined"] for row in rows)


@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_partitions_cover_every_entry_once(files: list[Path], rows: int) -> None:
    everything = sorted((row["node"], row["seq"]) for row in read(files[0].parent))
    assert len(everything) == len(set(everything)) > 150
    cut = sorted((row["node"], row["seq"]) for row in read(files[0].parent, partition_rows=str(rows)))
    assert cut == everything
    with open_feed(str(files[0])) as feed:
        groups = plan(feed.ask, NO_LIMITS, rows)
    assert all(sum(high - low + 1 for _, low, high in group) <= rows for group in groups)


def test_leader_and_clock_bounds_are_honoured(files: list[Path]) -> None:
    rows = read(files[0])
    clocks = sorted(row["clock"] for row in rows)
    low, high = clocks[10], clocks[40]
    some = read(files[0], clock_from=str(low), clock_to=str(high))
    assert sorted(row["seq"] for row in some) == sorted(row["seq"] for row in rows if low <= row["clock"] <= high)
    only = read(files[0], leader="B")
    assert {row["leader"] for row in only} == {"B"}
    assert len(only) == sum(row["leader"] == "B" for row in rows)
    assert read(files[0], leader="Z") == []


def test_only_the_columns_asked_for_are_read(files: list[Path]) -> None:
    assert set(read(files[0], columns="tick,leader")[0]) == {"tick", "leader"}


def test_commits_after_planning_are_not_read(tmp_path: Path) -> None:
    world = honest(30)
    path = world.write(tmp_path)[0]
    reader = BedrockishReader(
        ReadOptions.parse({"path": str(path)}), {"leader": "STRING", "tick": "BIGINT"}, TABLES["commits"]
    )
    pieces = reader.partitions()
    db = apsw.Connection(str(path))  # a writer that has the file open, as a running node has
    held = int(str(db.execute("SELECT count(*) FROM bedrockish_journal").fetchall()[0][0]))
    db.execute(
        """INSERT INTO bedrockish_journal SELECT max(seq) + 1, leader, max(tick) + 1, clock, origin, 'later', kind, 1,
        applied_ms, label, body, prev, hash FROM bedrockish_journal WHERE leader = 'A'"""
    )
    assert sum(batch.num_rows for piece in pieces for batch in reader.read(piece)) == held
    assert sum(batch.num_rows for piece in reader.partitions() for batch in reader.read(piece)) == held + 1
    db.close()


def test_changes_carry_rows_as_exact_text(tmp_path: Path) -> None:
    world = World()
    columns = ("id", "balance", "photo")
    changes = [
        Change("accounts", columns, INSERT, 7, 7, None, (7, 5.0, b"\0\xff")),
        Change("accounts", columns, UPDATE, 7, 8, (7, 5.0, b"\0\xff"), (8, math.inf, None)),
        Change("accounts", columns, DELETE, 8, 8, (8, math.inf, None), None),
    ]
    assert world.commit("A", touching("7"), changes=encode_changes(changes))
    rows = read(world.write(tmp_path)[0], table="changes")
    assert [row["_change_type"] for row in rows] == ["insert", "update", "delete"]
    assert [row["seq_in_txn"] for row in rows] == [0, 1, 2]
    assert (rows[1]["rowid"], rows[1]["rowid_after"], rows[1]["pk"]) == (7, 8, '{"id":7}')
    assert rows[0]["before"] is None
    assert rows[0]["after"] == '{"id":7,"balance":5.0,"photo":{"$blob":"AP8="}}'
    assert rows[1]["after"] == '{"id":8,"balance":{"$float":"inf"},"photo":null}'


def test_each_change_names_the_command_that_made_it(tmp_path: Path) -> None:
    world = World()
    changes = encode_changes([Change("t", ("n",), INSERT, n, n, None, (n,)) for n in range(3)])
    assert world.commit("A", touching("1"), changes=changes, command="alone")
    assert world.commit("A", touching("2"), changes=changes, command="first", joined=("second",), shares=(1, 2))
    assert world.commit("A", touching("3"), changes=changes, command="unsaid", joined=("too",))
    both = {"command": "one", "joined": ("two",), "shares": (2, 1), "users": ("ann", "bob")}
    assert world.commit("A", touching("4"), changes=changes, **both)
    assert world.commit("A", touching("5"), changes=changes, command="mine", users=("ann",))
    file = world.write(tmp_path)[0]
    rows = read(file, table="changes")
    assert [row["user_name"] for row in rows] == [None] * 9 + ["ann", "ann", "bob"] + ["ann"] * 3
    users = [row["users"] for row in read(file, table="commits")]
    assert users == [[None], [None, None], [None, None], ["ann", "bob"], ["ann"]]
    rows = rows[:9]
    assert [row["command"] for row in rows] == ["alone"] * 3 + ["first", "second", "second"] + [None] * 3


VALUES = st.one_of(
    st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False), st.text(), st.binary()
)


@given(st.dictionaries(st.text(), VALUES))
def test_rows_are_equal_after_encoding_as_text(row: dict[str, Any]) -> None:
    text = row_text(tuple(row), tuple(row.values()))
    assert text is not None
    back = parse_row(text)
    assert [(name, type(value), repr(value)) for name, value in back.items()] == [
        (name, type(value), repr(value)) for name, value in row.items()
    ]


def test_spark_tables_agree_with_the_journals_entries(world: World, files: list[Path]) -> None:
    entries = world.entries()
    approvals = read(files[0], table="approvals")
    assert len(approvals) == sum(len(entry.quorum) for entry in entries.values())
    access_sets = read(files[0], table="footprints")
    assert {row["access"] for row in access_sets} == {"read", "write"}
    assert {row["object"] for row in access_sets if row["key"] is None} == {"t:accounts", "s:"}
    points = sum(len(e.transaction.access_set.write_points) for e in entries.values())
    assert sum(row["access"] == "write" and row["key"] is not None for row in access_sets) == points
    (schema,) = read(files[0], table="schema_history")
    assert schema["statement"].startswith("CREATE TABLE accounts")
    members = read(files[0], table="members")
    assert [(row["version"], row["member"], row["voter"]) for row in members] == [
        *((0, node, True) for node in NODES),
        *((1, node, True) for node in NODES),
        (1, "D", False),
    ]
    assert [row["leader"] for row in members] == [None] * 3 + ["B"] * 4


def _damage(path: Path, body: bytes) -> Path:
    db = apsw.Connection(str(path))
    db.execute("UPDATE bedrockish_journal SET body = ? WHERE leader = 'A' AND tick = 3", (body,))
    db.close()
    return path


@pytest.mark.parametrize("body", [b"", b"\xff", cbor2.dumps([1]), cbor2.dumps({"a": 1}), b"\x9f" * 5000])
def test_malformed_entries_are_rows_with_a_reason(tmp_path: Path, body: bytes) -> None:
    path = _damage(honest(30).write(tmp_path)[0], body)
    (bad,) = [row for row in read(path) if row["malformed"] is not None]
    assert (bad["leader"], bad["tick"], bad["after"], bad["body"]) == ("A", 3, None, body)
    with pytest.raises(EntryMalformedError, match="malformed=skip leaves them out"):
        read(path, table="changes")
    assert all((row["leader"], row["tick"]) != ("A", 3) for row in read(path, table="changes", malformed="skip"))


def test_batches_have_the_types_that_spark_expects(files: list[Path]) -> None:
    types = pytest.importorskip("pyspark.sql.pandas.types")
    spark_types = pytest.importorskip("pyspark.sql.types")
    kinds = {
        "STRING": spark_types.StringType(),
        "BIGINT": spark_types.LongType(),
        "INT": spark_types.IntegerType(),
        "BOOLEAN": spark_types.BooleanType(),
        "BINARY": spark_types.BinaryType(),
        "TIMESTAMP": spark_types.TimestampType(),
        "ARRAY<STRING>": spark_types.ArrayType(spark_types.StringType()),
        "MAP<STRING, BIGINT>": spark_types.MapType(spark_types.StringType(), spark_types.LongType()),
    }
    for name, table in TABLES.items():
        schema = spark_types.StructType([spark_types.StructField(n, kinds[k]) for n, k in table.columns.items()])
        expected: pa.Schema = types.to_arrow_schema(schema, timezone="UTC")
        reader = BedrockishReader(ReadOptions.parse({"path": str(files[0]), "table": name}), table.columns, table)
        batches = [batch for piece in reader.partitions() for batch in reader.read(piece)]
        assert all(expected.equals(batch.schema) for batch in batches), name
        assert batches or name == "pruned"


def test_table_with_other_columns_is_damage(tmp_path: Path) -> None:
    path = honest(30).write(tmp_path)[0]
    with closing(apsw.Connection(str(path))) as db:
        db.execute("DROP TABLE bedrockish_pruned; CREATE TABLE bedrockish_pruned(x)")
    with pytest.raises(NotDatabaseError, match=r"is damaged .*run `bedrockish journal verify`"):
        read(path)


@pytest.mark.parametrize("column", ["clock", "applied_ms", "label", "body", "prev", "hash"])
def test_values_of_other_types_are_refused(tmp_path: Path, column: str) -> None:
    path = honest(30).write(tmp_path)[0]
    with closing(apsw.Connection(str(path))) as db:
        db.execute(f"UPDATE bedrockish_journal SET {column} = 1.5 WHERE leader = 'A' AND tick = 3")
    with pytest.raises(EntryMalformedError, match="types that a journal never has"):
        read(path, malformed="skip")
    with pytest.raises(EntryMalformedError, match="types that a journal never has"):
        read(path, table="changes")
    assert all((row["leader"], row["tick"]) != ("A", 3) for row in read(path, table="changes", malformed="skip"))


def test_batches_of_long_entries_have_a_limited_size(tmp_path: Path) -> None:
    path = honest(30).write(tmp_path)[0]
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE bedrockish_journal SET body = zeroblob(?) WHERE tick <= 3", (BATCH_BYTES,))
    sizes = [[len(body) for body in batch["body"].to_pylist()] for batch in read_journal(path, columns="body")]
    assert sum(some.count(BATCH_BYTES) for some in sizes) > 3
    assert max(some.count(BATCH_BYTES) for some in sizes) == 1
