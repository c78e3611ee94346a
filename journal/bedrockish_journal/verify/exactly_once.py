"""Checks that each command in a node's journal was applied once, alone or in the transaction of another command.

A private SQLite database has the commands of all bodies, and spills to disk when it is large, so that a journal of
millions of entries can be checked. The table ``bedrockish_joined``, the index of joined commands, is compared with this
database in both directions.
"""

from collections.abc import Iterator
from typing import Any

import apsw

from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.laws import Finding
from bedrockish_journal.storage.row import JournalRow

SHOWN_MAX = 4  # most places that a finding lists for a command that was applied several times
_DDL = """
CREATE TABLE said(command TEXT, seq INTEGER, joined INTEGER, leader TEXT, tick INTEGER, txid TEXT);
CREATE TABLE listed(command, seq);
BEGIN;
"""
_NOT_LISTED = """SELECT command, leader, tick, txid FROM said
  WHERE joined AND (command, seq) IN (
    SELECT command, seq FROM said WHERE joined EXCEPT SELECT command, seq FROM listed)
  GROUP BY command, seq ORDER BY seq, command"""
_NOT_SAID = "SELECT command, seq FROM listed EXCEPT SELECT command, seq FROM said WHERE joined ORDER BY 2, 1"
_TWICE = "SELECT command, count(*) FROM said GROUP BY command HAVING count(*) > 1 ORDER BY min(seq)"
_PLACES = "SELECT leader, tick, txid FROM said WHERE command = ? ORDER BY seq LIMIT ?"


class Commands:
    """The commands in the journal of one node, decoded from the bodies of its entries."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._unreadable: set[int] = set()
        self._db = apsw.Connection("")  # a temporary database, which SQLite spills to disk when it is large
        self._db.execute(_DDL)

    def add(self, row: JournalRow, entry: Entry | None) -> None:
        """Add an entry's commands; ``entry`` is None if it cannot be decoded."""
        if entry is None:
            self._unreadable.add(row.seq)
        elif not row.repeat:
            commands = entry.transaction.commands
            place = (entry.leader, entry.tick, str(entry.txid))
            values = ((command, row.seq, number > 0, *place) for number, command in enumerate(commands))
            self._db.executemany("INSERT INTO said VALUES (?, ?, ?, ?, ?, ?)", values)

    def check(self, db: apsw.Connection) -> Iterator[Finding]:
        """Yield the faults, after all entries of ``db`` were added."""
        yield from self._twice()
        try:
            listed = db.execute("SELECT command, seq FROM bedrockish_joined")
        except apsw.SQLError:  # no such table, which is right if no command joined another
            if (count := self._db.execute("SELECT count(*) FROM said WHERE joined").get) > 0:
                text = f"the table bedrockish_joined is not there, and {count} commands should be in it"
                yield Finding("columns", self._node, text=text)
            return
        self._db.executemany("INSERT INTO listed VALUES (?, ?)", listed)
        for command, leader, tick, txid in self._db.execute(_NOT_LISTED):
            text = f"{leader}{tick} has the command {command!r}, and bedrockish_joined does not say so"
            yield Finding("columns", self._node, leader, tick, txid, text=text)
        for command, seq in self._db.execute(_NOT_SAID):
            if seq not in self._unreadable:
                text = (
                    f"bedrockish_joined has the command {command!r} in row {seq} of the journal, which does not say so"
                )
                yield Finding("columns", self._node, text=text)

    def _twice(self) -> Iterator[Finding]:
        doubled: list[Any] = self._db.execute(_TWICE).fetchall()
        for command, times in doubled:
            found: list[Any] = self._db.execute(_PLACES, (command, SHOWN_MAX)).fetchall()
            (leader, tick, txid), *_ = found
            places = ", ".join(dict.fromkeys(f"{leader}{tick}" for leader, tick, _ in found))
            more = ", …" if times > SHOWN_MAX else ""
            text = f"the command {command!r} was applied {times} times, in {places}{more}"
            yield Finding("command", self._node, leader, tick, txid, text=text)

    def close(self) -> None:
        """Close the private database."""
        self._db.close()
