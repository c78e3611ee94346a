"""The database of one node: what a request would do, what is decided done, and all of it durable.

One connection writes, and it is always inside a transaction, the *batch*. Requests run in it and are taken back;
entries and votes are written in it; ``flush`` commits it and begins the next, and ``sync`` makes it durable. Nothing
may leave the node before the batch that it rests on is durable.

SQLite sometimes rolls back a whole transaction because of one statement. The batch is then done again from the list of
what was asked for since the last commit, so that nobody's request can take away what others decided.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from bedrockish.core.records import Prepared, Recovered, Vote, decode_membership
from bedrockish.engine import system, together
from bedrockish.engine.apply import RowApplier
from bedrockish.engine.autoid import AutoIds
from bedrockish.engine.capture import Capture
from bedrockish.engine.changes import give_functions
from bedrockish.engine.clocks import Holder, Scope
from bedrockish.engine.durability import Wal, copy_file
from bedrockish.engine.execute import Executor
from bedrockish.engine.explain import explain
from bedrockish.engine.failures import broken
from bedrockish.engine.guard import Guard
from bedrockish.engine.journal import Journal
from bedrockish.engine.limits import Limits
from bedrockish.engine.mixed import execute
from bedrockish.engine.opening import FileLock, Founding, Prepare, connect
from bedrockish.engine.overlay import Moment, salt_of
from bedrockish.engine.parts import Beside, Parts
from bedrockish.engine.tables import Tables
from bedrockish.engine.versions import Versions
from bedrockish.errors import ConfigError, DamagedError
from bedrockish.requests import Request, Statement
from journal import store
from journal.changes import decode_changes
from journal.entry import GENESIS, Entry
from journal.transaction import MEMBERS, ROWS, SCHEMA, Txid

__all__ = ["Engine", "Founding", "Limits"]

T = TypeVar("T")
WINDOW = 120_000 << 22  # clock units (milliseconds and 22 bits): twice the conflict window


class Engine:
    """A node's file. Used from one thread, except ``sync``, ``checkpoint`` and ``snapshot_to``.

    Attributes:
        applied: the last tick applied of each timeline, in step with ``apply``.
        versions: the schema, as it is in force and as it is decided.
        batches: how many batches were committed in the life of the file.
        bootstrap: the membership that the cluster was founded with, encoded.
        scope: what the clock's functions give on the writing connection; whoever drives the engine gives it a clock.
        journal: how much of it there is, and who needs it.
    """

    def __init__(
        self, db: apsw.Connection, lock: FileLock, limits: Limits, prepare: Prepare, *, full_sync: bool
    ) -> None:
        self._db, self._lock, self._limits, self._prepare = db, lock, limits, prepare
        self._file = db.filename  # kept, because helper threads must not touch the connection
        self._capture = Capture(db, limits.changes_bytes)
        self._guard = Guard(db)
        self._ids = AutoIds()
        self._ids.register(db)
        self.scope = Scope()
        give_functions(db, Holder(self.scope))
        self._executor = Executor(db, self._guard, self._capture, limits, self._ids)
        self._applier = RowApplier(db)
        self._wal = Wal(db, full_sync=full_sync)
        self._batch: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._closed = False
        self.journal = Journal(db, self._write)
        self._leave: Callable[[], None] = lambda: None
        self.versions = Versions(db, self._write, self._applier.loud, self._learn_schema)
        self.batches: int = system.get_meta(db, "batches")
        self.bootstrap: bytes = system.get_meta(db, "bootstrap")
        heads = store.heads(db)
        self.applied: dict[str, int] = {leader: tick for leader, (tick, _) in heads.items()}
        self._heads: dict[str, bytes] = {leader: digest for leader, (_, digest) in heads.items()}
        self._learn_schema()
        self._learn_members()
        self._ids.note_votes(system.votes(db))
        db.execute("BEGIN IMMEDIATE")
        self._data_version = db.pragma("data_version")

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        founding: Founding | None,
        full_sync: bool = False,
        limits: Limits | None = None,
        prepare: Prepare = lambda _db: None,
    ) -> "Engine":
        """Open a node's file, and create it if it is new.

        Args:
            path: the database file. Its directory must be writable and local.
            founding: what a new file begins with; an old one must agree. None: the file must be a node's already.
            full_sync: let SQLite sync at each commit instead of once per batch.
            limits: what a request may cost.
            prepare: gives every connection the functions and collations that SQLite does not have.

        Raises:
            ConfigError: the file cannot be used; the text says why and what to do.
            DamagedError: what it holds is not what a node's file must hold.
        """
        place = Path(path).resolve()
        if place.is_dir() or not place.parent.is_dir():
            what = "is a directory" if place.is_dir() else "is in a directory that does not exist"
            raise ConfigError(f"{place} {what}; give the path of a file")
        if founding is None and not place.exists():
            raise ConfigError(f"{place}: no such file; start the node with its name and members to create it")
        limits = limits or Limits()
        lock = FileLock(place)
        try:
            db = connect(place, founding, limits, prepare, full_sync=full_sync)
            try:
                return cls(db, lock, limits, prepare, full_sync=full_sync)
            except BaseException:
                db.close()
                raise
        except BaseException:
            lock.close()
            raise

    def recover(self, window: int = WINDOW) -> Recovered:
        """Return what the file knows.

        Args:
            window: how far below the last safe time entries are still wanted, in units of the clock.
        """
        return self.journal.recover(dict(self.applied), dict(self._heads), self.batches, window)

    def execute(self, request: Request, budget_s: float = float("inf"), clock: int = 0) -> Prepared:
        """Run a request on the database as it is now, and take it back: nothing of it remains.

        ``clock`` is what ``transaction_clock()`` gives in it, later than all that was applied; 0: nothing yet.

        Raises:
            ClockNeededError: it calls that, and ``clock`` is 0.
            TakesLongError: it has run for ``budget_s`` and is not done.
            SqlError: SQLite does not accept a statement or a value.
            ConstraintError: the data forbids it.
            UnsupportedError: it cannot be replicated.
            TooLargeError: it is over a limit of size or time.
            DamagedError: the file failed; the node must stop.
        """
        base, version = dict(self.applied), self.schema_version
        self.scope.begin(request.command, clock)
        prepared = self._take_back(lambda: execute(self._executor, request, base, version, budget_s))
        return replace(prepared, clock=clock) if self.scope.used else prepared

    def execute_together(self, requests: Sequence[Request], budget_s: float) -> Prepared:
        """Run as many as can share a transaction, the first ones, and take them back; raises what ``execute`` does."""
        run = partial(together.execute, self._executor, dict(self.applied), self.schema_version, budget_s, self.scope)
        found = together.as_many_as_can_be(requests, lambda chosen: self._take_back(partial(run, chosen)))
        return found or self.execute(requests[0], budget_s)

    def explain(self, statement: Statement, *, columns: bool = False) -> list[dict[str, Any]]:
        """Tell what each statement of a text would read and write, as ``explain.explain``; nothing of it remains."""
        return self._take_back(lambda: explain(self._executor, statement, columns=columns))

    def _take_back(self, action: Callable[[], T]) -> T:
        """Do something in the open batch, and take it back, whatever comes out."""
        db = self._db
        self._leave()
        self._applier.loud()
        db.execute("SAVEPOINT request")
        try:
            return action()
        finally:
            self._capture.deafen()
            if db.in_transaction:
                db.execute("ROLLBACK TO request")
                db.execute("RELEASE request")
            else:
                self._redo()

    def lend(self, leave: Callable[[], None]) -> Parts:
        """Let open transactions use the writer meanwhile; ``leave`` is called when the engine needs it for itself."""
        self._leave = leave
        return Parts(self._db, self._executor, self._capture, self._applier, self._limits, self._reader, self._redo)

    def beside(self) -> Beside:
        """Return what is needed for connections beside the writer's."""
        return Beside(self._reader, self._prepare, self._wal.descriptor, self._ids, self._limits)

    def moment(self) -> Moment:
        """Return the state of the file after the last flush."""
        return Moment(self._wal.frames, salt_of(self._wal.descriptor), self.batches)

    @property
    def schema_version(self) -> int:
        """How many schema changes were activated."""
        return self.versions.current

    @property
    def dirty(self) -> bool:
        """Whether there is anything to flush; if not, a new reading connection sees all that was applied."""
        return bool(self._batch)

    def apply(self, entry: Entry, *, repeat: bool, applied_ms: int) -> None:
        """Put an entry into the journal and, unless it is a repeat, its changes into the tables, in the open batch.

        Args:
            entry: the next of its timeline.
            repeat: whether its transaction was applied already, under another label.
            applied_ms: the wall clock, in milliseconds since 1970.

        Raises:
            DamagedError: the tables or the file are not what they must be; the node must stop.
        """
        leader, tick = entry.place
        assert tick == self.applied.get(leader, 0) + 1, f"{leader}{tick} follows {leader}{self.applied.get(leader, 0)}"
        assert entry.prev == self._heads.get(leader, GENESIS), f"{leader}{tick} does not continue its timeline"
        self._write(self._apply, entry, repeat, applied_ms)
        self.applied[leader] = tick
        self.journal.applied_clock = max(self.journal.applied_clock, entry.txid.clock)
        self._heads[leader] = entry.hash

    def save_vote(self, vote: Vote) -> None:
        """Keep a vote in the open batch, instead of an earlier one on the same transaction."""
        # A copy: the core goes on to change its own, and the batch may have to be done again as it was.
        kept = Vote(vote.txid, vote.transaction, vote.held, vote.promised, vote.accepted)
        self._write(system.save_vote, self._db, kept)

    def drop_vote(self, txid: Txid) -> None:
        """Forget a vote in the open batch."""
        self._write(system.drop_vote, self._db, txid)

    def get_meta(self, prefix: str) -> dict[str, Any]:
        """Return the values that are kept under all names that begin so."""
        return system.meta_under(self._db, prefix)

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a value of the node's own, such as ``clock_ceiling``, in the open batch."""
        self._write(system.set_meta, self._db, key, value)

    def flush(self) -> bool:
        """Commit the batch and begin the next; it is durable after the next ``sync``. False if it was empty.

        Raises:
            DamagedError: the file failed; the node must stop.
        """
        if not self._batch:
            return False
        db = self._db
        self._leave()
        try:
            system.set_meta(db, "batches", self.batches + 1)
            db.execute("COMMIT")
            self.batches += 1
            self._batch.clear()
            if self._wal.frames >= self._limits.wal_frames_max:
                self._wal.finish(db)
            db.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise broken(error) from error
        if db.execute("PRAGMA data_version").get != self._data_version:
            # Between two batches the file is free for a moment; our own writes do not count here.
            raise DamagedError("another program has written to the node's file; stop it, and fill this node again")
        return True

    def sync(self) -> None:
        """Return when everything flushed before this call is durable. May be called in a helper thread.

        Raises:
            DamagedError: it cannot be made durable; the node must stop.
        """
        self._wal.sync()

    @property
    def wal_frames(self) -> int:
        """How many frames the WAL has."""
        return self._wal.frames

    @property
    def checkpoint_due(self) -> bool:
        """Whether the WAL has grown enough for ``checkpoint`` to be called, in a helper thread."""
        return self._wal.grown() >= self._limits.wal_frames

    def checkpoint(self) -> tuple[int, int]:
        """Copy the WAL into the database file as far as readers allow. May run in a helper thread, one at a time.

        Returns:
            frames in the WAL, and how many of them are in the database file now.
        """
        return self._wal.checkpoint()

    def find_command(self, command: str) -> Entry | None:
        """Return the entry that a client's command became, or None."""
        return store.find_command(self._db, command)

    def find_txid(self, txid: Txid) -> list[Entry]:
        """Return the entries of a transaction, in the order applied: one for each label that it got."""
        return store.find_txid(self._db, txid)

    def read_entries(self, leader: str, first_tick: int, limit_bytes: int) -> list[Entry]:
        """Return consecutive entries of a timeline, up to a size; the first comes whatever its size."""
        return store.read(self._db, leader, first_tick, limit_bytes)

    def snapshot_to(self, path: str | os.PathLike[str]) -> None:
        """Copy the database as of the last flush into a new file, page by page, so that rowids stay what they are.

        May run in a helper thread. The last flush need not be durable yet: let nobody have the copy before it is.

        Raises:
            ConfigError: the file is there already, or cannot be written.
        """
        source = self._reader()
        try:
            copy_file(source, Path(path))
        finally:
            source.close()

    def digest(self) -> str:
        """Return the digest of the tables as of the last flush: equal on nodes that have applied the same."""
        from journal.replay import digest

        reader = self._reader()
        try:
            return digest(reader)
        finally:
            reader.close()

    def close(self) -> None:
        """Give up what was not flushed, and close the file. Closing it twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._wal.close()
        self._db.close()
        self._lock.close()

    @property
    def applied_clock(self) -> int:
        """A clock that is not before that of anything applied."""
        return self.journal.applied_clock

    def _reader(self) -> apsw.Connection:
        reader = apsw.Connection(self._file, flags=apsw.SQLITE_OPEN_READONLY)
        reader.set_busy_timeout(5_000)
        self._prepare(reader)
        return reader

    def _write(self, action: Callable[..., None], *arguments: Any) -> None:
        self._leave()
        try:
            action(*arguments)
        except apsw.Error as error:
            raise broken(error) from error
        self._batch.append((action, arguments))

    def _redo(self) -> None:
        """Write the batch again: SQLite has rolled it back because of one request."""
        self._db.execute("BEGIN IMMEDIATE")
        self.versions.reload()
        self._learn_schema()
        for action, arguments in self._batch:
            try:
                action(*arguments)
            except apsw.Error as error:
                raise broken(error) from error

    def _apply(self, entry: Entry, repeat: bool, applied_ms: int) -> None:
        transaction, db = entry.transaction, self._db
        if not repeat:
            if transaction.kind == ROWS:
                self._applier.apply(entry, decode_changes(transaction.changes))
            elif transaction.kind == SCHEMA:
                self.versions.apply(entry)
            else:
                assert transaction.kind == MEMBERS
                system.set_meta(db, "membership", transaction.changes)
                self._learn_members()
        store.append(db, entry, repeat=repeat, applied_ms=applied_ms)

    def _learn_schema(self) -> None:
        tables = Tables(self._db)
        self._capture.use(tables)
        self._applier.use(tables)
        self._executor.use(tables)
        self._ids.use(self._db, tables)

    def _learn_members(self) -> None:
        membership = decode_membership(system.get_meta(self._db, "membership"))
        self._ids.use_members(system.get_meta(self._db, "node"), membership)
