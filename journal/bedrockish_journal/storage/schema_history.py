"""Schema changes and when each is in force. ``schema_steps`` runs their statements.

A change is committed first and *activated* later, on every node after the same transactions: the tables then have
all transactions with a clock below the activation clock, and no others. So its statements run on the same tables on
every node, and succeed or fail on every node alike. A change that fails leaves the schema as it was, but still counts
as the next version, so that all nodes have the same version numbers.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw

from bedrockish_journal.model.changes import decode_statements
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
_DEFINES = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*+(?:CREATE|ALTER|DROP|ANALYZE|PRAGMA|REINDEX)\b", re.IGNORECASE | re.DOTALL
)
_LATEST = "SELECT activates, state FROM bedrockish_schema ORDER BY version DESC LIMIT 2"  # at most 1 change waits


class SchemaStanding(NamedTuple):
    """The state of a schema change at one node: ``scheduled``, ``active`` or ``failed``, and why it failed."""

    state: str
    failure: str


def create(db: apsw.Connection) -> None:
    """Create the table, if it is not there."""
    db.execute(DDL)


def schedule(db: apsw.Connection, transaction: Transaction, version: int, statements: Sequence[str]) -> None:
    """Record a committed change; ``version`` is the version of the schema after it."""
    clock, leader = transaction.txid
    activates = transaction.activates or clock
    row = (version, clock, leader, activates, SCHEDULED, _text(statements))
    db.execute("INSERT INTO bedrockish_schema VALUES (?, ?, ?, ?, ?, '', ?)", row)


def keep_definitions(db: apsw.Connection, transaction: Transaction) -> None:
    """Drop the statements that write rows from the record of a change whose entry is removed from the journal.

    Their values would stay in the file for ever.
    """
    definitions = [one for one in decode_statements(transaction.changes) if _DEFINES.match(one)]
    query = "UPDATE bedrockish_schema SET statements = ? WHERE clock = ? AND leader = ?"
    db.execute(query, (_text(definitions), *transaction.txid))


def _text(statements: Sequence[str]) -> str:
    return ";\n".join(statement.strip().rstrip(";") for statement in statements)


def settle(db: apsw.Connection, version: int, failure: str) -> None:
    """Record the result of a change's activation; an empty ``failure`` means that it succeeded."""
    state = FAILED if failure else ACTIVE
    db.execute("UPDATE bedrockish_schema SET state = ?, failure = ? WHERE version = ?", (state, failure, version))


def scheduled(db: apsw.Connection) -> Transaction | None:
    """Return the change that waits for its activation, if there is one."""
    row: Any = db.execute("SELECT clock, leader FROM bedrockish_schema WHERE state = ?", (SCHEDULED,)).fetchone()
    return None if row is None else find_txid(db, Txid(*row))[0].transaction


def clocks(db: apsw.Connection) -> tuple[int, int | None]:
    """Return the clocks from which on the present schema and the next one are in force; None if no change is scheduled.

    The first clock is 0 if no change is recorded.
    """
    in_force, following = 0, None
    for activates, state in db.execute(_LATEST):
        if state == SCHEDULED:
            following = int(activates)
        else:
            in_force = max(in_force, int(activates))
    return in_force, following


def standing(db: apsw.Connection, txid: Txid) -> SchemaStanding:
    """Return the state of a schema change; ``active`` for a change that is not recorded."""
    row: Any = db.execute(
        "SELECT state, failure FROM bedrockish_schema WHERE clock = ? AND leader = ?", tuple(txid)
    ).fetchone()
    return SchemaStanding(ACTIVE, "") if row is None else SchemaStanding(*row)


def settled(db: apsw.Connection) -> set[Txid]:
    """Return the changes that were activated, or failed to, in this file; empty for a segment."""
    try:
        rows: list[Any] = db.execute(
            "SELECT clock, leader FROM bedrockish_schema WHERE state <> ?", (SCHEDULED,)
        ).fetchall()
    except apsw.SQLError:  # a segment does not have the table
        return set()
    return {Txid(int(clock), str(leader)) for clock, leader in rows}
