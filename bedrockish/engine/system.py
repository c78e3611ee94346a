"""The engine's own tables in the node's file: what the node has promised, and what it knows of itself.

The journal, the third system table, belongs to ``journal.store``.
"""

from typing import Any

import apsw

from bedrockish.core.records import Vote
from bedrockish.errors import DamagedError
from journal.transaction import Txid, decode_transaction

FORMAT = 1

DDL = """
CREATE TABLE bedrockish_meta(
  key TEXT PRIMARY KEY,  -- node, store, format, membership, schema_version, batches, clock_ceiling, cut, safe,
                         -- bootstrap; began_with: how many objects there were before; joining, while a new node
                         -- catches up; seen:NODE: what is known of that node's file; starts: of processes on this
                         -- one; lost: what it was found to lack
  value
) WITHOUT ROWID;
CREATE TABLE bedrockish_vote(
  clock INTEGER NOT NULL,    -- txid = (clock, leader)
  leader TEXT NOT NULL,
  held INTEGER NOT NULL,     -- 1: approved, or held for a recovery
  promised INTEGER NOT NULL, -- highest ballot promised
  accepted_ballot INTEGER,   -- highest ballot accepted, and whether it was to commit
  accepted_commit INTEGER,
  body BLOB,                 -- the transaction; NULL if only its rollback was seen
  PRIMARY KEY(clock, leader)
) WITHOUT ROWID;
"""


def exists(db: apsw.Connection) -> bool:
    """Whether the file has the system tables."""
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'bedrockish_meta'").fetchone() is not None


def create(db: apsw.Connection) -> None:
    """Create the tables in a file that has none."""
    db.execute(DDL).fetchall()


def get_meta(db: apsw.Connection, key: str) -> Any:
    """Return a value kept under a name, or None."""
    row = db.execute("SELECT value FROM bedrockish_meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def set_meta(db: apsw.Connection, key: str, value: Any) -> None:
    """Keep a value under a name."""
    db.execute("INSERT OR REPLACE INTO bedrockish_meta(key, value) VALUES (?, ?)", (key, value))


def meta_under(db: apsw.Connection, prefix: str) -> dict[str, Any]:
    """Return the values kept under all names that begin so."""
    query = "SELECT key, value FROM bedrockish_meta WHERE substr(key, 1, length(?1)) = ?1"
    return dict(db.execute(query, (prefix,)))


def save_vote(db: apsw.Connection, vote: Vote) -> None:
    """Keep a vote, instead of the one on the same transaction."""
    ballot, commit = vote.accepted or (None, None)
    body = None if vote.transaction is None else vote.transaction.body
    db.execute(
        "INSERT OR REPLACE INTO bedrockish_vote VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*vote.txid, int(vote.held), vote.promised, ballot, commit, body),
    )


def drop_vote(db: apsw.Connection, txid: Txid) -> None:
    """Forget a vote; nothing happens if there is none."""
    db.execute("DELETE FROM bedrockish_vote WHERE clock = ? AND leader = ?", tuple(txid))


def votes(db: apsw.Connection) -> list[Vote]:
    """Return every vote on record, by clock.

    Raises:
        DamagedError: a vote names another transaction than it holds.
    """
    found = []
    query = (
        "SELECT clock, leader, held, promised, accepted_ballot, accepted_commit, body FROM bedrockish_vote "
        "ORDER BY clock, leader"
    )
    for clock, leader, held, promised, ballot, commit, body in db.execute(query):
        txid = Txid(clock, leader)
        transaction = None if body is None else decode_transaction(body)
        if transaction is not None and transaction.txid != txid:
            raise DamagedError(f"the vote on {txid} holds {transaction.txid}; fill this node again from another one")
        accepted = None if ballot is None else (ballot, bool(commit))
        found.append(Vote(txid, transaction, bool(held), promised, accepted))
    return found
