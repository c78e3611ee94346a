"""The journal in the node's file: its size, its first entry, and the readers that still need entries of it."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import apsw

from bedrockish.core.protocol.health import decode_alarm
from bedrockish.core.protocol.records import FORGOTTEN, Recovered, decode_joining, decode_membership
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.database_file import INCREMENTAL
from bedrockish.errors import DamagedError, forgotten
from bedrockish_journal.model.access_set import AccessSet, conflict
from bedrockish_journal.model.clock import moved
from bedrockish_journal.model.command_id import time_ms
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.model.vector import Vector
from bedrockish_journal.storage import packing, pruning, store
from bedrockish_journal.storage import schema_history as schema

logger = logging.getLogger(__name__)

HOLD = "hold:"
WINDOW_ENTRIES_MAX = 50_000  # settled entries that a start reads: a second
WINDOW_BYTES_MAX = 256 << 20  # and how many bytes of them


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the journal.

    Attributes:
        entries: number of entries.
        bytes: their approximate size.
        oldest: the smallest clock; 0 in an empty journal.
    """

    entries: int
    bytes: int
    oldest: int


@dataclass(frozen=True, slots=True)
class Room:
    """The node's file.

    Attributes:
        free: how many pages are free.
        pages: how many pages it has.
        can_shrink: whether free pages can be given back to the disk; False in a file that an earlier release made.
    """

    free: int
    pages: int
    can_shrink: bool


def _shrink(db: apsw.Connection, pages: int) -> None:
    db.execute(f"PRAGMA incremental_vacuum({pages:d})").fetchall()


class DamagedEntries(dict[str, str]):
    """Entries of the journal that were found damaged when they were read: the kind of damage, by place.

    Args:
        node: the node whose journal it is.
    """

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def note(self, place: str, why: str) -> None:
        """Note one, and tell people of it once."""
        if place not in self:
            self[place] = why
            logger.error(
                "the entry %s of this node's journal is damaged, and others have to give it: %s; fill this node again "
                "from another one with 'bedrockish member repair URL %s'",
                *(place, why, self._node),
            )


class Journal:
    """The journal of one node.

    Args:
        db: the writing connection.
        write: does something in the open batch, in a way that can be done again.
        damaged: where entries are noted that are.
    """

    def __init__(self, db: apsw.Connection, write: Callable[..., None], damaged: DamagedEntries) -> None:
        self._db, self._write, self._damaged = db, write, damaged
        row = db.execute("SELECT max(clock) FROM bedrockish_journal WHERE repeat = 0").fetchone()
        self.applied_clock: int = (row[0] if row is not None else None) or 0  # the greatest clock that was applied
        self.horizon = Txid(*pruning.horizon(db))  # the greatest name that was removed
        self.forgotten_ms = pruning.forgotten_ms(db)  # of commands made up to then, ids may have been forgotten
        self._pack_from: dict[str, int] = {}  # where in each timeline the next pack may begin
        self._not_here = ""  # the command that was looked for last, if it was not found and nothing has come since

    def recover(self, applied: Vector, heads: Mapping[str, bytes], batches: int, window_ms: int) -> Recovered:
        """Return what the file knows.

        Args:
            applied: the last tick applied of each timeline.
            heads: its hash.
            batches: how many batches the file has seen.
            window_ms: how far below what was settled entries are still wanted; the newest of them are read, as many as
                take a moment, while the caller goes through them.
        """
        db = self._db
        safe = int(system.get_meta(db, "safe") or 0)
        settled = max(safe, int(system.get_meta(db, "settled") or 0))
        joining = system.get_meta(db, "joining")
        return Recovered(
            node=system.get_meta(db, "node"),
            store=system.get_meta(db, "store"),
            membership=decode_membership(system.get_meta(db, "membership")),
            applied=applied,
            heads=heads,
            window=self._window(settled, max(0, moved(settled, -window_ms), min(settled, self._begin_of_window()))),
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
        """Yield the entries above a clock; without those that are settled and damaged, which count as dropped.

        Raises:
            DamagedError: one is damaged that may not be settled: the node cannot tell what it has to know of it.
        """
        for row in store.tail_stored(self._db, clock):
            try:
                yield row.entry()
            except EntryMalformedError as error:
                place = f"{row.leader}{row.tick}"
                if row.clock > settled:
                    raise DamagedError(
                        f"the entry {place} of the journal is damaged, and so new that the node cannot begin without "
                        f"it: {error}; run 'bedrockish member replace URL NODE NEW' at the others, and then "
                        "'bedrockish join URL' for the node NEW on an empty file"
                    ) from error
                self._damaged.note(place, str(error))

    def _begin_of_window(self) -> int:
        return store.clock_before(self._db, WINDOW_ENTRIES_MAX, WINDOW_BYTES_MAX)

    def conflicts(self, access_set: AccessSet, base: Vector, upto: Vector) -> bool | None:
        """Return whether an access set conflicts with an entry up to these ticks that a base has under no place.

        None: one of them is not here, or not yet, or damaged; or places of it may have been removed.
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
                        # The base may have another place of it that was removed from the journal.
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
        """The last tick of each timeline that was removed."""
        return {leader: mark.tick for leader, mark in pruning.marks(self._db).items()}

    @property
    def size(self) -> Size:
        """How much there is."""
        return Size(*pruning.size(self._db))

    @property
    def rough_bytes(self) -> int:
        """About how many bytes there are, found without counting the entries."""
        return pruning.rough_bytes(self._db)

    def aged(self, clock: int) -> int:
        """Return a clock up to which all may be removed as too old; see ``pruning.aged``."""
        return pruning.aged(self._db, clock)

    def clock_at(self, fraction: float) -> int:
        """Return a clock at or below which this part of the transactions lies, the oldest ones."""
        return pruning.clock_at(self._db, fraction)

    def plan(self, clock: int, held: Mapping[str, int] | None) -> dict[str, int]:
        """Return up to which ticks the journal can be removed; see ``pruning.plan``."""
        waiting = schema.scheduled(self._db)
        if waiting is not None:
            clock = min(clock, waiting.txid.clock - 1)  # its statements are still to be run
        return pruning.plan(self._db, clock, held)

    def remove(self, upto: Mapping[str, int], most: int, most_bytes: int) -> None:
        """Remove some of the beginning in the open batch, up to so many entries, and bytes of bodies, at a time."""
        self._write(pruning.remove, self._db, dict(upto), most, most_bytes)
        self.horizon = Txid(*pruning.horizon(self._db))

    def next_run(self, clock: int) -> packing.Run | None:
        """Return what can be packed next, of entries up to a clock; see ``packing.next_run``. ``pack`` has to follow.

        The last entry of a timeline stays as it is.
        """
        upto = {leader: tick - 1 for leader, tick in store.applied(self._db).items()}
        return packing.next_run(self._db, upto, clock, self._pack_from)

    def pack(self, pack: packing.Pack) -> None:
        """Put a pack instead of the bytes of its entries, in the open batch."""
        self._write(packing.write, self._db, pack)

    @property
    def room(self) -> Room:
        """How much of the file is free."""
        free, pages = (int(self._db.pragma(name)) for name in ("freelist_count", "page_count"))
        return Room(free, pages, can_shrink=self._db.pragma("auto_vacuum") == INCREMENTAL)

    def shrink(self, pages: int) -> None:
        """Give so many free pages back to the disk in the open batch, by moving those at the file's end into them.

        The file becomes shorter when a checkpoint has copied that.
        """
        self._write(_shrink, self._db, pages)

    def forget_commands(self, unix_ms: int, most: int) -> int:
        """Forget in the open batch, of the ids of removed commands, those that were made up to a time; how many."""
        old = pruning.old_commands(self._db, unix_ms, most)
        if old:
            self._not_here = ""
            self._write(pruning.forget_commands, self._db, old)
            self.forgotten_ms = pruning.forgotten_ms(self._db)
        return len(old)

    def grows(self, clock: int) -> None:
        """Note that an entry with this clock is about to be appended."""
        self._not_here = ""
        self.applied_clock = max(self.applied_clock, clock)

    def command_txid(self, command: str) -> Txid | None:
        """Return what a command became, also if that was removed; ``FORGOTTEN`` if its id is too old to tell."""
        if command == self._not_here:
            return None
        found = store.command_txid(self._db, command)
        if found is None and self.forgotten_ms:
            made = time_ms(command)
            found = FORGOTTEN if made is not None and made <= self.forgotten_ms else None
        if found is None:
            self._not_here = command  # cached: the lookup runs at execution and again at the start
        return found

    def has(self, txid: Txid) -> bool:
        """Return whether a transaction was applied here and not removed since."""
        return bool(self.places(txid))

    def places(self, txid: Txid) -> list[tuple[str, int]]:
        """Return all places of a transaction that were applied here and not removed since."""
        return store.find_places(self._db, txid)

    def find_command(self, command: str) -> Entry | None:
        """Return the entry that a command became, alone or with others; None if it never happened.

        Raises:
            ForgottenError: it was removed, or its id is too old to tell.
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
        """Keep in the open batch from which clock on a reader needs the journal."""
        self._write(system.set_meta, self._db, HOLD + name, f"{times}:{clock}")

    @property
    def holds(self) -> dict[str, tuple[int, int]]:
        """The clock from which on each reader needs the journal, and how often the reader has started over."""
        found: dict[str, tuple[int, int]] = {}
        kept: dict[str, Any] = system.meta_under(self._db, HOLD)
        for name, value in kept.items():
            times, _, clock = str(value).partition(":")
            found[name.removeprefix(HOLD)] = int(times), int(clock)
        return found
