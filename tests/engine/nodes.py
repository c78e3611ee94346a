"""A node's engine for tests: SQL in, entries out, without any protocol between."""

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from bedrockish.api.requests import Request, Result, Statement, decode_results
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.engine import Engine, Founding, Limits
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.verify.replay import digest

MEMBERSHIP = Membership(0, {node: Member(node, f"localhost:{node}") for node in ("A", "B")})
Sql = str | tuple[str, Any]


def request(*statements: Sql, command: str = "c") -> Request:
    texts = [Statement(text) if isinstance(text, str) else Statement(*text) for text in statements]
    return Request(command, tuple(texts))


class TestNode:
    """An engine that commits its requests at once, in its own timeline."""

    __test__ = False

    def __init__(self, path: Path, node: str = "A", **options: Any) -> None:
        self.path, self.node = path, node
        self.engine = Engine.open(path, founding=Founding(node, MEMBERSHIP, f"store-{node}"), **options)
        self.entries: list[Entry] = []
        recovered = self.engine.recover()
        self.head = recovered.heads.get(node, GENESIS)
        self.tick = recovered.applied.get(node, 0)

    def digest(self) -> str:
        """Return the digest of the tables as of the last flush; nodes that have applied the same have equal digests."""
        with closing(self.engine.background.open_reader()) as reader:
            return digest(reader)

    def prepare(self, *statements: Sql) -> Prepared:
        return self.engine.execute(request(*statements))

    def entry(self, prepared: Prepared, *, shared: bool = False) -> Entry:
        """Return a request as the next entry of the node's timeline; shared: with the commands that joined."""
        self.tick += 1
        transaction = Transaction(
            Txid(self.tick, self.node),
            prepared.base,
            0,
            prepared.schema,
            0,
            f"{self.node}{self.tick}",
            "serializable",
            prepared.kind,
            prepared.access_set,
            prepared.changes,
            prepared.result,
            joined=prepared.joined if shared else (),
            shares=prepared.shares if shared else (),
            users=prepared.users if shared else (),
        )
        entry = Entry(self.node, self.tick, {self.node: self.tick}, transaction, None, self.head)
        self.head = entry.hash
        return entry

    def run(self, *statements: Sql) -> list[Result]:
        """Execute, and apply if it wrote."""
        prepared = self.prepare(*statements)
        if not prepared.readonly:
            entry = self.entry(prepared)
            self.apply(entry)
            self.entries.append(entry)
        return decode_results(prepared.result)

    def rows(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        return self.run((sql, params))[0].rows

    def apply(self, entry: Entry, *, repeat: bool = False) -> None:
        self.engine.apply(entry, repeat=repeat, applied_ms=0)

    def save(self) -> None:
        self.engine.flush()
        self.engine.sync()

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every user table, with rowids, as the open batch has them."""
        return contents(self.engine._db)


def ids_like_sqlite(node: TestNode) -> TestNode:
    """Let a node assign ids as SQLite does, the highest of the table plus one, so that tables are equal."""
    ids = node.engine._ids
    begin = ids.begin_statement

    def forgetful() -> None:
        ids._stripes = ids._own = 1
        ids._highest.clear()
        begin()

    ids.begin_statement = forgetful  # type: ignore[method-assign]
    return node


def contents(db: apsw.Connection) -> dict[str, list[tuple[Any, ...]]]:
    listed: list[Any] = db.execute(
        "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
        "AND name NOT LIKE 'bedrockish\\_%' ESCAPE '\\' AND name NOT IN ('sqlite_schema', 'sqlite_master')"
    ).fetchall()
    found: dict[str, list[tuple[Any, ...]]] = {}
    for name, without_rowid in listed:
        columns = "*" if without_rowid else "rowid, *"
        found[name] = sorted(db.execute(f'SELECT {columns} FROM "{name}"').fetchall(), key=repr)
    # SQLite stores a sequence of 0 for a statement that could have inserted and did not; that equals no entry.
    found["sqlite_sequence"] = sorted(row[1:] for row in found.get("sqlite_sequence", []) if row[2] != 0)
    return found


__all__ = ["MEMBERSHIP", "Engine", "Founding", "Limits", "TestNode", "contents", "ids_like_sqlite", "request"]
