"""Changes with typed columns equal the journal, by the schema history, whatever values rows have."""

import os
import random
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import cbor2
import pytest
from pyspark.sql import SparkSession

from bedrockish_journal.arrow import read_journal
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import (
    DELETE,
    INSERT,
    UPDATE,
    Change,
    Value,
    encode_changes,
    encode_statements,
    same_value,
)
from bedrockish_journal.model.errors import EntryMalformedError, FileMissingError
from bedrockish_journal.model.plain_names import folded, plain_name
from bedrockish_journal.model.transaction import SCHEMA
from bedrockish_journal.spark import parquet_batches
from bedrockish_journal.spark.source import declared as declaring
from bedrockish_journal.spark.source.feeds import open_feed
from bedrockish_journal.spark.source.json_rows import parse_row
from bedrockish_journal.spark.source.options import ReadOptions
from bedrockish_journal.spark.source.stream import BedrockishStreamReader
from bedrockish_journal.spark.source.typed_rows import table_of
from bedrockish_journal.spark.source.typed_values import column_type
from tests.spark.worlds import NODES, World, touching

ALL = AccessSet(write_ranges=((b"s:", b"s;"),))
KINDS = {"id": "INTEGER PRIMARY KEY", "n": "INT", "r": "DOUBLE", "t": "VARCHAR(9)", "b": "BLOB", "any thing": ""}
COLUMNS = tuple(KINDS)
VALUES: Sequence[Value] = (
    *(None, 0, -1, 1, (1 << 63) - 1, -(1 << 63), (1 << 53) + 1, 0.0, -0.0, 1.5, float("inf"), 1e300),
    *("", "1", "ü%s%\0", b"", b"\0\xff"),
)


def schema(world: World, *statements: str) -> None:
    assert world.commit("A", ALL, kind=SCHEMA, changes=encode_statements(list(statements)))
    world.settle()


def create(table: str = "t") -> str:
    columns = ", ".join(f'"{name}" {kind}' for name, kind in KINDS.items())
    return f"CREATE TABLE {table}({columns})"


def commit(world: World, *changes: Change, leader: str = "A", **more: object) -> None:
    assert world.commit(leader, touching("all"), changes=encode_changes(changes), **more)
    world.settle()


def insert(table: str, columns: tuple[str, ...], *row: Value, rowid: int | None = 1) -> Change:
    return Change(table, columns, INSERT, rowid, rowid, None, row)


def rows(path: Path, table: str = "t", **options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_journal(path, rows=table, **options).read_all().to_pylist()
    return found


def value_of(row: dict[str, Any], column: str, called: str) -> Value:
    other = parse_row(row["_other"]) if row["_other"] else {}
    assert column not in other or row[called] in (None, repr(other[column]))
    return other.get(column, row[called])


def test_typed_rows_have_every_value_of_every_change_once(tmp_path: Path) -> None:
    world, luck = World(), random.Random(7)
    schema(world, create("t"), create("u"))
    true: list[tuple[Any, ...]] = []
    held: dict[str, dict[int, tuple[Value, ...]]] = {"t": {}, "u": {}}
    for number in range(60):
        changes, leader = list[Change](), luck.choice(NODES)
        for _ in range(luck.choice((1, 1, 3, 9))):
            table = luck.choice("tu")
            key = luck.choice([*held[table], len(true) + 1])
            before = held[table].get(key)
            after = None if before and luck.random() < 0.3 else (key, *(luck.choice(VALUES) for _ in COLUMNS[1:]))
            op = INSERT if before is None else DELETE if after is None else UPDATE
            for kind, image, seq in (("pre", before, 0), ("post", after, int(op == UPDATE))):
                if image is not None and table == "t":
                    name = {INSERT: "insert", DELETE: "delete"}.get(op, f"update_{kind}image")
                    true.append((number, leader, 2 * len(changes) + seq, name, str(key), image))
            changes.append(Change(table, COLUMNS, op, key, key, before, after))
            held[table].pop(key, None)
            held[table] |= {} if after is None else {key: after}
        commit(world, *changes, leader=leader, command=f"command {number}")
    path = world.write(tmp_path)[1]
    found = rows(path)
    found.sort(key=lambda row: (row["_commit_clock"], row["_commit_seq"]))
    assert len(found) == len(true)
    for row, (number, leader, seq, kind, key, image) in zip(found, true, strict=True):
        assert (row["_command"], row["_leader"], row["_node"]) == (f"command {number}", leader, "B")
        assert (row["_commit_seq"], row["_change_type"], row["_key"], row["_rowid"]) == (seq, kind, key, int(key))
        for column, value in zip(COLUMNS, image, strict=True):
            back = value_of(row, column, "x_any_20_thing" if column == "any thing" else column)
            if type(value) is not type(back) and value is not None:  # the value was converted to the type of its column
                assert back == (float(str(value)) if column == "r" else repr(value))
            else:
                assert same_value(value, back), (column, value)
        assert type(row["n"]) in (int, type(None))
        assert type(row["r"]) in (float, type(None))
    table = read_journal(path, table="changes").read_all()
    places = list(zip(*(table[name].to_pylist() for name in ("leader", "tick", "seq_in_txn")), strict=True))
    assert places == sorted(places), "entries of several tables keep their order"


def test_types_are_those_of_the_schema_history(tmp_path: Path) -> None:
    world = World()
    history = (
        "CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, gone REAL, v AS (a || 'x'), s AS (a) STORED)",
        "ALTER TABLE t DROP COLUMN gone",
        "-- so\n/* or */ ALTER TABLE t RENAME COLUMN a TO A2",
        "ALTER TABLE t ADD COLUMN note DEFAULT 'one;\ntwo'",
        "DROP TABLE t",
        "CREATE TABLE t(id TEXT, a INTEGER, k INT, PRIMARY KEY (k, id)) WITHOUT ROWID",
    )
    schema(world, *history)
    commit(world, insert("t", ("id", "a", "K", "new"), "x", 7, 1, 2.5, rowid=None))
    commit(world, insert("T", ("id", "a", "k"), "x", "seven", 2, rowid=None))
    path = world.write(tmp_path)[0]
    for kept in (False, True):  # a file of an earlier release lacks this table, and the journal has the changes
        if kept:
            db = apsw.Connection(str(path))
            db.execute("CREATE TABLE bedrockish_schema(version INTEGER, state TEXT, statements TEXT)")
            text = ";\n".join(one.rstrip(";") for one in history)
            db.execute(
                "INSERT INTO bedrockish_schema VALUES (1, 'active', ?), (2, 'failed', 'CREATE TABLE t(b)')", (text,)
            )
            db.close()
        names = ["id", "a", "gone", "s", "A2", "note", "k"]
        with open_feed(str(path)) as feed:
            found = declaring.declared([feed], "t")
        assert list(found.types) == names
        assert list(found.types.values()) == ["integer", "text", "real", "any", "text", "any", "integer"]
        assert found.keys == (("k", "id"), ("id",))
        first, second = rows(path, "t")
        assert (first["id"], first["a"], first["k"], first["_rowid"]) == (None, "7", 1, None)
        assert parse_row(first["_other"]) == {"id": "x", "new": 2.5}
        assert (second["_key"], second["a"], second["k"]) == ('{"k":2,"id":"x"}', "seven", 2)
        assert rows(path, "T") == [first, second]


def test_forged_schema_history_runs_no_statement(tmp_path: Path) -> None:
    world = World()
    victim = tmp_path / "victim"
    schema(
        world,
        f"VACUUM INTO '{victim}'",
        f"ATTACH '{victim}' AS v",
        f"CREATE TABLE x AS SELECT 1; ATTACH '{victim}' AS v; CREATE TABLE v.t(i)",
        "CREATE TABLE e(n) ; SELECT load_extension('x')",
        "CREATE TABLE endless AS WITH RECURSIVE c(n) AS (VALUES(1) UNION ALL SELECT n + 1 FROM c) SELECT n FROM c",
        "CREATE TABLE big AS SELECT randomblob(900000000) AS b",
        "CREATE TABLE t(v TEXT, w INTEGER CHECK (plugin_function(w)))",
        "no SQL",
    )
    commit(world, insert("t", ("v", "w"), "x", 1))
    path = world.write(tmp_path)[0]
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE t(v TEXT, w INTEGER)")  # what the node has now
    db.close()
    assert [(row["v"], row["w"]) for row in rows(path)] == [("x", 1)]
    assert not victim.exists()
    with pytest.raises(FileMissingError, match=r"there is no table 'endless', and none was; there are accounts, t$"):
        rows(path, "endless")


NESTED: list[Any] = [
    [[["t", ["v"]]], [[0, "INSERT", 1, 1, None, [[1]]]]],
    [[["t", ["v"]]], [[0, "INSERT", 1, 1, None, [True]]]],
    [[["t", ["v"]]], [[0, "INSERT", 1, 1, None, [1, 2]]]],
    [[["t", ["v"]]], [[0, "INSERT", 1, 1, None, []]]],
    [[["t", ["v"]]], [[0, "INSERT", 1, 1, None, None]]],
    [[["t", ["v"]]], [[0, "DELETE", 1, 1, None, [1]]]],
    [[["t", ["v"]]], [[0, "REPLACE", 1, 1, None, [1]]]],
    [[["t", ["v"]]], [[0, "INSERT", 1 << 64, 1, None, [1]]]],
    [[["t", ["v"]]], [[0, "INSERT", "1", 1, None, [1]]]],
    [[["t", ["v"]]], [[1, "INSERT", 1, 1, None, [1]]]],
    [[["t", ["v"]]], [[[0], "INSERT", 1, 1, None, [1]]]],
    [[["t", ["v"]]], [[0, "INSERT", 1, 1, None]]],
    [[["t", ["v"]]], [[0, "INSERT", 1, 1, None, "1"]]],
    [[["t", [7]]], [[0, "INSERT", 1, 1, None, [1]]]],
    [[[7, ["v"]]], [[0, "INSERT", 1, 1, None, [1]]]],
    [[[["t"], ["v"]]], [[0, "INSERT", 1, 1, None, [1]]]],
    [[["t", ["v"]], ["t", ["v"]]], [[0, "INSERT", 1, 1, None, [1]], ["x", "INSERT", 1, 1, None, [1]]]],
    7,
]


@pytest.mark.parametrize("nested", NESTED)
def test_malformed_change_is_named_or_skipped_alone(tmp_path: Path, nested: Any) -> None:
    world = World()
    schema(world, "CREATE TABLE t(v)")
    for number in range(3):
        commit(world, insert("t", ("v",), f"row {number}"))
        if number == 1:
            assert world.commit("B", touching("bad"), changes=cbor2.dumps(nested))
            world.settle()
    path = world.write(tmp_path)[0]
    for options, column in (({"rows": "t"}, "v"), ({"table": "changes"}, "after")):
        with pytest.raises(EntryMalformedError, match=r"B1 in .*A\.db: .*malformed=skip leaves them out"):
            read_journal(path, **options).read_all()
        found = read_journal(path, **options, malformed="skip").read_all()[column].to_pylist()
        assert [re.sub(r"\D", "", text) for text in found] == ["0", "1", "2"]


def test_batches_are_small_in_rows_and_in_bytes(tmp_path: Path) -> None:
    world = World()
    schema(world, "CREATE TABLE t(v)", "CREATE TABLE u(v)")
    commit(world, *(insert("tu"[number % 2], ("v",), number, rowid=number) for number in range(6000)))
    for number in range(12):
        commit(world, insert("t", ("v",), bytes(3 << 20), rowid=6000 + number))
    path = world.write(tmp_path)[0]
    for table, options in (("t", {"rows": "t"}), ("u", {"rows": "u"}), ("t", {"table": "changes"})):
        batches = list(read_journal(path, **options))
        small = [batch for batch in batches if batch.nbytes < 1 << 20]
        assert all(batch.num_rows <= 1024 for batch in batches)
        assert all(batch.nbytes < 20 << 20 for batch in batches), "three of three megabytes, as base64"
        assert sum(batch.num_rows for batch in batches) == (
            3000 if table == "u" else 6012 if "table" in options else 3012
        )
        assert small
    assert read_journal(path, rows="t", columns="_rowid", leader="C").read_all().num_rows == 0


def test_a_value_beyond_sixty_four_bits_is_kept(tmp_path: Path) -> None:
    world = World()
    schema(world, "CREATE TABLE t(n INTEGER, r REAL)")
    for value in (1 << 64, -(1 << 63) - 1):
        changes = [[["t", ["n", "r"]]], [[0, "INSERT", 1, 1, None, [value, value]]]]
        assert world.commit("A", touching("x"), changes=cbor2.dumps(changes))
    found = rows(world.write(tmp_path)[0])
    assert [(row["n"], row["r"], row["_other"]) for row in found] == [
        (None, None, f'{{"n":{value},"r":{value}}}') for value in (1 << 64, -(1 << 63) - 1)
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rows": "t", "table": "changes"}, "'rows' and 'table' both name tables"),
        ({"rows": "t", "tables": "t"}, "'rows' and 'tables' both name tables"),
        ({"rows": ""}, "'rows' is empty"),
        ({"rows": "t", "columns": "v,colour"}, "the table t has no column 'colour'; it has v, _change_type"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, str], text: str) -> None:
    world = World()
    schema(world, "CREATE TABLE t(v)")
    commit(world, insert("t", ("v",), 1))
    path = world.write(tmp_path)[0]
    with pytest.raises(ValueError, match=text):
        read_journal(path, **options)
    for several in ([path, path], os.fsencode(path), None):
        with pytest.raises(ValueError, match=r"the path should be one text, such as 'a.db,b.db', or a Path, not a"):
            read_journal(several)  # type: ignore[arg-type]
    assert read_journal(path, rows="t", columns="_tick,v").schema.names == ["_tick", "v"]


def test_reader_filters_apply_to_the_commit_and_not_to_a_column_of_the_same_name(tmp_path: Path) -> None:
    world = World()
    columns = ("leader", "tick", "clock")
    schema(world, "CREATE TABLE t(leader TEXT, tick INTEGER, clock INTEGER)")
    for number in range(8):
        commit(world, insert("t", columns, "Z", 1000 + number, number), leader=NODES[number % 2])
    path = world.write(tmp_path)[0]
    clock = sorted(row["_commit_clock"] for row in rows(path))[5]
    assert [row["clock"] for row in rows(path, leader="Z")] == []
    assert sorted(row["clock"] for row in rows(path, leader="B")) == [1, 3, 5, 7]
    assert sorted(row["clock"] for row in rows(path, clock_from=clock)) == [5, 6, 7]


def test_stream_reads_across_a_schema_change(tmp_path: Path) -> None:
    world = World()
    schema(world, "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)")
    commit(world, insert("t", ("id", "v"), 1, "a"))
    path = world.write(tmp_path)[0]

    def stream() -> BedrockishStreamReader:
        options = ReadOptions.parse({"path": str(path), "rows": "t"})
        table = table_of(options)
        return BedrockishStreamReader(options, table.columns, table)

    def batch(reader: BedrockishStreamReader, start: Any) -> tuple[Any, list[tuple[Any, ...]]]:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        found = [
            one for piece in reader.partitions(start, end) for got in reader.read(piece) for one in got.to_pylist()
        ]
        return end, [(row["v"], row.get("more"), row["_other"]) for row in found]

    running = stream()
    place, found = batch(running, running.initialOffset())
    assert found == [("a", None, None)]
    schema(world, "ALTER TABLE t ADD COLUMN more INTEGER DEFAULT 7")
    commit(world, insert("t", ("id", "v", "more"), 2, "b", 8))
    path.unlink()
    world.write(tmp_path / "later")[0].rename(path)
    assert batch(running, place)[1] == [("b", None, '{"more":8}')], "its columns are fixed, and nothing is lost"
    assert batch(stream(), place)[1] == [("b", 8, None)]
    assert batch(stream(), {"A": {}})[1] == [("a", None, None), ("b", 8, None)]


@pytest.mark.spark
def test_spark_reads_and_streams_typed_rows_across_a_schema_change(spark: SparkSession, tmp_path: Path) -> None:
    world = World()
    schema(world, "CREATE TABLE t(id INTEGER PRIMARY KEY, v REAL, photo BLOB)")
    commit(world, *(insert("t", ("id", "v", "photo"), n, n / 2, b"\0", rowid=n) for n in range(10)))
    path = world.write(tmp_path)[0]
    frame = spark.read.format("bedrockish").option("rows", "t").load(str(path))
    assert frame.dtypes[:4] == [("id", "bigint"), ("v", "double"), ("photo", "binary"), ("_change_type", "string")]
    assert frame.where("v > 1.5 AND _commit_seq < 12").agg({"v": "sum"}).first() == (2.0 + 2.5,)

    def run() -> list[tuple[Any, ...]]:
        source = spark.readStream.format("bedrockish").option("rows", "t").load(str(path))
        sink = source.writeStream.foreachBatch(parquet_batches(str(tmp_path / "out")))
        sink.option("checkpointLocation", str(tmp_path / "place")).trigger(availableNow=True).start().awaitTermination()
        read = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out"))
        return sorted(
            tuple(row) for row in read.select("id", *(name for name in ("more",) if name in read.columns)).collect()
        )

    assert run() == [(n,) for n in range(10)]
    schema(world, "ALTER TABLE t ADD COLUMN more TEXT")
    commit(world, insert("t", ("id", "v", "photo", "more"), 10, 0.5, None, "new", rowid=10))
    path.unlink()
    world.write(tmp_path / "later")[0].rename(path)
    assert run() == [*((n, None) for n in range(10)), (10, "new")]


def test_unknown_tables_are_refused_and_dropped_ones_are_read(tmp_path: Path) -> None:
    world = World()
    schema(world, create("artist"), create("gone"), "DROP TABLE gone")
    commit(world, insert("artist", COLUMNS, *[None] * len(COLUMNS)))
    path = world.write(tmp_path)[0]
    found = read_journal(path, table="changes", tables="ARTIST,Gone").read_all()
    assert found.num_rows == 1
    with pytest.raises(FileMissingError, match="there is no table 'artists'"):
        read_journal(path, table="changes", tables="artists")


def test_schema_statement_is_recognised_behind_comments() -> None:
    assert declaring._OF_TABLES.match("/* a */ -- b\n alter  TABLE t ADD c")
    assert not declaring._OF_TABLES.match("CREATE INDEX i ON t(v)")
    assert folded(string.ascii_uppercase + "Ü") == string.ascii_lowercase + "Ü"


def test_plain_names_are_unique_and_valid_for_every_reader() -> None:
    names = ["a", "A1", "a b", "a_b", "x_a_20_b", "x_", "_key", "_other", "", "ü", "a;b", "a,b", "x_a", "1", "a.b", "x"]
    found = [plain_name(name) for name in names]
    assert len({name.lower() for name in found}) == len(names)
    assert all(name.replace("_", "a").isalnum() and name.isascii() and name[0] != "_" for name in found)
    assert found[:4] == ["a", "A1", "x_a_20_b", "a_b"]


def test_types_are_sqlites_affinities() -> None:
    declared = ("INTEGER", "bigint", "VARCHAR(9)", "CLOB", "BLOB", "DOUBLE PRECISION", "FLOAT", "DATE", "NUMERIC", "")
    assert [column_type(one) for one in declared] == [
        *("integer", "integer", "text", "text", "blob", "real", "real", "text", "text", "any")
    ]
