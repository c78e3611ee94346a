"""The engine's own tables in the node's file: the votes and their pieces, and the node's metadata.

The journal, another system table, belongs to ``bedrockish_journal.storage.store``.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import apsw
import cbor2

from bedrockish.core.protocol.records import Vote
from bedrockish.errors import DamagedError
from bedrockish_journal.model.transaction import Txid, decode_transaction, parse_txid

if TYPE_CHECKING:  # not imported at run time, because programs that only open a file need no votes
    from bedrockish.core.protocol.pieces import Part

FORMAT = 1
ALARM, BLOCKED, VOID = "alarm:", "blocked:", "void:"
PLUGIN_NAMES = "plugin_names"  # the key of the names, as JSON, that plugins registered at the node's last start

DDL = """
CREATE TABLE bedrockish_meta(
  key TEXT PRIMARY KEY,  -- node, store, format, membership, schema_version, batches, clock_ceiling, cut, safe,
                         -- bootstrap; began_with: number of objects before the file became a node's; joining: set
                         -- while a new node catches up; seen:NODE: the last known state of that node's file;
                         -- starts: the node's processes on this file; lost: why the node never votes again;
                         -- alarm:NAME: a fault of the file; blocked:TXID: a decided transaction that does not fit
                         -- the tables; void:TXID: one whose changes are skipped by an operator's order
  value
) WITHOUT ROWID;
CREATE TABLE bedrockish_vote(
  clock INTEGER NOT NULL,    -- txid = (clock, leader)
  leader TEXT NOT NULL,
  held INTEGER NOT NULL,     -- 1: approved, or held for a recovery
  promised INTEGER NOT NULL, -- highest ballot promised
  accepted_ballot INTEGER,   -- highest ballot accepted, and whether it was to commit
  accepted_commit INTEGER,
  body BLOB,                 -- the transaction; NULL if only its rollback was seen. A CBOR map: {0: its parts}, each of
                             -- which is bytes or [sha256, size] of a piece
  PRIMARY KEY(clock, leader)
) WITHOUT ROWID;
CREATE TABLE bedrockish_piece(
  digest BLOB PRIMARY KEY,   -- sha256 of the data
  data BLOB NOT NULL         -- a part of a transaction that a vote names, or that is about to be begun
);
"""
_IN_PARTS = 0xA1  # the first byte of a CBOR map of one key; a transaction's body is an array

# An upsert and not REPLACE, which would first delete the row, and so affect the rows that refer to it.
_SAVE_VOTE = """INSERT INTO bedrockish_vote VALUES (?, ?, ?, ?, ?, ?, ?)
  ON CONFLICT(clock, leader) DO UPDATE SET held = excluded.held, promised = excluded.promised,
    accepted_ballot = excluded.accepted_ballot, accepted_commit = excluded.accepted_commit, body = excluded.body"""


def exists(db: apsw.Connection) -> bool:
    """Return whether the file has the system tables."""
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'bedrockish_meta'").fetchone() is not None


def create(db: apsw.Connection) -> None:
    """Create the tables in a file that has none."""
    db.execute(DDL).fetchall()


def get_meta(db: apsw.Connection, key: str) -> Any:
    """Return the value under a key of ``bedrockish_meta``, or None."""
    row = db.execute("SELECT value FROM bedrockish_meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def set_meta(db: apsw.Connection, key: str, value: Any) -> None:
    """Write a value under a key of ``bedrockish_meta``."""
    db.execute(
        "INSERT INTO bedrockish_meta(key, value) VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def meta_under(db: apsw.Connection, prefix: str) -> dict[str, Any]:
    """Return the values under all keys that begin with a prefix, by key."""
    query = "SELECT key, value FROM bedrockish_meta WHERE substr(key, 1, length(?1)) = ?1"
    return dict(db.execute(query, (prefix,)))


def alarms(db: apsw.Connection) -> dict[str, bytes]:
    """Return the stored alarms by name, as ``health.encode_alarm`` encoded them."""
    return {name.removeprefix(ALARM): bytes(kept) for name, kept in meta_under(db, ALARM).items() if kept is not None}


def blocked(db: apsw.Connection) -> list[Txid]:
    """Return the decided transactions that do not fit the tables, and wait for an operator's decision."""
    return _txids(db, BLOCKED)


def void(db: apsw.Connection) -> list[Txid]:
    """Return the transactions whose changes this node skips by an operator's order."""
    return _txids(db, VOID)


def follow_resolutions(db: apsw.Connection, resolved: Iterable[Txid]) -> set[Txid]:
    """Mark the transactions whose changes the membership orders to skip; return those that were not marked yet.

    The operator's order reaches only members that answer. The other members follow the membership.
    """
    missed = {txid for txid in resolved if get_meta(db, f"{VOID}{txid}") is None}
    for txid in missed:
        set_meta(db, f"{VOID}{txid}", 1)
    return missed


def _txids(db: apsw.Connection, prefix: str) -> list[Txid]:
    return [parse_txid(name.removeprefix(prefix)) for name, kept in meta_under(db, prefix).items() if kept is not None]


def save_vote(db: apsw.Connection, vote: Vote, parts: "tuple[Part, ...] | None") -> None:
    """Save a vote, replacing an earlier one on its transaction; ``parts``, if given, are saved in place of the body."""
    ballot, commit = vote.accepted or (None, None)
    body = None if vote.transaction is None else vote.transaction.body
    if parts is not None:
        body = cbor2.dumps({0: parts})
    db.execute(_SAVE_VOTE, (*vote.txid, int(vote.held), vote.promised, ballot, commit, body))


def drop_vote(db: apsw.Connection, txid: Txid) -> None:
    """Delete a vote, if there is one."""
    db.execute("DELETE FROM bedrockish_vote WHERE clock = ? AND leader = ?", tuple(txid))


def votes(db: apsw.Connection) -> list[Vote]:
    """Return every stored vote, in the order of the clocks.

    Raises:
        DamagedError: a vote has the body of another transaction, or a piece of its body is missing.
    """
    found = []
    query = (
        "SELECT clock, leader, held, promised, accepted_ballot, accepted_commit, body FROM bedrockish_vote "
        "ORDER BY clock, leader"
    )
    for clock, leader, held, promised, ballot, commit, body in db.execute(query):
        txid = Txid(clock, leader)
        if body is not None and body[0] == _IN_PARTS:
            body = assemble(db, parts_of(body))
        transaction = None if body is None else decode_transaction(body)
        if transaction is not None and transaction.txid != txid:
            raise DamagedError(f"the vote on {txid} holds {transaction.txid}; fill this node again from another node")
        accepted = None if ballot is None else (ballot, bool(commit))
        found.append(Vote(txid, transaction, bool(held), promised, accepted))
    return found


def save_piece(db: apsw.Connection, digest: bytes, data: bytes) -> None:
    """Save a piece under its digest."""
    db.execute("INSERT OR REPLACE INTO bedrockish_piece(digest, data) VALUES (?, ?)", (digest, data))


def drop_pieces(db: apsw.Connection, digests: Iterable[bytes]) -> None:
    """Delete pieces; missing ones are ignored."""
    db.executemany("DELETE FROM bedrockish_piece WHERE digest = ?", [(digest,) for digest in digests]).fetchall()


def pieces(db: apsw.Connection) -> dict[bytes, int]:
    """Return the stored pieces: sha256 -> size."""
    return dict(db.execute("SELECT digest, length(data) FROM bedrockish_piece"))


def named(db: apsw.Connection) -> dict[Txid, tuple[bytes, ...]]:
    """Return the digests of the pieces that each stored vote refers to."""
    query = "SELECT clock, leader, body FROM bedrockish_vote WHERE substr(body, 1, 1) = ?"
    rows = db.execute(query, (bytes([_IN_PARTS]),))
    stored = ((Txid(clock, leader), parts_of(body)) for clock, leader, body in rows)
    return {txid: tuple(part[0] for part in parts if isinstance(part, tuple)) for txid, parts in stored}


def parts_of(packed: bytes) -> "tuple[Part, ...]":
    """Return the parts of a transaction's body from their stored form."""
    return tuple(part if isinstance(part, bytes) else (part[0], part[1]) for part in cbor2.loads(packed)[0])


def assemble(db: apsw.Connection, parts: "Iterable[Part]") -> bytes:
    """Return a transaction's body, joined from its parts; the data of the parts that are pieces is read from the file.

    Raises:
        DamagedError: a piece is missing.
    """
    found: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            found.append(part)
            continue
        row = db.execute("SELECT data FROM bedrockish_piece WHERE digest = ?", (part[0],)).fetchone()
        if row is None or len(row[0]) != part[1]:
            raise DamagedError(f"the file lacks the piece {part[0].hex()}; fill this node again from another node")
        found.append(row[0])
    return b"".join(found)
