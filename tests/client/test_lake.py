"""A lake that is left at every moment of a batch: each change is in each table once. And what is refused."""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import duckdb
import pytest
import trio
import trio.testing
from deltalake import DeltaTable

from bedrockish.errors import UsageError
from bedrockish.transfer.lake import Batcher, Lake, Sink, begin_with, fill
from bedrockish.transfer.lake_rows import COMMITS, Rows
from bedrockish.transfer.lake_sinks import DeltaTables, arrow_table
from bedrockish_journal.feed.change_feed import Committed, Cursor
from bedrockish_journal.model.changes import DELETE, INSERT, UPDATE, Change
from bedrockish_journal.model.plain_names import plain_name
from bedrockish_journal.spark.source.typed_values import OWN, column_type

PAGE = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()


class KilledError(Exception):
    """Stands for SIGKILL."""


class Tables:
    """A sink in memory; ``left`` appends from now it is as if the program were killed, before or after the last."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.batches: dict[str, int] = {}
        self.left, self.after = 10**9, False

    def batch(self, table: str) -> int:
        return self.batches.get(table, 0)

    def name_of(self, table: str) -> str:
        return table

    def types(self, _table: str) -> Mapping[str, str]:
        return {}

    def append(self, table: str, rows: Rows, batch: int) -> None:
        assert batch > self.batch(table)
        self.left -= 1
        if self.left < 0 and not self.after:
            raise KilledError
        self.rows.setdefault(table, []).extend(arrow_table(rows).to_pylist())
        self.batches[table] = batch
        if self.left < 0:
            raise KilledError


def commit(number: int, changes: Sequence[Change] = (), statements: Sequence[str] = ()) -> Committed:
    kind = "schema" if statements else "rows"
    place = ("A", number)
    return Committed(
        Cursor(number << 22, "A"),
        number << 22,
        "A",
        place,
        f"c{number}",
        (),
        kind,
        tuple(changes),
        tuple(statements),
        {},
    )


def row(table: str, op: str, rowid: int, before: Any = None, after: Any = None) -> Change:
    pair = (None if one is None else (rowid, one) for one in (before, after))
    return Change(table, ("id", "v"), op, rowid, rowid, *pair)


TWO = ["CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)", "CREATE TABLE u(id INTEGER PRIMARY KEY, v TEXT)"]
FEED = [
    commit(1, statements=TWO),
    commit(2, [row("t", INSERT, 1, after="a"), row("u", INSERT, 1, after="a")]),
    commit(3, [row("t", UPDATE, 1, "a", "b"), row("u", INSERT, 2, after="x")]),
    commit(4, statements=["ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 5", "UPDATE u SET v = 'y' WHERE id = 2"]),
    commit(5, [row("u", DELETE, 1, "a")]),
]


def written(folder: Path, tables: Sink, feed: Sequence[Committed]) -> None:
    """Let a program write what is new, to its end."""
    with Lake(folder, tables) as lake:
        batcher = Batcher(lake.ending)
        after = lake.cursor
        place = next((number for number, one in enumerate(FEED, 1) if str(one.cursor) == after), 0)
        batches: list[list[Committed]] = []
        for one in feed[place:]:
            batches += batcher.add(one)
        for batch in [*batches, *batcher.rest()]:
            lake.write(batch)


def moments() -> Iterator[tuple[int, bool, int]]:
    """Yield after how many appends a program is killed, whether after the last, and how much it had heard of."""
    for left in range(10):
        for after in (False, True):
            for heard in range(2, len(FEED) + 1):
                yield left, after, heard


def test_killed_at_every_moment_each_change_is_there_once(tmp_path: Path) -> None:
    true = Tables()
    written(tmp_path / "true", true, FEED)
    assert [one["_change_type"] for one in true.rows["t"]] == [
        *("insert", "update_preimage", "update_postimage", "update_preimage", "update_postimage")
    ]
    assert [(one["id"], one["v"], one["_change_type"]) for one in true.rows["u"]] == [
        *((1, "a", "insert"), (2, "x", "insert"), (2, "x", "update_preimage"), (2, "y", "update_postimage")),
        (1, "a", "delete"),
    ]
    killed = 0
    for number, (left, after, heard) in enumerate(moments()):
        tables = Tables()
        tables.left, tables.after = left, after
        try:
            written(tmp_path / str(number), tables, FEED[:heard])
        except KilledError:
            killed += 1
        tables.left = 10**9
        written(tmp_path / str(number), tables, FEED)
        assert tables.rows == true.rows, (left, after, heard)
    assert killed >= 40


def test_lake_that_does_not_match_is_refused(tmp_path: Path) -> None:
    tables = Tables()
    written(tmp_path / "one", tables, FEED[:3])
    with pytest.raises(UsageError, match="an older copy, or of another lake"), Lake(tmp_path / "other", tables):
        pass
    with pytest.raises(UsageError, match="an older copy, or of another lake"), Lake(tmp_path / "one", Tables()):
        pass
    with Lake(tmp_path / "one", tables), pytest.raises(UsageError, match="another program writes the lake"):
        Lake(tmp_path / "one", tables).__enter__()
    db = apsw.Connection(str(tmp_path / "one" / "mirror.db"))
    db.execute("UPDATE u SET v = 'z' WHERE id = 1").fetchall()
    db.close()
    before = {table: list(rows) for table, rows in tables.rows.items()}
    with pytest.raises(UsageError, match="is not what the cluster was before A5: its v should be 'a' and is 'z'"):
        written(tmp_path / "one", tables, FEED)
    assert tables.rows["u"][:2] == before["u"]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "mirror.db").write_bytes(b"no database, and long enough not to be taken for one" * 20)
    with pytest.raises(UsageError, match="cannot be opened"), Lake(tmp_path / "bad", Tables()):
        pass


def test_plain_names_are_unique_and_valid_for_every_reader() -> None:
    names = ["a", "A1", "a b", "a_b", "x_a_20_b", "x_", "_key", "_other", "", "ü", "a;b", "a,b", "x_a", "1", "a.b", "x"]
    found = [plain_name(name) for name in names]
    assert len({name.lower() for name in found}) == len(names)
    assert all(name.replace("_", "a").isalnum() and name.isascii() and name[0] != "_" for name in found)
    assert found[:4] == ["a", "A1", "x_a_20_b", "a_b"]


def test_types_are_sqlites_affinities() -> None:
    declared = (
        "INTEGER",
        "bigint",
        "VARCHAR(9)",
        "CLOB",
        "BLOB",
        "DOUBLE PRECISION",
        "FLOAT",
        "DATE",
        "DECIMAL(9)",
        "",
    )
    assert [column_type(one) for one in declared] == [
        *("integer", "integer", "text", "text", "blob", "real", "real", "text", "text", "any")
    ]


def open_files(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open."""
    held = []
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # delta-rs has closed the descriptor since
            held.append(os.readlink(one))
    return [one for one in held if one.startswith(str(folder))]


def test_a_folder_with_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b+ü"
    folder.mkdir()
    sink = DeltaTables(folder)
    written(folder, sink, FEED)
    assert sink.batch(COMMITS) == DeltaTables(folder).batch(COMMITS) == 4
    assert DeltaTables(folder).types("t")["w"] == "integer"
    until = time.monotonic() + 30  # delta-rs closes files in threads of its own
    while (held := open_files(folder)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not held, "nothing is left open"
    assert sorted(one.name for one in tmp_path.iterdir()) == [folder.name]
    for name in ("a%20b", "a#b", "a?b"):
        with pytest.raises(UsageError, match="use another directory"):
            DeltaTables(tmp_path / name)


def test_compaction_keeps_the_place_and_the_page_knows_how_to_ask(tmp_path: Path) -> None:
    sink = DeltaTables(tmp_path)
    written(tmp_path, sink, FEED)
    table = DeltaTable(str(tmp_path / "t"))
    assert table.optimize.compact()["numFilesRemoved"] > 1
    assert DeltaTables(tmp_path).batch("t") == sink.batch("t") == 3
    state, versions = re.findall(r"```sql\n(SELECT.*?);\n```", PAGE, flags=re.DOTALL)
    with duckdb.connect() as db:
        db.register("changes", DeltaTable(str(tmp_path / "t")).to_pyarrow_table())
        assert db.sql(f"SELECT id, v, w FROM ({state})").fetchall() == [(1, "b", 5)]
        at = {one: commit(one).at for one in (2, 3, 4)}
        query = f"SELECT v, w, epoch_ms(valid_from), epoch_ms(valid_to) FROM ({versions}) ORDER BY _commit_clock"
        ms = {number: int(moment.timestamp() * 1000) for number, moment in at.items()}
        assert db.sql(query).fetchall() == [
            ("a", None, ms[2], ms[3]), ("b", None, ms[3], ms[4]), ("b", 5, ms[4], None)
        ]  # fmt: skip


SWAPS = [
    commit(
        1,
        statements=[
            "CREATE TABLE swapped(id INTEGER PRIMARY KEY, x TEXT, y TEXT)",
            "CREATE TABLE again(id INTEGER PRIMARY KEY, note TEXT)",
            "CREATE TABLE live(id INTEGER PRIMARY KEY, v TEXT)",
            "CREATE TABLE live_new(id INTEGER PRIMARY KEY, v TEXT)",
            "CREATE TABLE emptied(id INTEGER PRIMARY KEY, v TEXT)",
            "CREATE TABLE cased(id INTEGER PRIMARY KEY, remark)",
        ],
    ),
    commit(
        2,
        [
            Change("swapped", ("id", "x", "y"), INSERT, 1, 1, None, (1, "in-x", "in-y")),
            Change("again", ("id", "note"), INSERT, 1, 1, None, (1, "old")),
            row("live", INSERT, 1, after="old"),
            row("live", INSERT, 2, after="old"),
            row("live_new", INSERT, 1, after="new"),
            row("live_new", INSERT, 3, after="new"),
            row("emptied", INSERT, 1, after="old"),
            Change("cased", ("id", "remark"), INSERT, 1, 1, None, (1, "12")),
        ],
    ),
    commit(3, statements=[f"ALTER TABLE swapped RENAME COLUMN {one}" for one in ("x TO tmp", "y TO x", "tmp TO y")]),
    commit(4, statements=["ALTER TABLE again DROP COLUMN note", "ALTER TABLE again ADD COLUMN note TEXT"]),
    commit(5, statements=["DROP TABLE live", "ALTER TABLE live_new RENAME TO 'live'"]),
    commit(6, statements=["DROP TABLE [emptied]", "CREATE TABLE Emptied(id INTEGER PRIMARY KEY, v TEXT)"]),
    commit(7, statements=["ALTER TABLE cased RENAME COLUMN remark TO ReMark"]),
    commit(8, statements=["ALTER TABLE cased RENAME TO tmp", "ALTER TABLE tmp RENAME TO CaSed"]),
    commit(9, [Change("CaSed", ("id", "ReMark"), INSERT, 2, 2, None, (2, 12))]),
]


def test_rows_that_a_schema_change_exchanges_are_exchanged_in_the_lake(tmp_path: Path) -> None:
    sink = DeltaTables(tmp_path)
    with Lake(tmp_path, sink) as lake:
        for one in SWAPS:
            lake.write([one])
    state = re.findall(r"```sql\n(SELECT.*?);\n```", PAGE, flags=re.DOTALL)[0]

    def now(table: str, columns: str) -> list[tuple[Any, ...]]:
        with duckdb.connect() as db:
            db.register("changes", rows_of(tmp_path, table))
            return sorted(db.sql(f"SELECT {columns} FROM ({state})").fetchall())

    assert now("swapped", "id, x, y") == [(1, "in-y", "in-x")]
    assert now("again", "id, note") == [(1, None)]
    assert now("live", "id, v") == [(1, "new"), (3, "new")]
    assert now("live_new", "id, v") == []
    assert now("emptied", "id, v") == []
    assert now("cased", "id, remark, _other") == [(1, "12", None), (2, "12", '{"ReMark":12}')]
    assert set(sink.types("cased")) - set(OWN) == {"id", "remark"}
    assert {sink.name_of(name) for name in ("CASED", "Emptied")} == {"cased", "emptied"}


def rows_of(folder: Path, table: str) -> Any:
    return DeltaTable(str(folder / table)).to_pyarrow_table()


def copied(folder: Path, rows: int) -> None:
    folder.mkdir()
    db = apsw.Connection(str(folder / "copy"))
    db.execute(f"{TWO[0]}; CREATE TABLE w(a, b, PRIMARY KEY (b, a)) WITHOUT ROWID").fetchall()
    with db:
        db.executemany("INSERT INTO t VALUES (?, ?)", ((number, f"row {number}") for number in range(rows))).fetchall()
        db.executemany("INSERT INTO w VALUES (?, ?)", ((number, -number) for number in range(rows))).fetchall()
    db.close()
    begin_with(folder / "copy", str(Cursor(1 << 22, "A")), folder)


def test_begun_with_a_copy_and_killed_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedrockish.transfer.lake.COPY_ROWS", 4)
    feed = [commit(2, [row("t", UPDATE, 1, "row 1", "b")])]

    def run(folder: Path, tables: Tables) -> None:
        with Lake(folder, tables) as lake:
            assert all(rows <= 4 for rows in lake.write_copy())
            assert lake.cursor is not None
            if lake.cursor != str(feed[0].cursor):
                lake.write(feed)

    for rows in (0, 2, 5):  # 2 of each fill a batch
        true = Tables()
        copied(tmp_path / f"true{rows}", rows)
        if not rows:
            with Lake(tmp_path / "true0", true) as lake:
                assert list(lake.write_copy()) == [0]
            continue
        run(tmp_path / f"true{rows}", true)
        assert [one["id"] for one in true.rows["t"]] == [*range(rows), 1, 1]
        assert [(one["a"], one["_key"], one["_rowid"]) for one in true.rows["w"]] == [
            (str(number), f'{{"b":{-number},"a":{number}}}', None) for number in reversed(range(rows))
        ]
        assert {one["_kind"] for one in true.rows[COMMITS][:-1]} == {"copy"}
        assert sum(one["_changes"] for one in true.rows[COMMITS][:-1]) == 2 * rows
        for left in range(8):
            for after in (False, True):
                tables, folder = Tables(), tmp_path / f"{rows}-{left}-{after}"
                copied(folder, rows)
                tables.left, tables.after = left, after
                with contextlib.suppress(KilledError):
                    run(folder, tables)
                tables.left = 10**9
                run(folder, tables)
                assert tables.rows == true.rows, (rows, left, after)


async def test_batches_end_by_time_and_a_slow_feed_is_not_asked_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Slow:
        """A feed that starts over when its answer is interrupted, as over a slow link."""

        def __init__(self, *pauses: float) -> None:
            self.left = [*zip(pauses, range(2, len(pauses) + 2), strict=True)]

        def __aiter__(self) -> "Slow":
            return self

        async def __anext__(self) -> Committed:
            if not self.left:
                raise StopAsyncIteration
            await trio.sleep(self.left[0][0])
            return commit(self.left.pop(0)[1])

    async def batches(feed: Slow, ending: str | None) -> list[tuple[float, int]]:
        began, found = trio.current_time(), []

        async def write(batch: list[Committed]) -> None:
            await trio.sleep(0.5)
            found.append((round(trio.current_time() - began, 3), len(batch)))

        with trio.fail_after(100):
            await fill(feed, Batcher(ending), 1.0, write)
        return found

    assert await batches(Slow(3, 0.2, 0.2, 0.9, 5), None) == [(4.5, 3), (6.9, 1), (12.4, 1)], "by time"
    assert await batches(Slow(3, 3, 3), str(commit(4).cursor)) == [(9.5, 3)], "where it was begun to end"
