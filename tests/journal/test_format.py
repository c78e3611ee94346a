"""The page docs/journal.md is complete: a decoder that shares no code reads its example and real journals."""

import ast
import json
import re
import sqlite3
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish import open_client
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.changes import Change, encode_changes
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import Transaction, Txid
from tests.cluster.story import level, ready
from tests.journal import foreign_reader
from tools.cluster import local_cluster

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "journal.md").read_text()
CLIENTS = 12


def example() -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the worked example of the page: its bytes by name, and their documented content."""
    block = re.search(r"```hex\n(.*?)```", PAGE, re.DOTALL)
    said = re.search(r"```json\n(\{\n  \"version\".*?)```", PAGE, re.DOTALL)
    assert block is not None
    assert said is not None
    parts = re.findall(r"^(\w+) ([0-9a-f\s]+?)(?=\n[a-z]{4,5} |\Z)", block[1], re.MULTILINE)
    return {name: bytes.fromhex(data) for name, data in parts}, json.loads(said[1])


def plain(value: Any) -> Any:
    """Return a decoded value as JSON would have it, bytes in hexadecimal."""
    match value:
        case bytes():
            return value.hex()
        case list() | tuple():
            return [plain(one) for one in value]
        case dict():
            return {name: plain(one) for name, one in value.items()}
    return value


def test_foreign_decoder_imports_no_module_of_this_project() -> None:
    """The decoder imports the standard library alone, and is about as short as the page promises."""
    source = Path(foreign_reader.__file__).read_text()
    found = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert found <= sys.stdlib_module_names


def test_the_fields_of_the_page_are_those_of_the_decoder() -> None:
    for title, names in (("label", foreign_reader.LABEL), ("body", foreign_reader.BODY)):
        table = re.search(rf"^\| {title} \| field .*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
        assert table is not None
        rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", table[0], re.MULTILINE)
        assert rows == [(str(number), name) for number, name in enumerate(names.split())]


def test_worked_example_decodes_as_documented() -> None:
    found, said = example()
    assert sorted(found) == ["body", "hash", "label", "prev"]
    assert plain(foreign_reader.entry(found["label"], found["body"])) == said
    assert sha256(found["prev"] + found["label"] + found["body"]).digest() == found["hash"]


def test_worked_example_equals_our_encoding() -> None:
    found, said = example()
    reads, _, writes, _ = said["access_set"]
    (table, columns, *rest) = said["changes"][0]
    op, rowid, rowid_after, before, after = rest
    transaction = Transaction(
        txid=Txid(said["clock"], said["origin"]),
        base=said["after"],
        access_set=AccessSet(frozenset(map(bytes.fromhex, reads)), (), frozenset(map(bytes.fromhex, writes))),
        changes=encode_changes([Change(table, tuple(columns), op, rowid, rowid_after, tuple(before), tuple(after))]),
        result=bytes.fromhex(said["result"]),
        **{name: said[name] for name in ("safe", "schema", "config", "command", "isolation", "kind")},
    )
    entry = Entry(said["leader"], said["tick"], said["quorum"], transaction, said["adopted_from"], found["prev"])
    assert (entry.label, transaction.body, entry.hash) == (found["label"], found["body"], found["hash"])


@pytest.mark.cluster
def test_journals_of_real_nodes_are_read_and_make_the_tables(tmp_path: Path) -> None:
    """The journal has every kind of value, key and change, commands that share a transaction, and three leaders."""
    with local_cluster(tmp_path / "cluster") as cluster:

        async def live() -> None:
            await ready(cluster)
            async with open_client(cluster.url(0)) as first:
                for sql in (
                    "CREATE TABLE thing(id INTEGER PRIMARY KEY, a, b TEXT)",
                    "CREATE TABLE pair(x TEXT, y INTEGER, z, PRIMARY KEY(x, y)) WITHOUT ROWID",
                    "INSERT INTO thing VALUES (-3, 9e999, NULL), (1, -0.5, 'π'), (2, x'00ff', ''), (3, 1e300, 'a')",
                    "INSERT INTO thing VALUES (9223372036854775807, -9223372036854775808, char(0)), (4, 16777216, 'b')",
                    "INSERT INTO pair VALUES ('k', 1, 0), ('k', 2, NULL), ('l', 1, 23), ('l', 2, 65536)",
                    "UPDATE pair SET y = y + 10 WHERE x = 'k'",
                    "UPDATE thing SET id = 5 WHERE id = 2",
                    "DELETE FROM pair WHERE x = 'l' AND y = 1",
                    "ALTER TABLE thing ADD COLUMN c DEFAULT 'none'",
                    "UPDATE thing SET c = id WHERE id < 4",
                ):
                    await first.execute(sql)

            async def insert(number: int) -> None:
                async with open_client(cluster.url(number % 3, only=True)) as client:
                    for more in range(4):
                        await client.execute("INSERT INTO pair VALUES (?, ?, ?)", (f"c{number}", more, 2.5 * more))

            async with trio.open_nursery() as nursery:
                for number in range(CLIENTS):
                    nursery.start_soon(insert, number)
            await level(cluster)

        trio.run(live)
        paths = [node.database for node in cluster.nodes]
        cluster.stop()
    shared = 0
    for path in paths:
        entries = [entry for repeat, entry in foreign_reader.journal(str(path)) if not repeat]
        assert {"A", "B", "C"} <= {entry["leader"] for entry in entries}
        assert all(len(entry["quorum"]) >= 2 for entry in entries)
        joined = {command for entry in entries for command, _ in entry.get("joined", ())}
        with closing(sqlite3.connect(path)) as db:
            assert joined == {command for (command,) in db.execute("SELECT command FROM bedrockish_joined")}
            for table in ("thing", "pair"):
                cursor = db.execute(f"SELECT * FROM {table}")
                names = [column[0] for column in cursor.description]
                assert made(entries, table, names) == sorted(map(repr, cursor))
        statements = [text for entry in entries if entry["kind"] == "schema" for text in entry["changes"]]
        assert len(statements) == 3
        shared += len(joined)
    assert shared > 0


def made(entries: list[dict[str, Any]], table: str, names: list[str]) -> list[str]:
    """Return the rows that a journal makes of a table, as the change of the schema in the test leaves them."""
    rows: dict[Any, dict[str, Any]] = {}
    for entry in entries:
        for name, columns, _op, rowid, rowid_after, before, after in entry["changes"] * (entry["kind"] == "rows"):
            if name != table:
                continue
            if before is not None:
                old = rows.pop(tuple(before[:2]) if rowid is None else rowid)
                assert repr([old.get(column, "none") for column in columns]) == repr(before)
            if after is not None:
                rows[tuple(after[:2]) if rowid is None else rowid_after] = dict(zip(columns, after, strict=True))
    return sorted(repr(tuple(row.get(name, "none") for name in names)) for row in rows.values())
