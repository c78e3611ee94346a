"""The file of one node, and a program that knows its format and may write to it."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import cbor2

from bedrockish_journal.model.transaction import MEMBERS

CLOCK_IN_BODY, AFTER, SAFE, SCHEMA_SEEN, CONFIG, COMMAND, ISOLATION = 1, 3, 4, 5, 6, 7, 8  # places in a body
ROLLBACKS = 13
ACCESS_SET, CHANGES, RESULT = 10, 11, 12
ACTIVATES, JOINED, SHARES, USERS = 14, 15, 16, 17
TICK, CLOCK, QUORUM, ADOPTED = 2, 3, 5, 6  # places in a label
MIDDLE = 8  # a tick of A's, somewhere in the middle


@dataclass
class Row:
    """An entry in a file, decoded."""

    seq: int
    leader: str
    tick: int
    clock: int
    repeat: int
    label: list[Any]
    body: list[Any]
    prev: bytes
    hash: bytes


class Forger:
    """The file of one node, with write access for an attacker."""

    def __init__(self, path: Path) -> None:
        self.node = path.stem
        self.db = sqlite3.connect(path)
        for index in ("place", "command", "txid"):
            self.db.execute(f"DROP INDEX IF EXISTS bedrockish_journal_{index}")

    def rows(self, leader: str | None = None) -> list[Row]:
        found = self.db.execute(
            "SELECT seq, leader, tick, clock, repeat, label, body, prev, hash FROM bedrockish_journal "
            "ORDER BY leader, tick"
        )
        parts = [(*row[:5], row[5:7], row[7:]) for row in found]
        every = [Row(*place, *map(cbor2.loads, packed), *ends) for *place, packed, ends in parts]
        return [row for row in every if leader in (None, row.leader)]

    def row(self, leader: str, tick: int) -> Row:
        return next(row for row in self.rows(leader) if row.tick == tick)

    def write(self, row: Row, **columns: Any) -> None:
        """Put an entry back, and hash all of its timeline again."""
        self.put(row, **columns)
        self.hash_again(row.leader)

    def put(self, row: Row, **columns: Any) -> None:
        columns = {"label": cbor2.dumps(row.label), "body": cbor2.dumps(row.body), **columns}
        names = ", ".join(f"{name} = ?" for name in columns)
        self.run(f"UPDATE bedrockish_journal SET {names} WHERE seq = ?", *columns.values(), row.seq)

    def hash_again(self, leader: str) -> None:
        query = "SELECT seq, label, body, prev FROM bedrockish_journal WHERE leader = ? ORDER BY tick"
        head: bytes | None = None
        for seq, label, body, prev in self.db.execute(query, (leader,)).fetchall():
            before = prev if head is None else head
            head = sha256(before + label + body).digest()
            self.db.execute("UPDATE bedrockish_journal SET prev = ?, hash = ? WHERE seq = ?", (before, head, seq))

    def run(self, sql: str, *values: Any) -> None:
        assert self.db.execute(sql, values).rowcount != 0, "the tampering changes nothing"

    def founding(self, change: Callable[[dict[str, list[Any]]], None]) -> None:
        (said,) = self.db.execute("SELECT value FROM bedrockish_meta WHERE key = 'bootstrap'").fetchone()
        version, members, *rest = cbor2.loads(said)
        change(members)
        self.run("UPDATE bedrockish_meta SET value = ? WHERE key = 'bootstrap'", cbor2.dumps([version, members, *rest]))

    def of_kind(self, kind: str) -> Row:
        return next(row for row in self.rows() if row.body[9] == kind)

    def membership(self, change: Callable[[list[Any]], None]) -> None:
        """Change a field of the last membership change."""
        row = [row for row in self.rows() if row.body[9] == MEMBERS][-1]
        said = cbor2.loads(row.body[CHANGES])
        change(said)
        row.body[CHANGES] = cbor2.dumps(said)
        self.write(row)

    def joined(self) -> Row:
        return next(row for row in self.rows("A") if len(row.body) > JOINED and not row.repeat and row.body[JOINED])
