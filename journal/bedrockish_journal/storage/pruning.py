"""Removal of the beginning of a journal: a mark replaces it, from which the remaining entries can be verified.

Only a prefix of a timeline is ever removed, and never its last entry. For each timeline the table
``bedrockish_pruned`` keeps the tick and the hash of the last removed entry, which the next entry continues. It also
keeps the greatest removed (clock, origin), so that a feed knows whether it has missed anything. The ids of removed
commands are moved to ``bedrockish_past``, so that no node runs such a command again. Removed memberships are kept as
well, because later quorums are counted by them.

All functions use a connection of the caller, and never begin or commit a transaction.
"""

from collections.abc import Mapping
from typing import Any

import apsw
import cbor2

from bedrockish_journal.model.clock import pack
from bedrockish_journal.model.command_id import time_ms
from bedrockish_journal.model.entry import decode_entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import MEMBERS, SCHEMA, Transaction
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.storage import file_claims, packing
from bedrockish_journal.storage.file_claims import PrunedBeginning, has, removed_memberships
from bedrockish_journal.storage.schema_history import keep_definitions
from bedrockish_journal.storage.store import applied, read_meta

MEMBERS_KEY = "pruned_members"
FORGOTTEN_KEY = "commands_forgotten_ms"
TABLE = "bedrockish_pruned"
REAL_TIME = pack(1_577_836_800_000)  # 2020: a smaller clock is from a node that did not know the time


def marks(db: apsw.Connection) -> dict[str, PrunedBeginning]:
    """Return the marks of all timelines of which entries were removed; empty for a file of an earlier version.

    Raises:
        EntryMalformedError: the marks are malformed.
    """
    found = file_claims.marks(db.execute)
    changed = removed_memberships(read_meta(db, MEMBERS_KEY)) if found else {}
    return {mark.leader: mark._replace(changed=tuple(changed.get(mark.leader, ()))) for mark in found}


def horizon(db: apsw.Connection) -> tuple[int, str]:
    """Return the greatest (clock, origin) that was removed; (0, "") if nothing was."""
    if not has(db.execute, TABLE):
        return 0, ""
    row = db.execute(f"SELECT clock, origin FROM {TABLE} ORDER BY clock DESC, origin DESC LIMIT 1").fetchone()
    return (0, "") if row is None else (row[0], row[1])


# The first entry that must stay: its clock or its tick is beyond the bounds, or it is the last one of its timeline.
_FIRST_KEPT = """SELECT min(tick) FROM bedrockish_journal WHERE leader = ?1 AND (clock > ?2 OR tick > ?3 OR tick = (
  SELECT max(tick) FROM bedrockish_journal WHERE leader = ?1))"""


def plan(db: apsw.Connection, clock: int, held: Vector | None = None) -> dict[str, int]:
    """Return the last tick that can be removed, for each timeline of which an entry can be removed.

    Args:
        clock: no transaction with a later clock is removed.
        held: no tick above this vector is removed; a timeline that the vector lacks keeps all entries. None for no
            limit.
    """
    found = {}
    for leader, (first, _) in _spans(db).items():
        most = (1 << 62) if held is None else held.get(leader, 0)
        row = db.execute(_FIRST_KEPT, (leader, clock, most)).fetchone()
        if row is not None and row[0] > first:
            found[leader] = row[0] - 1
    return found


def _spans(db: apsw.Connection) -> dict[str, tuple[int, int]]:
    """Return the first and the last tick of each timeline. The cost does not grow with the number of entries."""
    query = "SELECT min(tick) FROM bedrockish_journal WHERE leader = ?"
    return {leader: (db.execute(query, (leader,)).get, last) for leader, last in applied(db).items()}


def _count(db: apsw.Connection) -> int:
    """Return the number of entries: a timeline has all ticks from its first to its last one."""
    return sum(last - first + 1 for first, last in _spans(db).values())


def remove(db: apsw.Connection, upto: Mapping[str, int], most: int = 1 << 62, most_bytes: int = 1 << 62) -> int:
    """Remove the beginning of timelines, and set their marks; return the number of removed entries.

    Args:
        db: the node's connection, inside the caller's transaction.
        upto: the last tick to remove of each timeline, as ``plan`` returned it.
        most_bytes: the bytes of bodies after which to stop; at least one entry is removed.
    """
    removed = 0
    for leader, tick in sorted(upto.items()):
        if removed >= most or most_bytes <= 0:
            break
        row = db.execute("SELECT min(tick) FROM bedrockish_journal WHERE leader = ?", (leader,)).fetchone()
        first = row[0] if row is not None and row[0] is not None else tick + 1
        wanted, most_bytes = _within(db, leader, first, min(tick, first + most - removed - 1), most_bytes)
        last = packing.cuttable(db, leader, wanted, tick)
        if last >= first:
            removed += last - first + 1
            _remove(db, leader, last)
    return removed


def _within(db: apsw.Connection, leader: str, first: int, last: int, most_bytes: int) -> tuple[int, int]:
    """Return the last tick, at least ``first``, up to which the bodies fit into ``most_bytes``; and the remaining
    bytes.

    Each body is decoded when it is removed. Packed bodies are short, and count as 0 bytes.
    """
    sizes = "SELECT tick, length(body) FROM main.bedrockish_journal WHERE leader = ? AND tick BETWEEN ? AND ?"
    for tick, size in db.execute(f"{sizes} ORDER BY tick", (leader, first, last)):
        if size > most_bytes and tick > first:
            return tick - 1, 0
        most_bytes = max(0, most_bytes - size)
    return last, most_bytes


def _remove(db: apsw.Connection, leader: str, upto: int) -> None:
    where = "FROM bedrockish_journal WHERE leader = ? AND tick <= ?"
    members: list[Any] = db.execute(
        f"SELECT tick, prev, label, body {where} AND kind = ?", (leader, upto, MEMBERS)
    ).fetchall()
    if members:
        changed = removed_memberships(read_meta(db, MEMBERS_KEY))
        kept = changed.setdefault(leader, [])
        kept += [(tick, decode_entry(prev, label, body).transaction.changes) for tick, prev, label, body in members]
        db.execute(
            "INSERT INTO bedrockish_meta VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
            (MEMBERS_KEY, cbor2.dumps(changed)),
        )
    last = db.execute("SELECT hash FROM bedrockish_journal WHERE leader = ? AND tick = ?", (leader, upto)).get
    db.execute(
        f"""INSERT INTO {TABLE}(leader, tick, hash, clock, origin)
            SELECT leader, ?2, ?3, clock, origin
              FROM bedrockish_journal WHERE leader = ?1 AND tick <= ?2 ORDER BY clock DESC, origin DESC LIMIT 1
            ON CONFLICT(leader) DO UPDATE SET tick = excluded.tick, hash = excluded.hash,
              clock = max(clock, excluded.clock),
              origin = CASE WHEN (excluded.clock, excluded.origin) > (clock, origin) THEN excluded.origin
                ELSE origin END""",
        (leader, upto, last),
    )
    # The feed places a schema change at its activation clock, which is later than the clock of its transaction.
    changes: list[Any] = db.execute(f"SELECT prev, label, body {where} AND kind = ?", (leader, upto, SCHEMA)).fetchall()
    for row in changes:
        transaction = decode_entry(*row).transaction
        later = (transaction.activates, transaction.txid.leader)
        query = f"UPDATE {TABLE} SET clock = ?1, origin = ?2 WHERE leader = ?3 AND (clock, origin) < (?1, ?2)"
        db.execute(query, (*later, leader))
        keep_definitions(db, transaction)
    is_damaged = False
    # The entries are never all in memory.
    for seq, *row in db.execute(f"SELECT seq, prev, label, body {where} AND repeat = 0", (leader, upto)):
        try:
            transaction = decode_entry(*row).transaction
        except EntryMalformedError:
            is_damaged = True  # its pack, for example; the statements below keep the command ids
        else:
            _keep_commands(db, transaction)
            joined = [(command, seq) for command, _ in transaction.joined]
            db.executemany("DELETE FROM bedrockish_joined WHERE command = ? AND seq = ?", joined)
    keep = "INSERT OR IGNORE INTO bedrockish_past(command, clock, origin) SELECT"
    db.execute(f"{keep} command, clock, origin {where} AND repeat = 0", (leader, upto))
    if is_damaged:  # the table has no index by ``seq``, so both statements read all of it
        further = "further.command, clock, origin FROM bedrockish_joined AS further CROSS JOIN bedrockish_journal"
        db.execute(f"{keep} {further} USING (seq) WHERE leader = ? AND tick <= ?", (leader, upto))
        db.execute(f"DELETE FROM bedrockish_joined WHERE seq IN (SELECT seq {where} AND repeat = 0)", (leader, upto))
    db.execute("DELETE FROM main.bedrockish_journal WHERE leader = ? AND tick <= ?", (leader, upto))
    packing.cut(db, leader, upto)


def _keep_commands(db: apsw.Connection, transaction: Transaction) -> None:
    """Remember the commands of a removed transaction with users and digests, so that no node runs one again."""
    count = len(transaction.commands)
    users, digests = transaction.users or count * ("",), transaction.digests or count * (b"",)
    each = zip(transaction.commands, users, digests, strict=True)
    rows = [(command, *transaction.txid, user or None, digest) for command, user, digest in each]
    db.executemany(
        "INSERT OR IGNORE INTO bedrockish_past(command, clock, origin, owner, digest) VALUES (?,?,?,?,?)", rows
    )


def forgotten_ms(db: apsw.Connection) -> int:
    """Return the Unix time in milliseconds up to which ids of removed commands may have been forgotten."""
    kept = read_meta(db, FORGOTTEN_KEY)
    return kept if isinstance(kept, int) else 0


# An id that contains its time begins with it, so the oldest ids are found in the order of the primary key. The pattern
# must match the same ids as ``time_ms``: other ids are never deleted, and would fill the LIMIT for ever.
_HEX = "[0-9a-f]"
_TIMED = (
    12 * _HEX + "7" + 3 * _HEX + "[89ab]" + 15 * _HEX,
    f"{8 * _HEX}-{4 * _HEX}-7{3 * _HEX}-[89ab]{3 * _HEX}-{12 * _HEX}",
)
_OLD = f"""SELECT command FROM bedrockish_past
  WHERE command < ?1 AND (command GLOB '{_TIMED[0]}' OR command GLOB '{_TIMED[1]}') ORDER BY command LIMIT ?2"""


def old_commands(db: apsw.Connection, unix_ms: int, most: int) -> dict[str, int]:
    """Return ids of removed commands that were made up to a Unix time, each with its time in milliseconds.

    Ids that do not contain a time are left out.
    """
    found: dict[str, int] = {}
    for (command,) in db.execute(_OLD, (f"{max(0, unix_ms) + 1:012x}", most)):
        ms = time_ms(command)
        assert ms is not None, command
        if ms <= unix_ms:
            found[command] = ms
    return found


def forget_commands(db: apsw.Connection, commands: Mapping[str, int]) -> None:
    """Delete ids that ``old_commands`` returned, and store the latest of their times for ``forgotten_ms``.

    The connection is inside the caller's transaction.
    """
    upto = max(forgotten_ms(db), *commands.values())
    db.execute("INSERT OR REPLACE INTO bedrockish_meta VALUES (?, ?)", (FORGOTTEN_KEY, upto))
    db.executemany("DELETE FROM bedrockish_past WHERE command = ?", [(command,) for command in commands])


def size(db: apsw.Connection) -> tuple[int, int, int]:
    """Return (number of entries, bytes, smallest clock) of the journal.

    The bytes are an estimate: the average size of some hundred entries spread over the journal, times the number of
    entries, plus the packs. The estimate is good enough for decisions, and quick in a journal of any size.
    """
    entries = _count(db)
    if not entries:
        return 0, 0, 0
    first, last = (db.execute(f"SELECT {end}(seq) FROM bedrockish_journal").get for end in ("min", "max"))
    oldest = db.execute("SELECT min(clock) FROM bedrockish_journal WHERE repeat = 0").fetchone()
    size = round(_bytes_each(db, first, last) * entries) + packing.packed_bytes(db)
    return entries, size, oldest[0] if oldest and oldest[0] is not None else 0


def _bytes_each(db: apsw.Connection, first: int, last: int) -> float:
    """Return the estimated mean size of an entry of the table, from some hundred entries spread over the table."""
    step = max(1, (last - first) // 128)
    sampled = db.execute(
        """WITH RECURSIVE place(seq) AS (SELECT ?1 UNION ALL SELECT seq + ?3 FROM place WHERE seq + ?3 <= ?2)
           SELECT count(*), coalesce(sum(length(label) + length(body) + length(command) + 220), 0)
             FROM place JOIN main.bedrockish_journal USING (seq)""",
        (first, last, step),
    ).fetchone()
    assert sampled is not None
    return float(sampled[1] / sampled[0]) if sampled[0] else 0.0


def aged(db: apsw.Connection, clock: int) -> int:
    """Return ``clock``, up to which entries may be removed as too old, or 0 if no entry is known to be that old.

    Nodes of a new cluster that do not know the time yet commit with clocks of 1970. The age of these commits is
    unknown, so they are removed together with the oldest commit whose clock has the real time.
    """
    query = "SELECT min(clock) FROM bedrockish_journal WHERE repeat = 0 AND clock >= ?"
    first = db.execute(query, (REAL_TIME,)).get
    return 0 if first is None or clock < first else clock


def clock_at(db: apsw.Connection, fraction: float) -> int:
    """Return a clock so that about this fraction of the transactions have a clock up to it."""
    repeats = db.execute("SELECT count(*) FROM bedrockish_journal WHERE repeat = 1").get
    place = int((_count(db) - repeats) * min(1.0, max(0.0, fraction)))
    if place < 1:
        return 0
    query = "SELECT clock FROM bedrockish_journal WHERE repeat = 0 ORDER BY clock, origin LIMIT 1 OFFSET ?"
    found = db.execute(query, (place - 1,)).fetchone()
    return 0 if found is None else found[0]
