"""Schema changes: when each is in force. How its statements are run then is told in ``steps``.

A change is committed first and *activated* later, on every node at the same cut of transactions: all with a smaller
clock than its own activation clock are in the tables then, and none with a greater one. So its statements have the same
tables before them everywhere, and succeed, or fail, everywhere alike. One that fails leaves the schema as it was, and
yet makes the next version, or nodes would count differently.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw

from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.storage.store import find_txid

SCHEDULED, ACTIVE, FAILED = "scheduled", "active", "failed"

DDL = """
CREATE TABLE IF NOT EXISTS bedrockish_schema(
  version INTEGER PRIMARY KEY,  -- the version that it makes: 1, 2, ...
  clock INTEGER NOT NULL,       -- the transaction that decided it, by clock and leader
  leader TEXT NOT NULL,
  activates INTEGER NOT NULL,   -- the clock from which on it is in force, until that of the next version
  state TEXT NOT NULL,          -- scheduled | active | failed
  failure TEXT NOT NULL,        -- why the data forbade it; empty if nothing did
  statements TEXT NOT NULL
)
"""
_LATEST = "SELECT activates, state FROM bedrockish_schema ORDER BY version DESC LIMIT 2"  # one at most is scheduled


class Standing(NamedTuple):
    """The state of a schema change at one node: ``scheduled``, ``active`` or ``failed``, and why it failed."""

    state: str
    failure: str


def create(db: apsw.Connection) -> None:
    """Create the table, in a file of an earlier version too."""
    db.execute(DDL)


def schedule(db: apsw.Connection, transaction: Transaction, version: int, statements: Sequence[str]) -> None:
    """Note a change that was committed; ``version`` is what it makes of the schema."""
    clock, leader = transaction.txid
    activates = transaction.activates or clock
    text = ";\n".join(statement.strip().rstrip(";") for statement in statements)
    db.execute(
        "INSERT INTO bedrockish_schema VALUES (?, ?, ?, ?, ?, '', ?)",
        (version, clock, leader, activates, SCHEDULED, text),
    )


def settle(db: apsw.Connection, version: int, failure: str) -> None:
    """Note how the activation of a change went."""
    state = FAILED if failure else ACTIVE
    db.execute("UPDATE bedrockish_schema SET state = ?, failure = ? WHERE version = ?", (state, failure, version))


def scheduled(db: apsw.Connection) -> Transaction | None:
    """Return the change that waits for its activation, if there is one."""
    row: Any = db.execute("SELECT clock, leader FROM bedrockish_schema WHERE state = ?", (SCHEDULED,)).fetchone()
    return None if row is None else find_txid(db, Txid(*row))[0].transaction


def clocks(db: apsw.Connection) -> tuple[int, int | None]:
    """Return from which clocks on the schema is in force, and the next one will be, if a change is scheduled.

    The first is 0 if nothing is on record.
    """
    in_force, following = 0, None
    for activates, state in db.execute(_LATEST):
        if state == SCHEDULED:
            following = int(activates)
        else:
            in_force = max(in_force, int(activates))
    return in_force, following


def standing(db: apsw.Connection, txid: Txid) -> Standing:
    """Return what became of a change of the schema; of one that is not on record, that it is in force."""
    row: Any = db.execute(
        "SELECT state, failure FROM bedrockish_schema WHERE clock = ? AND leader = ?", tuple(txid)
    ).fetchone()
    return Standing(ACTIVE, "") if row is None else Standing(*row)


def settled(db: apsw.Connection) -> set[Txid]:
    """Return the changes whose activation this file has been through; none if it knows of no such thing."""
    try:
        rows: list[Any] = db.execute(
            "SELECT clock, leader FROM bedrockish_schema WHERE state <> ?", (SCHEDULED,)
        ).fetchall()
    except apsw.SQLError:  # a file that an earlier version wrote and no later one has opened
        return set()
    return {Txid(int(clock), str(leader)) for clock, leader in rows}
