"""The journal in the node's file: its size, its first entry, and the readers that still need entries of it."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import apsw

from bedrockish.core.protocol.health import decode_alarm
from bedrockish.core.protocol.records import FORGOTTEN, Recovered, decode_joining
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.database_file import INCREMENTAL
from bedrockish.errors import DamagedError, forgotten
from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.command_id import time_ms
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.storage import packing, pruning, store
from bedrockish_journal.storage import schema_history as schema

logger = logging.getLogger(__name__)

HOLD = "hold:"
WINDOW_ENTRIES_MAX = 50_000  # settled entries that a start reads at most, which takes a second
WINDOW_BYTES_MAX = 256 << 20  # bytes of settled entries that a start reads at most


@dataclass(frozen=True, slots=True)
class Size:
    """The number, the bytes and the least clock of the journal's entries."""

    entries: int  # number of entries
    bytes: int  # approximate size of all entries
    oldest: int  # the smallest clock; 0 in an empty journal


@dataclass(frozen=True, slots=True)
class FileSpace:
    """The size and the free space of a node's file, in pages."""

    free: int  # number of free pages
    pages: int  # number of all pages, with the free ones
    can_shrink: bool  # whether free pages can be returned to the disk; False in a file that an earlier release made


def _shrink(db: apsw.Connection, pages: int) -> None:
    db.execute(f"PRAGMA incremental_vacuum({pages:d})").fetchall()


class DamagedEntries(dict[str, str]):
    """The entries of the journal that could not be read: the kind of damage, by entry, such as ``A7``."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def note(self, place: str, why: str) -> None:
        """Record a damaged entry, and log it the first time."""
        if place not in self:
            self[place] = why
            logger.error(
                "the entry %s of this node's journal is damaged, and only other nodes can send it: %s; fill this node "
                "again from another node with 'bedrockish member repair URL %s'",
                *(place, why, self._node),
            )


class Journal:
    """The journal of one node.

    Args:
        write: runs an action in the open batch, and again whenever the batch is written again.
        damaged: the record of damaged entries.
    """

    def __init__(self, db: apsw.Connection, write: Callable[..., None], damaged: DamagedEntries) -> None:
        self._db, self._write, self._damaged = db, write, damaged
        row = db.execute("SELECT max(clock) FROM bedrockish_journal WHERE repeat = 0").fetchone()
        self.applied_clock: int = (row[0] if row is not None else None) or 0  # the greatest clock that was applied
        self.horizon = Txid(*pruning.horizon(db))  # the greatest txid that was removed
        self.forgotten_ms = pruning.forgotten_ms(db)  # ids of commands made up to this time may have been deleted
        self._pack_from: dict[str, int] = {}  # by timeline, the tick at which the next pack may begin
        self._absent = ""  # the command looked up last, if it was not found and no entry was appended since

    def recover(self, applied: Vector, heads: Mapping[str, bytes], batches: int, window_ms: int) -> Recovered:
        """Return the state with which the core starts, read from the file.

        Args:
            applied: the last applied tick of each timeline.
            heads: the hash of the last applied entry of each timeline.
            batches: how many batches were committed in the life of the file.
            window_ms: the window begins at the settled clock minus these milliseconds. Of its settled entries, only the
                newest are read, up to ``WINDOW_ENTRIES_MAX`` and ``WINDOW_BYTES_MAX``. The window reads its entries
                only while the caller iterates over it.
        """
        db = self._db
        safe = int(system.get_meta(db, "safe") or 0)
        settled = max(safe, int(system.get_meta(db, "settled") or 0))
        joining = system.get_meta(db, "joining")
        begin = store.clock_before(db, WINDOW_ENTRIES_MAX, WINDOW_BYTES_MAX)
        return Recovered(
            node=system.get_meta(db, "node"),
            store=system.get_meta(db, "store"),
            membership=read_membership(system.get_meta(db, "membership")),
            applied=applied,
            heads=heads,
            window=self._window(settled, max(0, moved(settled, -window_ms), min(settled, begin))),
            votes=tuple(system.votes(db)),
            ceiling=int(system.get_meta(db, "clock_ceiling") or 0),
            cut=int(system.get_meta(db, "cut") or 0),
            batches=batches,
            safe=safe,
            joining=decode_joining(joining) if joining else None,
            removed=self.removed,
            holds=self.holds,
            schema=system.get_meta(db, "schema_version"),
            scheduled=schema.scheduled(db),
            pieces=system.pieces(db),
            named=system.named(db),
            lost=system.get_meta(db, "lost") or "",
            alarms={name: decode_alarm(kept) for name, kept in system.alarms(db).items()},
            blocked=frozenset(system.blocked(db)),
            settled=settled,
        )

    def _window(self, settled: int, clock: int) -> Iterator[Entry]:
        """Yield the entries above a clock; record settled entries that are damaged, and skip them."""
        for row in store.tail_stored(self._db, clock):
            try:
                yield row.entry()
            except EntryMalformedError as error:
                place = f"{row.leader}{row.tick}"
                if row.clock > settled:
                    raise DamagedError(
                        f"the entry {place} of the journal is damaged, and so new that the node cannot begin without "
                        f"it: {error}; run 'bedrockish member replace URL NODE NEW' at another node, and then "
                        "'bedrockish join URL' for the node NEW on an empty file"
                    ) from error
                self._damaged.note(place, str(error))

    def conflicts(self, access_set: AccessSet, base: Vector, upto: Vector) -> bool | None:
        """Return whether an access set conflicts with an entry up to ``upto`` whose transaction is not in a base.

        None: unknown, because an entry is missing or damaged, or because the base may contain the transaction as an
        entry that was removed from the journal.
        """
        for leader, last in upto.items():
            tick = base.get(leader, 0)
            entries = store.scan_timeline(self._db, leader, tick + 1)
            try:
                for entry in islice(entries, last - tick):
                    if entry.tick != tick + 1:
                        return None
                    tick += 1
                    if conflict(access_set, entry.transaction.access_set) is not None and not any(
                        base.get(other, 0) >= place for other, place in store.find_places(self._db, entry.txid)
                    ):
                        # The base may contain the transaction as another entry, which was removed from the journal.
                        return None if entry.txid <= self.horizon else True
            except EntryMalformedError:
                return None
            finally:
                entries.close()  # an open cursor would keep the batch from being rolled back
            if tick < last:
                return None
        return False

    @property
    def removed(self) -> dict[str, int]:
        """The last removed tick of each timeline."""
        return {leader: mark.tick for leader, mark in pruning.marks(self._db).items()}

    @property
    def size(self) -> Size:
        """The present number, bytes and least clock of the journal's entries."""
        return Size(*pruning.size(self._db))

    def aged(self, clock: int) -> int:
        """Return a clock up to which all entries may be removed as too old; see ``pruning.aged``."""
        return pruning.aged(self._db, clock)

    def clock_at(self, fraction: float) -> int:
        """Return the clock up to which about this fraction of the journal's transactions lies."""
        return pruning.clock_at(self._db, fraction)

    def plan(self, clock: int, held: Mapping[str, int] | None) -> dict[str, int]:
        """Return the last tick of each timeline that can be removed; see ``pruning.plan``."""
        waiting = schema.scheduled(self._db)
        if waiting is not None:
            clock = min(clock, waiting.txid.clock - 1)  # keep a scheduled change: its statements have yet to run
        return pruning.plan(self._db, clock, held)

    def remove(self, upto: Mapping[str, int], most: int, most_bytes: int) -> None:
        """Remove the first entries in the open batch: at most ``most``, with about ``most_bytes`` of bodies at most."""
        self._write(pruning.remove, self._db, dict(upto), most, most_bytes)
        self.horizon = Txid(*pruning.horizon(self._db))

    def next_run(self, clock: int) -> packing.PackRun | None:
        """Return the next entries to pack, up to a clock; see ``packing.next_run``. ``pack`` has to follow.

        The last entry of a timeline is not packed.
        """
        upto = {leader: tick - 1 for leader, tick in store.applied(self._db).items()}
        return packing.next_run(self._db, upto, clock, self._pack_from)

    def pack(self, pack: packing.Pack) -> None:
        """Replace the bytes of entries by their pack, in the open batch."""
        self._write(packing.write, self._db, pack)

    @property
    def room(self) -> FileSpace:
        """The free and all pages of the file."""
        free, pages = (int(self._db.pragma(name)) for name in ("freelist_count", "page_count"))
        return FileSpace(free, pages, can_shrink=self._db.pragma("auto_vacuum") == INCREMENTAL)

    def shrink(self, pages: int) -> None:
        """Give ``pages`` free pages back to the disk, by moving pages from the file's end into them, in the open batch.

        The file becomes shorter when a checkpoint has copied the batch.
        """
        self._write(_shrink, self._db, pages)

    def forget_commands(self, unix_ms: int, most: int) -> int:
        """Delete ids of removed commands, if the ids were made up to a time, in the open batch; return how many."""
        old = pruning.old_commands(self._db, unix_ms, most)
        if old:
            self._absent = ""
            self._write(pruning.forget_commands, self._db, old)
            self.forgotten_ms = pruning.forgotten_ms(self._db)
        return len(old)

    def note_clock(self, clock: int) -> None:
        """Record the clock of an entry that is about to be appended, and drop the cached absence of a command."""
        self._absent = ""
        self.applied_clock = max(self.applied_clock, clock)

    def command_txid(self, command: str) -> Txid | None:
        """Return the transaction of a command, even a removed one, or None; ``FORGOTTEN`` if its id is too old."""
        if command == self._absent:
            return None
        found = store.command_txid(self._db, command)
        if found is None and self.forgotten_ms:
            made = time_ms(command)
            found = FORGOTTEN if made is not None and made <= self.forgotten_ms else None
        if found is None:
            self._absent = command  # cached: the same id is looked up at execution and when the transaction begins
        return found

    def has(self, txid: Txid) -> bool:
        """Return whether a transaction was applied here and not removed since."""
        return bool(self.places(txid))

    def places(self, txid: Txid) -> list[tuple[str, int]]:
        """Return a transaction's places that are in this node's journal, in the order in which they were applied."""
        return store.find_places(self._db, txid)

    def find_command(self, command: str) -> Entry | None:
        """Return the entry of a command, which may share it with other commands; None if the command did not happen.

        Raises:
            ForgottenError: the entry was removed, or the command's id is too old to tell.
        """
        found = self.command_txid(command)
        if found is None:
            return None
        entry = store.find_command(self._db, command)
        if entry is None:
            raise forgotten(command, None if found == FORGOTTEN else found)
        return entry

    def removed_command(self, command: str) -> tuple[str | None, bytes] | None:
        """Return the user and the digest of a command whose entry was removed; see ``store.removed_command``."""
        return store.removed_command(self._db, command)

    def save_hold(self, name: str, times: int, clock: int) -> None:
        """Save the clock from which on a reader of the feed needs the journal, in the open batch."""
        self._write(system.set_meta, self._db, HOLD + name, f"{times}:{clock}")

    @property
    def holds(self) -> dict[str, tuple[int, int]]:
        """For each reader, how often it has started over, and the first clock that it needs in the journal."""
        found: dict[str, tuple[int, int]] = {}
        kept: dict[str, Any] = system.meta_under(self._db, HOLD)
        for name, value in kept.items():
            times, _, clock = str(value).partition(":")
            found[name.removeprefix(HOLD)] = int(times), int(clock)
        return found
