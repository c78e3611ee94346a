"""A segment: a part of a cluster's journal in its own file, to which a continuous backup appends entries.

A segment has the form of a journal in a node's file whose beginning was removed: it has marks where its timelines
begin, the id of its cluster, and the clock up to which it is complete. Every reader of journals can read it.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import ChainBrokenError, TargetUnwritableError
from bedrockish_journal.storage import store
from bedrockish_journal.storage.pruning import TABLE, marks

Heads = dict[str, tuple[int, bytes]]


def ends(db: apsw.Connection) -> Heads:
    """Return the last tick of every timeline and its entry's hash; of some timelines only a mark is left."""
    return {leader: (mark.tick, mark.hash) for leader, mark in marks(db).items()} | store.heads(db)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise TargetUnwritableError(str(path), f"{path} cannot be written: {error}; check the disk") from error


class Segment:
    """A segment that is open for writing, by one process at a time.

    Args:
        path: an existing segment; ``create`` makes a new one.

    Raises:
        TargetUnwritableError: the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _explained(path):
            self._open(path)

    def _open(self, path: Path) -> None:
        self._db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        self._db.set_busy_timeout(store.BUSY_MS)
        self._db.pragma("journal_mode", "wal")  # readers and the writer do not wait for each other
        self._db.pragma("synchronous", "full")
        sync_folder(path.absolute().parent)  # else a power cut brings the rollback journal of the change of mode back
        self.heads = ends(self._db)
        self.safe = int(store.read_meta(self._db, "safe") or 0)
        self.bootstrap = bytes(store.read_meta(self._db, "bootstrap") or b"")

    def append(self, entries: Sequence[Entry], safe: int, voids: Iterable[str], applied_ms: int) -> None:
        """Append entries durably, in one transaction.

        Args:
            entries: the next entries of each timeline, by rising tick.
            safe: the clock up to which the segment has all commits once the entries are in it.
            voids: keys for ``bedrockish_meta``, each for a transaction that an operator had all members skip.
            applied_ms: the Unix time to store with the entries, in milliseconds.

        Raises:
            ChainBrokenError: an entry does not continue the last entry of its timeline in the segment.
            TargetUnwritableError: the file cannot be written.
        """
        found = dict(self.heads)
        with _explained(self.path), self._db:
            for entry in entries:
                tick, head = found.get(entry.leader, (0, bytes(32)))
                if entry.tick != tick + 1 or entry.prev != head:
                    raise ChainBrokenError(entry.leader, entry.tick, head, entry.prev)
                # The second label of a transaction is the one that comes later in this file.
                repeat = bool(store.find_places(self._db, entry.txid))
                store.append(self._db, entry, repeat=repeat, applied_ms=applied_ms)
                found[entry.leader] = entry.tick, entry.hash
            values = [("safe", max(safe, self.safe)), *((key, 1) for key in voids)]
            self._db.executemany("INSERT OR REPLACE INTO bedrockish_meta VALUES (?, ?)", values).fetchall()
        self.heads, self.safe = found, max(safe, self.safe)

    def close(self, *, finish: bool = False) -> None:
        """Close the segment. With ``finish``, also end WAL mode, so that the segment is a single file."""
        if finish:
            self._db.pragma("journal_mode", "delete")
        self._db.close()
        with suppress(FileNotFoundError):  # the folder was removed or renamed, which ``backup follow`` reports
            sync_folder(self.path.absolute().parent)


def create(path: Path, heads: Mapping[str, tuple[int, bytes]], safe: int, bootstrap: bytes) -> Segment:
    """Create a segment that continues other segments or a snapshot, and return it.

    Args:
        path: the new file, which gets this name when it is complete.
        heads: the last tick of each timeline in the files before the segment, and the hash of its entry.
        safe: the clock up to which those files are complete.
        bootstrap: the encoded membership of the founders, which identifies the cluster.

    Raises:
        TargetUnwritableError: the file cannot be written.
    """
    with _explained(path):
        _create(path, heads, safe, bootstrap)
    return Segment(path)


def _create(path: Path, heads: Mapping[str, tuple[int, bytes]], safe: int, bootstrap: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with closing(apsw.Connection(str(part))) as db, db:
        store.create(db)
        db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        db.executemany(
            "INSERT INTO bedrockish_meta VALUES (?, ?)", [("safe", safe), ("bootstrap", bootstrap)]
        ).fetchall()
        db.executemany(
            f"INSERT INTO {TABLE}(leader, tick, hash, clock, origin) VALUES (?, ?, ?, 0, '')",
            [(leader, tick, digest) for leader, (tick, digest) in sorted(heads.items())],
        ).fetchall()
    os.rename(part, path)
    sync_folder(path.absolute().parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, unless its file system syncs no directories."""
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(folder)
