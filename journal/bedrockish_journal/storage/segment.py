"""A segment: a piece of a cluster's journal in a file of its own, which grows at its end, as a continuous backup does.

It is a journal like that in a node's file, of which the beginning was removed: it has marks where it begins, says which
cluster it is of, and up to which clock it is complete. Every reader of journals can read it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import ChainBrokenError, TargetUnwritableError
from bedrockish_journal.storage import store
from bedrockish_journal.storage.pruning import TABLE, marks

Heads = dict[str, tuple[int, bytes]]


def ends(db: apsw.Connection) -> Heads:
    """Return where a journal ends: the last tick of every timeline and its hash, also by a mark alone."""
    return {leader: (mark.tick, mark.hash) for leader, mark in marks(db).items()} | store.heads(db)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise TargetUnwritableError(str(path), f"{path} cannot be written: {error}; check the disk") from error


class Segment:
    """A segment that is open for writing; one process at a time may have it so.

    Args:
        path: an existing one; see ``create``.

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
        self.heads = ends(self._db)
        self.safe = int(self._meta("safe") or 0)
        self.bootstrap = bytes(self._meta("bootstrap") or b"")

    def _meta(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM bedrockish_meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def take(self, entries: Sequence[Entry], safe: int, voids: Iterable[str], applied_ms: int) -> None:
        """Append entries, durably, all or none of them.

        Args:
            entries: those of each timeline by rising tick, from where the segment ends.
            safe: the clock up to which it is complete then.
            voids: the keys by which a node tells what an operator has had applied as nothing.
            applied_ms: Unix time in milliseconds.

        Raises:
            ChainBrokenError: one does not go on from where its timeline ends here.
            TargetUnwritableError: the file cannot be written.
        """
        found = dict(self.heads)
        with _explained(self.path), self._db:
            for entry in entries:
                tick, head = found.get(entry.leader, (0, bytes(32)))
                if entry.tick != tick + 1 or entry.prev != head:
                    raise ChainBrokenError(entry.leader, entry.tick, head, entry.prev)
                # Each reader of labels counts the second one of a transaction by its own order.
                repeat = bool(store.find_places(self._db, entry.txid))
                store.append(self._db, entry, repeat=repeat, applied_ms=applied_ms)
                found[entry.leader] = entry.tick, entry.hash
            values = [("safe", max(safe, self.safe)), *((key, 1) for key in voids)]
            self._db.executemany("INSERT OR REPLACE INTO bedrockish_meta VALUES (?, ?)", values).fetchall()
        self.heads, self.safe = found, max(safe, self.safe)

    def settle(self) -> bool:
        """Checkpoint all entries taken into the one file, so that its bytes can be read before more is taken.

        Return whether that is done; if not, a reader was in the way, and the caller has to try again.

        Raises:
            TargetUnwritableError: the file cannot be written.
        """
        with _explained(self.path):
            try:
                self._db.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                return False
        return True

    def close(self, *, finish: bool = False) -> None:
        """Close it; ``finish``: nothing more comes, so that the segment is one file to copy."""
        if finish:
            self._db.pragma("journal_mode", "delete")
        self._db.close()


def create(path: Path, heads: Mapping[str, tuple[int, bytes]], safe: int, bootstrap: bytes) -> Segment:
    """Make a segment that goes on from where others, or a snapshot, end.

    Args:
        path: where; it is there when it is whole.
        heads: the last tick of each timeline that is elsewhere, and its hash.
        safe: the clock up to which that is complete.
        bootstrap: what tells the cluster.

    Raises:
        TargetUnwritableError: the file cannot be written.
    """
    with _explained(path):
        _create(path, heads, safe, bootstrap)
    return Segment(path)


def _create(path: Path, heads: Mapping[str, tuple[int, bytes]], safe: int, bootstrap: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with suppress(FileNotFoundError):
        part.unlink()
    db = apsw.Connection(str(part))
    try:
        with db:
            store.create(db)
            db.execute("CREATE TABLE bedrockish_meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID")
            db.executemany(
                "INSERT INTO bedrockish_meta VALUES (?, ?)", [("safe", safe), ("bootstrap", bootstrap)]
            ).fetchall()
            db.executemany(
                f"INSERT INTO {TABLE}(leader, tick, hash, clock, origin) VALUES (?, ?, ?, 0, '')",
                [(leader, tick, digest) for leader, (tick, digest) in sorted(heads.items())],
            ).fetchall()
    finally:
        db.close()
    os.rename(part, path)
