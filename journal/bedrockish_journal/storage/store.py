"""The journal as tables of a SQLite file that also has the user's tables, so that both change in one transaction.

All functions use an ``apsw.Connection`` of the caller, and never begin or commit a transaction, so the changes of an
entry and its journal row are committed together. Only one process appends; any process may read (``open_readonly``).

The columns leader, tick, clock, origin, command and kind repeat fields of label and body for searches. The bytes of
label and body are authoritative, and ``bedrockish_journal.verify.verify`` compares the columns with them.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import apsw

from bedrockish_journal.model.clock import CLOCK_LIMIT
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import (
    EntryMalformedError,
    FileMissingError,
    FileUnreadableError,
    NoJournalError,
    NotDatabaseError,
)
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.storage.packing import DDL as PACKED_DDL
from bedrockish_journal.storage.packing import ENTRIES_MAX, PACK_BYTES, unpack_on
from bedrockish_journal.storage.row import COLUMNS, JournalRow, hashed_entry
from bedrockish_journal.storage.vector_modules import ModuleConnection, roll_back

DDL = """
CREATE TABLE bedrockish_journal(
  seq INTEGER PRIMARY KEY,            -- order in which this node applied it
  leader TEXT NOT NULL,               -- whose timeline it stands in
  tick INTEGER NOT NULL,              -- its place there: 1, 2, 3, ...
  clock INTEGER NOT NULL,             -- txid = (clock, origin): the transaction's name while it was voted on
  origin TEXT NOT NULL,
  command TEXT NOT NULL,              -- the client's id of the command
  kind TEXT NOT NULL,                 -- rows | schema | members
  repeat INTEGER NOT NULL DEFAULT 0,  -- 1: a second label of a txid already applied; changed no data
  applied_ms INTEGER NOT NULL,        -- this node's wall clock when it applied it; not hashed
  label BLOB NOT NULL,                -- canonical bytes: leader, tick, txid, quorum, adopted_from
  body BLOB NOT NULL,                 -- canonical bytes of the transaction
  prev BLOB NOT NULL,                 -- hash of the entry before it in its timeline
  hash BLOB NOT NULL                  -- sha256(prev || label || body)
);
CREATE UNIQUE INDEX bedrockish_journal_place ON bedrockish_journal(leader, tick);
CREATE UNIQUE INDEX bedrockish_journal_command ON bedrockish_journal(command) WHERE repeat = 0;
CREATE UNIQUE INDEX bedrockish_journal_txid ON bedrockish_journal(clock, origin) WHERE repeat = 0;
CREATE INDEX bedrockish_journal_repeat ON bedrockish_journal(clock, origin) WHERE repeat = 1;
"""
PRUNED_DDL = """
CREATE TABLE IF NOT EXISTS bedrockish_pruned(
  leader TEXT PRIMARY KEY,            -- a timeline whose beginning was removed (see bedrockish_journal.storage.pruning)
  tick INTEGER NOT NULL,              -- the last tick that was removed
  hash BLOB NOT NULL,                 -- the hash of that entry: the prev of the first one that is left
  clock INTEGER NOT NULL,             -- the greatest (clock, origin) that was removed
  origin TEXT NOT NULL
) WITHOUT ROWID;
"""
JOINED_DDL = """
CREATE TABLE IF NOT EXISTS bedrockish_joined(
  command TEXT PRIMARY KEY,           -- a command that was executed in the transaction of another one
  seq INTEGER NOT NULL                -- the journal's row of that transaction
) WITHOUT ROWID;
"""

PAST_DDL = """
CREATE TABLE IF NOT EXISTS bedrockish_past(
  command TEXT PRIMARY KEY,           -- a command whose entry was removed from the journal
  clock INTEGER NOT NULL,             -- what it had become: (clock, origin)
  origin TEXT NOT NULL,
  owner TEXT,                         -- the user whose command it was; NULL: none was required, or it is not known
  digest BLOB NOT NULL DEFAULT x''    -- of the request that it was; empty if it is not known
) WITHOUT ROWID;
"""
_PAST_LATER = (("owner", "TEXT"), ("digest", "BLOB NOT NULL DEFAULT x''"))  # columns that older files lack

BUSY_MS = 5_000  # timeout of a reader while another reader recovers the write-ahead log

_APPEND = """INSERT INTO main.bedrockish_journal(
  leader, tick, clock, origin, command, kind, repeat, applied_ms, label, body, prev, hash)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

# One index seek per leader, from each leader to the next greater one, instead of a scan of all entries.
LEADERS = """WITH RECURSIVE leaders(leader) AS (
    SELECT min(leader) FROM bedrockish_journal
    UNION ALL
    SELECT (SELECT min(later.leader) FROM bedrockish_journal AS later WHERE later.leader > leaders.leader)
      FROM leaders WHERE leaders.leader IS NOT NULL)"""
_HEADS = f"""{LEADERS}
  SELECT leader, tick, hash FROM leaders CROSS JOIN bedrockish_journal USING (leader)
    WHERE tick = (SELECT max(last.tick) FROM bedrockish_journal AS last WHERE last.leader = leaders.leader)"""
_APPLIED = _HEADS.replace("SELECT leader, tick, hash", "SELECT leader, tick")

_BYTES = "prev, label, body, hash"
_READ = f"SELECT tick, {_BYTES} FROM bedrockish_journal WHERE leader = ? AND tick >= ? ORDER BY tick"
# A packed entry is not unpacked for its size: it counts as its share of a full pack.
_TAKEN = f"CASE WHEN label <> x'' THEN length(label) + length(body) ELSE {PACK_BYTES // ENTRIES_MAX} END"
_SIZE = f"""SELECT count(*), sum(taken) FROM (
  SELECT {_TAKEN} AS taken
  FROM main.bedrockish_journal WHERE leader = ? AND tick >= ? ORDER BY tick LIMIT ?)"""
_COMMAND = f"""SELECT {_BYTES} FROM bedrockish_journal WHERE command = ?1 AND repeat = 0
  UNION ALL SELECT {_BYTES} FROM bedrockish_journal
    WHERE seq = (SELECT seq FROM bedrockish_joined WHERE command = ?1)"""
_COMMAND_TXID = """SELECT clock, origin FROM bedrockish_journal WHERE command = ?1 AND repeat = 0
  UNION ALL SELECT clock, origin FROM bedrockish_journal
    WHERE seq = (SELECT seq FROM bedrockish_joined WHERE command = ?1)
  UNION ALL SELECT clock, origin FROM bedrockish_past WHERE command = ?1"""
_REMOVED_COMMAND = "SELECT owner, digest FROM bedrockish_past WHERE command = ?"
_JOIN = "INSERT INTO bedrockish_joined(command, seq) VALUES (?, ?)"
# With the constants repeat = 0 and repeat = 1, SQLite can use the two partial indexes.
_TXID = f"""SELECT {_BYTES} FROM bedrockish_journal WHERE seq IN (
    SELECT seq FROM bedrockish_journal WHERE clock = ?1 AND origin = ?2 AND repeat = 0
    UNION ALL SELECT seq FROM bedrockish_journal WHERE clock = ?1 AND origin = ?2 AND repeat = 1) ORDER BY seq"""
_PLACES = _TXID.replace(_BYTES, "leader, tick")
_TAIL = f"""SELECT {COLUMNS} FROM bedrockish_journal WHERE seq IN (
    SELECT seq FROM bedrockish_journal WHERE clock > ?1 AND repeat = 0
    UNION ALL SELECT seq FROM bedrockish_journal WHERE clock > ?1 AND repeat = 1) ORDER BY seq"""
_NEWEST = f"SELECT clock, {_TAKEN} FROM main.bedrockish_journal WHERE repeat = 0 ORDER BY clock DESC"


def create(db: apsw.Connection) -> None:
    """Create the journal's table and indexes in a file that has none."""
    for _ in db.execute(DDL + PRUNED_DDL + JOINED_DDL + PAST_DDL + PACKED_DDL):
        raise AssertionError("DDL returns no rows")


def complete(db: apsw.Connection) -> None:
    """Create the tables and columns that the journal of an earlier version lacks."""
    db.execute(PRUNED_DDL + JOINED_DDL + PAST_DDL + PACKED_DDL).fetchall()
    known = {name for _, name, *_ in db.execute("PRAGMA table_info(bedrockish_past)")}
    for name, kind in _PAST_LATER:
        if name not in known:
            db.execute(f"ALTER TABLE bedrockish_past ADD COLUMN {name} {kind}")


def append(db: apsw.Connection, entry: Entry, *, repeat: bool, applied_ms: int) -> None:
    """Insert one entry, inside the caller's transaction.

    Args:
        entry: the next entry of its timeline, as the caller has checked.
        repeat: whether the transaction is in the journal already, under another label.
        applied_ms: the node's wall clock, in milliseconds since 1970.

    Raises:
        EntryMalformedError: the entry's clock is not below 2**63, SQLite's limit of integers.
    """
    transaction = entry.transaction
    clock, origin = transaction.txid
    if clock >= CLOCK_LIMIT:
        raise EntryMalformedError(
            f"{entry.leader}{entry.tick} has the clock {clock}; a journal holds clocks below 2^63"
        )
    db.execute(
        _APPEND,
        (
            entry.leader,
            entry.tick,
            clock,
            origin,
            transaction.command,
            transaction.kind,
            1 if repeat else 0,
            applied_ms,
            entry.label,
            transaction.body,
            entry.prev,
            entry.hash,
        ),
    )
    if transaction.joined and not repeat:
        seq = db.last_insert_rowid()
        db.executemany(_JOIN, [(command, seq) for command, _ in transaction.joined]).fetchall()


def read(db: apsw.Connection, leader: str, first_tick: int, limit_bytes: int) -> list[Entry]:
    """Return entries of one timeline with consecutive ticks from ``first_tick`` on; empty if ``first_tick`` is missing.

    The entries end before a damaged one.

    Args:
        limit_bytes: stop before the labels and bodies exceed this; the first entry is returned whatever its size.

    Raises:
        EntryMalformedError: the first entry is damaged.
    """
    entries: list[Entry] = []
    size = 0
    rows = db.execute(_READ, (leader, first_tick))
    try:
        for tick, prev, label, body, digest in rows:
            size += len(label) + len(body)
            if tick != first_tick + len(entries) or (entries and size > limit_bytes):
                break
            entries.append(hashed_entry(prev, label, body, digest))
    except EntryMalformedError:
        if not entries:
            raise
    finally:
        rows.close()  # an open cursor would keep the caller's transaction from being rolled back
    return entries


def size(db: apsw.Connection, leader: str, first_tick: int, most: int) -> tuple[int, int]:
    """Return the number (at most ``most``) and the bytes of a timeline's entries from a tick on; no entry is read."""
    [(count, taken)] = db.execute(_SIZE, (leader, first_tick, most))
    return count, taken or 0


def heads(db: apsw.Connection) -> dict[str, tuple[int, bytes]]:
    """Return every timeline's last tick and its entry's hash. The cost grows with the leaders, not with the entries."""
    return {leader: (tick, digest) for leader, tick, digest in db.execute(_HEADS)}


def applied(db: apsw.Connection) -> dict[str, int]:
    """Return the last tick of every timeline in this journal, as a vector."""
    return dict(db.execute(_APPLIED))


def find_command(db: apsw.Connection, command: str) -> Entry | None:
    """Return the entry of the transaction that executed a client's command, or None."""
    row = db.execute(_COMMAND, (command,)).fetchone()
    return None if row is None else hashed_entry(*row)


def command_txid(db: apsw.Connection, command: str) -> Txid | None:
    """Return the txid of the transaction that executed a client's command, or None; removed entries count, too."""
    row = db.execute(_COMMAND_TXID, (command,)).fetchone()
    return None if row is None else Txid(*row)


def removed_command(db: apsw.Connection, command: str) -> tuple[str | None, bytes] | None:
    """Return the user of a command whose entry was removed, and the digest of its request; None for any other command.

    The user is None if unknown, or if no user was required. The digest is empty if unknown.
    """
    found: tuple[str | None, bytes] | None = db.execute(_REMOVED_COMMAND, (command,)).fetchone()
    return found


def find_places(db: apsw.Connection, txid: Txid) -> list[tuple[str, int]]:
    """Return the places of a transaction in the order in which they were applied. Its body is not read."""
    return [(leader, tick) for leader, tick in db.execute(_PLACES, tuple(txid))]


def find_txid(db: apsw.Connection, txid: Txid) -> list[Entry]:
    """Return the entries of a transaction, one for each label, in the order in which this node applied them."""
    return [hashed_entry(*row) for row in db.execute(_TXID, tuple(txid))]


def tail_stored(db: apsw.Connection, clock: int) -> Iterator[JournalRow]:
    """Yield the rows of the entries whose transaction's clock is above ``clock``, in the order applied.

    The connection's read transaction stays open until the iterator is exhausted or closed.
    """
    for row in db.execute(_TAIL, (clock,)):
        yield JournalRow._make(row)


def clock_before(db: apsw.Connection, entries: int, size: int) -> int:
    """Return a clock above which the journal has about ``entries`` entries or ``size`` bytes; 0 if it has fewer."""
    rows = db.execute(_NEWEST)
    try:
        for count, (clock, taken) in enumerate(rows):
            size -= taken
            if count >= entries or size < 0:
                return int(clock)
        return 0
    finally:
        rows.close()  # an open cursor would keep the caller's transaction from being rolled back


def scan(db: apsw.Connection) -> Iterator[Entry]:
    """Yield every entry in the order applied. See ``tail_stored`` for the open read."""
    for row in db.execute(f"SELECT {_BYTES} FROM bedrockish_journal ORDER BY seq"):
        yield hashed_entry(*row)


def scan_timeline(db: apsw.Connection, leader: str, first_tick: int = 1) -> Generator[Entry]:
    """Yield the entries of one timeline by tick. See ``tail_stored`` for the open read."""
    for _, *row in db.execute(_READ, (leader, first_tick)):
        yield hashed_entry(*row)


def scan_stored(db: apsw.Connection) -> Iterator[JournalRow]:
    """Yield every row in the order applied, undecoded and unchecked. See ``tail_stored`` for the open read."""
    for row in db.execute(f"SELECT {COLUMNS} FROM bedrockish_journal ORDER BY seq"):
        yield JournalRow._make(row)


def read_meta(db: apsw.Connection, key: str) -> Any:
    """Return a value of ``bedrockish_meta``; None if it is not there, as in a journal that no node has written."""
    try:
        row = db.execute("SELECT value FROM bedrockish_meta WHERE key = ?", (key,)).fetchone()
    except apsw.SQLError:
        return None
    return None if row is None else row[0]


def open_database(path: str | os.PathLike[str]) -> apsw.Connection:
    """Return a connection that reads any SQLite file, even one that a running node writes or a killed node left.

    Nothing is written into the database, except that a transaction is rolled back that a killed process has left
    unfinished (see ``roll_back``); SQLite may create a ``-shm`` file next to it.

    Raises:
        FileMissingError: the file does not exist.
        NotDatabaseError: the file is not a SQLite database.
        FileUnreadableError: the file cannot be read.
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        if name.startswith("bedrockish:/"):  # a Path keeps one of the two slashes
            raise FileMissingError(name, "a file is needed, and not a URL; 'bedrockish audit' reads running nodes")
        raise FileMissingError(name, f"{name}: no such file; give the path of a node's database file")
    if not os.path.isfile(name):
        raise FileUnreadableError(name, f"{name} is not a file; give the path of the database file itself")
    if not os.access(name, os.R_OK):
        raise FileUnreadableError(name, f"{name} may not be read by this user; change to the user that runs the node")
    if os.path.getsize(name) == 0:
        raise NotDatabaseError(name, f"{name} is empty; no node has finished creating it yet")
    # SQLite needs a -shm file to read a database in WAL mode, and cannot create one in a read-only directory. Without a
    # log in the directory, no program writes the database, and it is opened as immutable. SQLite then ignores a
    # rollback journal, so the directory must not have one.
    writable = os.access(os.path.dirname(os.path.abspath(name)), os.W_OK)
    at_rest = not writable and not any(os.path.exists(name + log) for log in ("-wal", "-journal"))
    uri = f"file:{quote(os.path.abspath(name))}?mode=ro" + ("&immutable=1" if at_rest else "")
    try:
        try:
            return _opened(uri)
        except apsw.ReadOnlyError as error:
            if not roll_back(name, error):
                raise
        return _opened(uri)
    except apsw.Error as error:
        if isinstance(error, apsw.NotADBError | apsw.CorruptError):
            raise NotDatabaseError(
                name, f"{name} is not a SQLite database ({error}); restore it from a backup or fill the node again"
            ) from error
        raise FileUnreadableError(
            name,
            f"{name} cannot be read ({error}); copy it with -wal and -journal to your own directory and read the copy",
        ) from error


def _opened(uri: str) -> apsw.Connection:
    db = ModuleConnection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        db.set_busy_timeout(BUSY_MS)
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except apsw.Error:
        db.close()
        raise
    return db


def open_readonly(path: str | os.PathLike[str]) -> apsw.Connection:
    """Return a connection that reads the journal of a node's file; see ``open_database``.

    Raises:
        JournalFileError: one of its subclasses, with the reason and what to do.
    """
    db = open_database(path)
    journal = "SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = 'bedrockish_journal'"
    if db.execute(journal).fetchone() is None:
        db.close()
        name = os.fspath(path)
        raise NoJournalError(name, f"{name} is a database without a journal; give the file of a bedrockish node")
    unpack_on(db)
    return db


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[apsw.Connection]:
    """Open the journal of a node's file by ``open_readonly``, and close it with its unfinished queries at the end."""
    db = open_readonly(path)
    try:
        yield db
    finally:
        db.close(True)
