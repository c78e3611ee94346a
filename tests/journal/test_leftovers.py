"""A person's values are found in every file that holds them, and unreadable files do not count as clean."""

import bz2
import gzip
import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import cbor2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from bedrockish.access_sets.key_encoding import encode
from bedrockish.cli.main import main
from bedrockish.errors import UsageError
from bedrockish.transfer.leftovers import Found, Values, leftovers
from bedrockish.transfer.parquet_rows import parquet_rows
from bedrockish_journal.storage import pruning, store
from bedrockish_journal.storage.packing import ENTRIES_MIN, Run, write
from tests.journal.world import World

SOMEBODY = "Ann@Example.org"
PHONE = 491711234567


def look(*paths: Path, of: tuple[str, ...] = (SOMEBODY, str(PHONE))) -> list[str]:
    return [f"{one.path.name}: {one.where}" for one in found(*paths, of=of)]


def found(*paths: Path, of: tuple[str, ...] = (SOMEBODY,)) -> list[Found]:
    return list(leftovers(paths, Values(of), parquet_rows))


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "nodes").mkdir()
    return World(tmp_path / "nodes", 5, ("A", "B")).run(20)


def test_rows_and_entries_are_named_with_their_removal(world: World) -> None:
    for path in world.paths:
        assert look(path) == []
    insert = [f"INSERT INTO account(id, owner, balance) VALUES (77, '{SOMEBODY.upper()}', 1)"]
    place = world.commit("A", world.transaction("A", "rows", world.nodes["A"].execute(insert))).tick
    world.settle()
    world.commit("B", world.transaction("B", "rows", world.nodes["B"].execute(["DELETE FROM account WHERE id = 77"])))
    world.commit("B", world.transaction("B", "rows", world.nodes["B"].execute(["INSERT INTO note VALUES ('x', 1)"])))
    world.close()
    row, *entries = look(world.nodes["A"].path)
    assert row == "A.db: 1 row of account"
    assert entries == [
        f"A.db: A{place} of the journal, the last that A has led: it can go when A has led another one",
        f"A.db: 1 entry of the journal, A{place}, the last of 1970-01-01T00:04:22.144Z: until the journal is shorter "
        "than that",
    ]
    told = look(world.nodes["B"].path)
    assert [text.partition(": until")[0] for text in told if "entries" in text] == [
        f"B.db: 2 entries of the journal, A{place} to B{world.nodes['B'].applied['B'] - 1}, the last of "
        "1970-01-01T00:04:22.144Z"
    ]
    assert not any("row of account" in text or "free" in text for text in told)


def test_numbers_are_found_as_rows_keys_rowids_and_entries_have_them(world: World, tmp_path: Path) -> None:
    node = world.nodes["A"]
    node.db.execute(f"CREATE TABLE by_number(n INTEGER PRIMARY KEY); INSERT INTO by_number VALUES ({PHONE})")
    node.db.execute(f"CREATE TABLE plain(n); INSERT INTO plain VALUES ({PHONE}), ({PHONE}.0), ('tel. {PHONE}')")
    assert look(node.path, node.path.with_name("A.db-wal")) == [
        "A.db: 1 row of by_number",
        "A.db: 3 rows of plain",
        "A.db-wal: in the write-ahead log, as it was written: 'bedrockish compact'",
    ]
    node.db.execute("DELETE FROM by_number; DELETE FROM plain; PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert look(node.path) == [
        "A.db: in what is free of the file, as it was before it was deleted: 'bedrockish compact'"
    ]
    for name, data in (("key", encode(PHONE)), ("cbor", cbor2.dumps([1, PHONE])), ("other", cbor2.dumps(PHONE + 1))):
        (tmp_path / name).write_bytes(b"before" + data + b"after")
        assert bool(look(tmp_path / name)) == (name != "other")
    world.close()


def test_other_files_by_their_bytes_and_packed_ones_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "export" / "deep"
    folder.mkdir(parents=True)
    (folder / "log.json").write_text(json.dumps({"min": f"x{SOMEBODY.lower()}y"}))
    (folder / "clean.json").write_text("{}")
    (folder / "empty").touch()
    (folder / "packed.gz").write_bytes(gzip.compress(SOMEBODY.encode()))
    (folder / "object").write_bytes(b"BRO1\0xyz")
    table = pa.table({"before": [{"owner": [SOMEBODY]}, None], "n": [PHONE, 1]})
    pq.write_table(table, folder / "part.parquet", compression="zstd")
    (folder / "broken.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "export" / "loop").symlink_to(tmp_path / "export")
    told = list(leftovers([tmp_path / "export", folder / "log.json"], Values([SOMEBODY, str(PHONE)]), parquet_rows))
    assert [(one.path.name, one.looked) for one in told] == [
        ("broken.parquet", False),
        ("log.json", True),
        ("object", False),
        ("packed.gz", False),
        ("part.parquet", True),
    ]
    assert [one.where for one in told if one.path.name == "part.parquet"] == ["2 values of columns"]
    (one,) = leftovers([folder / "part.parquet"], Values([SOMEBODY]), None)
    assert (one.looked, one.where) == (False, "is Parquet; pip install 'bedrockish[audit]' to look into it")


def test_a_value_across_two_pieces_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedrockish.transfer.leftovers.PIECE", 32)
    for place in range(40):
        (tmp_path / "x").write_bytes(b"." * place + SOMEBODY.encode() + b"." * 40)
        assert look(tmp_path / "x") == ["x: in its bytes"]


@pytest.mark.parametrize("value", ["", "ann", "7", "16777215", "0001"])
def test_value_that_matches_by_chance_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="by chance"):
        Values([value])


def test_unreadable_files_do_not_count_as_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "x").write_text("nothing")
    os.mkfifo(tmp_path / "pipe")
    scan = os.scandir

    def refuse(path: Path | str) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    told = found(tmp_path, tmp_path / "pipe")
    assert [(one.path.name, one.looked) for one in told] == [("closed", False), ("pipe", False)]


def test_a_table_that_cannot_be_read_is_not_taken_for_clean(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    db = apsw.Connection(str(path))
    db.create_scalar_function("mine", lambda *given: given[0], 1, deterministic=True)
    db.execute("CREATE TABLE t(a, b AS (mine(a)) VIRTUAL); INSERT INTO t(a) VALUES ('x')")
    db.close()
    (one,) = found(path)
    assert not one.looked
    assert "mine" in one.where


def test_the_command(world: World, tmp_path: Path) -> None:
    world.close()
    clean = str(world.nodes["A"].path)
    run = CliRunner().invoke
    assert (run(main, ["leftovers", clean, "--of", SOMEBODY]).output) == "nothing is left\n"
    answer = run(main, ["leftovers", clean, "--of", "-"], input=f"{SOMEBODY}\n\no1\n")
    assert (answer.exit_code, "'o1' is in every file by chance" in answer.output) == (2, True)
    assert run(main, ["leftovers", clean]).exit_code == 2
    assert "no such file" in run(main, ["leftovers", str(tmp_path / "none"), "--of", SOMEBODY]).output
    shutil.copy(clean, tmp_path / "copy.db")
    with open(tmp_path / "copy.db", "ab") as file:
        file.write(b"\0" * 4096 + b"ann@example.org")
    answer = run(main, ["leftovers", str(tmp_path / "copy.db"), "--of", SOMEBODY])
    assert (answer.exit_code, "free" in answer.output) == (1, True)
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"-"))
    answer = run(main, ["leftovers", clean, str(tmp_path / "x.gz"), "--of", SOMEBODY])
    assert answer.exit_code == 3
    assert answer.output.endswith("x.gz: is gzip\nnothing is left in the files that could be searched\n")


def test_packs_of_the_journal_are_looked_into(world: World) -> None:
    """Names in compressed bytes are found too, except in packs that were removed."""
    insert = [f"INSERT INTO account(id, owner, balance) VALUES (77, '{SOMEBODY}', 1)"]
    place = world.commit("A", world.transaction("A", "rows", world.nodes["A"].execute(insert))).tick
    delete = ["DELETE FROM account WHERE id = 77"]
    world.commit("A", world.transaction("A", "rows", world.nodes["A"].execute(delete)))
    more = ["INSERT INTO note VALUES ('x', 1)"]
    for _ in range(2 * ENTRIES_MIN):
        world.commit("A", world.transaction("A", "rows", world.nodes["A"].execute(more)))
    db, path = world.nodes["A"].db, world.nodes["A"].path
    last = store.applied(db)["A"]
    query = "SELECT label, body, prev, hash FROM bedrockish_journal WHERE leader = 'A' AND tick >= ? AND tick < ?"
    entries: list[Any] = db.execute(f"{query} ORDER BY tick", (place, last)).fetchall()
    pack = Run("A", place, entries).pack()
    assert pack is not None
    with db:
        write(db, pack)
    fresh = path.with_name("fresh.db")
    db.execute("VACUUM INTO ?", (str(fresh),))
    assert not _raw(fresh)
    assert [text.partition(", the last of")[0] for text in look(fresh)] == [
        f"fresh.db: 2 entries of the journal, A{place} to A{place + 1}"
    ]
    shutil.copy(fresh, torn := path.with_name("torn.db"))
    with closing(apsw.Connection(str(torn))) as copy:
        copy.execute("UPDATE bedrockish_packed SET entries = substr(entries, 1, 100)")
    assert {one.looked for one in found(torn)} == {False}
    with closing(apsw.Connection(str(fresh))) as copy:
        store.unpack_on(copy)
        with copy:
            pruning.remove(copy, {"A": last - 1})
    assert look(fresh) == [
        "fresh.db: has compressed bytes, of packs of the journal that were removed or of values of tables, that cannot "
        "be looked into: 'bedrockish compact'"
    ]
    with closing(apsw.Connection(str(fresh))) as copy:
        copy.execute("VACUUM INTO ?", (str(path.with_name("clean.db")),))
    assert look(path.with_name("clean.db")) == []
    with closing(apsw.Connection(str(world.nodes["B"].path))) as log:
        log.execute("PRAGMA wal_autocheckpoint = 0")
        log.execute("CREATE TABLE kept AS SELECT ? AS v", (bz2.compress(b"x"),))
        wal = world.nodes["B"].path.with_name("B.db-wal")
        assert (
            look(wal)[-1] == "B.db-wal: has packs of the journal, that cannot be looked into here: 'bedrockish compact'"
        )
    world.close()


def _raw(path: Path) -> bool:
    return SOMEBODY.encode() in path.read_bytes()
