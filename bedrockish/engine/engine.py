"""The database of one node: what a request would do, what is decided done, and all of it durable.

One connection writes, and it is always inside a transaction, the *batch*. Requests run in it and are rolled back;
entries and votes are written in it; ``flush`` commits it and begins the next, and ``sync`` makes it durable. Nothing
may leave the node before the batch that it rests on is durable.

SQLite sometimes rolls back a whole transaction because of one statement. The batch is then done again from the list of
what was asked for since the last commit, so that nobody's request can take away what others decided.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from bedrockish.access_sets.analysis import Precision
from bedrockish.access_sets.call_costs import bound
from bedrockish.access_sets.catalog import Prepare
from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.requests import Request, Statement
from bedrockish.core.protocol.pieces import Part
from bedrockish.core.protocol.records import Prepared, Recovered, Vote, decode_membership
from bedrockish.engine.derived.index_keeper import stale_indexes
from bedrockish.engine.execution import group_execution as together
from bedrockish.engine.execution.ddl_execution import execute_mixed
from bedrockish.engine.execution.executor import Executor, MixesError
from bedrockish.engine.execution.explain import explain
from bedrockish.engine.execution.interfaces import Beside, Flushed, Guest, Parts
from bedrockish.engine.sqlite.errors import broken
from bedrockish.engine.sqlite.limits import Limits, Memory
from bedrockish.engine.statements.changes_vtab import give_functions
from bedrockish.engine.statements.classify import Guard
from bedrockish.engine.statements.clock_functions import Holder, Scope
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.statements.row_locks import RowLocks
from bedrockish.engine.statements.rowid_allocator import AutoIds
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.build import Build, remove_copied
from bedrockish.engine.storage.column_drop import ColumnDrop, DropPlan, plan_drop
from bedrockish.engine.storage.database_file import FileLock, Founding, PageCache, connect, place_of, set_up_reader
from bedrockish.engine.storage.index_build import IndexBuild
from bedrockish.engine.storage.index_plan import IndexPlan, plan_index
from bedrockish.engine.storage.journal_tables import DamagedEntries, Journal
from bedrockish.engine.storage.overlay_vfs import Moment, salt_of
from bedrockish.engine.storage.publication import Publication
from bedrockish.engine.storage.row_applier import RowApplier, unreadable
from bedrockish.engine.storage.schema_versions import Versions
from bedrockish.engine.storage.scratch_files import check_room, size_of
from bedrockish.engine.storage.staged_changes import StagedStore
from bedrockish.engine.storage.wal import Wal, copy_file
from bedrockish.errors import DamagedError, EntryMismatchError, UnavailableError
from bedrockish_journal.model.changes import Change, decode_changes, decode_changes_in_pieces, decode_steps
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.errors import EntryMalformedError
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Transaction, Txid
from bedrockish_journal.storage import store

__all__ = ["Engine", "Founding", "Limits"]

T = TypeVar("T")
LONG_BYTES = 1 << 20  # what takes longer to write than others should have to wait for
BATCH_FRAMES = 500  # that a batch may have which is not long
FEW_BYTES = 64 << 10  # changes that are read at once
COMPARED_BYTES, COMPARED_MAX = 4 << 10, 64  # changes that stay read, and how many, between comparing and applying
WINDOW_MS = 60_000  # the conflict window, as it is by default


class Engine:
    """A node's file. Used from one thread, except ``sync``, ``checkpoint`` and ``snapshot_to``.

    Attributes:
        applied: the last tick applied of each timeline, in step with ``apply``.
        batches: how many batches were committed in the life of the file.
        bootstrap: the membership that the cluster was founded with, encoded.
        flushed: what the last flush has left: what a connection sees that begins to read now.
        durable: the last tick of each timeline that is known to be durable, by ``sync``.
        void: transactions that fit nowhere and that an operator had applied as nothing.
        failed: the file or the machine failed: what the open batch holds is never committed.
        scope: what the clock's functions give on the writing connection; whoever drives the engine gives it a clock.
        locks: the rows that transactions which run here have locked.
        access: what users may do, by the membership that is applied.
        precision: how exactly reads are told, by the same.
        staged: large transactions that are unpacked.
        pages: of the file, that the writer keeps to read them again.
        damaged: entries of the journal that were found damaged when somebody wanted them, by place, and in what way.
        build: of what the scheduled change of the schema makes, if it is built beside its table.
        publication: tells others which batches are written and which are durable.
    """

    def __init__(self, db: apsw.Connection, lock: FileLock, limits: Limits, prepare: Prepare) -> None:
        self._db, self._lock, self._limits, self._prepare = db, lock, limits, prepare
        self._control = db.cursor().execute  # of what gives no rows; a cursor for each costs more than a savepoint
        self._file = db.filename  # kept, because helper threads must not touch the connection
        self._capture = Capture(db, limits.changes_bytes)
        self._guard = Guard(db)
        self._ids = AutoIds()
        self._ids.register(db)
        self.locks = RowLocks(lambda: self._executor.analysis.schema)
        self.scope = Scope(locks=self.locks)
        give_functions(db, Holder(self.scope))
        store.unpack_on(db)
        self.access, self.precision = shared = Access(), Precision()
        self._executor = Executor(db, self._guard, self._capture, limits, self._ids, prepare, None, *shared)
        self._executor.scope = self.scope
        self._applier = RowApplier(db)
        self._wal = Wal(db)
        self._batch: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._closed = self._is_begun = False
        self._members = 0  # how often they were learnt
        self.publication = Publication(db, self._wal)
        self.pages = PageCache(db, limits.memory.max_bytes)
        self._weight = 0  # about how many bytes the open batch has
        self._wait: Callable[[], None] | None = None  # returns as soon as the thread that has the writer is done
        self.build: Build | None = None
        self._compared: dict[bytes, list[Change]] = {}  # read when they were compared: encoded changes -> themselves
        self.staged = StagedStore(db)
        self.damaged = DamagedEntries(system.get_meta(db, "node"))
        self.failed = self._is_changed = self._is_redoing = False
        self.void = set(system.void(db))
        self._journal = Journal(db, self._write, self.damaged)
        self._guest: Guest | None = None
        self._versions = Versions(db, self._write, self._applier.loud, self._learn_schema, self._capture.noticing)
        self.batches: int = system.get_meta(db, "batches")
        self.bootstrap: bytes = system.get_meta(db, "bootstrap")
        heads = store.heads(db)
        self.applied: dict[str, int] = {leader: tick for leader, (tick, _) in heads.items()}
        self._heads: dict[str, bytes] = {leader: digest for leader, (_, digest) in heads.items()}
        self._learn_schema()
        self._learn_members()
        self.flushed = self._left()
        self.durable: Mapping[str, int] = {}
        self._ids.note_votes(system.votes(db))
        self._is_changed = False
        db.execute("BEGIN IMMEDIATE")
        self._wal.begun()
        self._is_begun = True

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        founding: Founding | None,
        limits: Limits | None = None,
        prepare: Prepare = lambda _db: None,
    ) -> "Engine":
        """Open a node's file, and create it if it is new.

        Args:
            path: the database file. Its directory must be writable and local.
            founding: what a new file begins with; an old one must agree. None: the file must be a node's already.
            limits: what a request may cost.
            prepare: gives every connection the functions and collations that SQLite does not have.

        Raises:
            ConfigError: the file cannot be used; the text says why and what to do.
            DamagedError: what it holds is not what a node's file must hold.
        """
        place = place_of(path, may_be_new=founding is not None)
        limits = limits or Limits()
        lock = FileLock(place)
        try:
            db = connect(place, founding, limits, prepare)
            try:
                return cls(db, lock, limits, prepare)
            except BaseException:
                db.close()
                raise
        except BaseException:
            lock.close()
            raise

    def recover(self, window_ms: int = WINDOW_MS) -> Recovered:
        """Return what the file knows.

        Args:
            window_ms: how far below what was settled entries are still wanted; see ``Journal.recover``.
        """
        return self.journal.recover(dict(self.applied), dict(self._heads), self.batches, window_ms)

    def execute(self, request: Request, budget_s: float = float("inf"), clock: int = 0) -> Prepared:
        """Run a request on the database as it is now, and roll it back: nothing of it remains.

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
        self.scope.begin(request.command, clock, base)
        try:
            prepared = self._roll_back(self._execute, request, base, version, budget_s)
        finally:
            if self.locks.held:
                self.locks.release(request.command)  # from now on, those who lead it tell what it writes
        return replace(prepared, clock=clock) if self.scope.used else prepared

    def _execute(self, request: Request, base: dict[str, int], version: int, budget_s: float) -> Prepared:
        try:
            return self._executor.execute(request, base, version, budget_s)
        except MixesError:
            return execute_mixed(self._executor, request, base, version, budget_s)

    def only_writes(self, texts: Sequence[str]) -> bool:
        """Whether all of these texts were run before, and write rows, and do nothing else that outlasts them."""
        return self._executor.only_writes.issuperset(texts)

    def execute_together(self, requests: Sequence[Request], budget_s: float) -> Prepared:
        """Run as many as can share a transaction, the first ones, and roll them back; raises what ``execute`` does."""
        run = partial(together.execute, self._executor, dict(self.applied), self.schema_version, budget_s, self.scope)
        try:
            found = together.as_many_as_can_be(requests, partial(self._roll_back, run))
        finally:
            for request in requests:
                self.locks.release(request.command)
        return found or self.execute(requests[0], budget_s)

    def explain(self, statement: Statement, user: str = "", *, columns: bool = False) -> list[dict[str, Any]]:
        """Tell what each statement of a text would read and write, as ``explain.explain``; nothing of it remains."""
        self.scope.begin("", 0, dict(self.applied))
        try:
            return self._roll_back(partial(explain, self._executor, statement, user, columns=columns))
        finally:
            self.locks.release("")

    def _roll_back(self, action: Callable[..., T], *arguments: Any) -> T:
        """Do something in the open batch, and roll it back, whatever comes out."""
        db, control = self._db, self._control
        self._leave()
        self._applier.loud()
        control("SAVEPOINT request")
        try:
            return action(*arguments)
        except DamagedError:
            self.failed = True
            raise
        finally:
            self._capture.deafen()
            try:
                if db.in_transaction:
                    control("ROLLBACK TO request")
                    control("RELEASE request")
                else:
                    self._redo()
            except apsw.Error as error:  # something of the request may be left in the batch
                raise self._broken(error) from error

    def lend(self, guest: Guest) -> Parts:
        """Let open transactions use the writer meanwhile; they leave it when the engine needs it for itself."""
        self._guest = guest
        reader, control = self.open_reader, self._control
        return Parts(self._db, self._executor, self._capture, self._applier, self._limits, reader, control, self._redo)

    def beside(self) -> Beside:
        """Return what is needed for connections beside the writer's."""
        wal = self._wal.descriptor
        shared = self.locks, lambda: self._executor.known, self.access, self.precision
        return Beside(self.open_reader, self._prepare, wal, self._ids, self._limits, *shared)

    def moment(self) -> Moment:
        """Return the state of the file after the last flush."""
        return Moment(self._wal.frames, salt_of(self._wal.descriptor), self.batches)

    @property
    def schema_version(self) -> int:
        """How many schema changes were activated."""
        return self._versions.current

    @property
    def tables(self) -> Tables:
        """The tables of the schema in force, as they are known so far."""
        return self._executor.known.tables

    @property
    def versions(self) -> Versions:
        """The schema, as it is in force and as it is decided."""
        self.come_back()
        return self._versions

    @property
    def journal(self) -> Journal:
        """How much of it there is, and who needs it."""
        self.come_back()
        return self._journal

    @property
    def dirty(self) -> bool:
        """Whether there is anything to flush; if not, a new reading connection sees all that was applied."""
        return bool(self._batch) or self._wait is not None

    # -- another thread --------------------------------------------------------------------------------------------

    def hand_over(self, wait: Callable[[], None]) -> None:
        """Let another thread have the writer until ``take_back``; ``wait`` returns then, and at once in that thread.

        Everybody else who needs the writer meanwhile waits for it; who can, asks ``is_away`` first, and comes later.
        """
        assert self._wait is None, "one thread at a time has the writer"
        self._leave()
        self._wait = wait

    def take_back(self) -> None:
        """The other thread is done."""
        self._wait = None

    @property
    def is_away(self) -> bool:
        """Whether another thread has the writer."""
        return self._wait is not None

    def come_back(self) -> None:
        """Return when no other thread has the writer, and it has the open batch."""
        wait = self._wait
        if wait is not None:
            wait()
        elif self._is_begun and not self._db.in_transaction and not (self.failed or self._closed):
            self._write_again()

    def _write_again(self) -> None:
        """Write the open batch again: SQLite gives it up with any read that fails for the disk's or the memory's sake.

        Else what comes next would be committed alone, without what it rests on.
        """
        if self._guest is not None:
            self._guest.lose()
        self._capture.deafen()
        try:
            self._redo()
        except apsw.Error as error:
            raise self._broken(error) from error

    def _leave(self) -> None:
        """Make the writer the engine's own: no thread has it, and nothing of an open transaction is in it."""
        self.come_back()
        if self._guest is not None and self._guest.inside is not None:
            try:
                self._guest.leave()
            except apsw.Error as error:  # something of an open transaction may be left in the batch
                raise self._broken(error) from error

    @property
    def is_slow_to_roll_back(self) -> bool:
        """Whether SQLite reads thousands of definitions again after each request that is rolled back.

        Until it commits a batch in which the schema was changed, it does so after every ROLLBACK TO.
        """
        return self._is_changed and self.tables.definitions.are_many

    def is_long(self, entry: Entry) -> bool:
        """Whether applying an entry takes so long that it should be done in another thread."""
        return len(entry.transaction.body) > LONG_BYTES

    @property
    def flush_is_long(self) -> bool:
        """Whether ``flush`` takes so long that it should be done in another thread; also if it may end the WAL."""
        return bool(self._batch) and (self._weight > LONG_BYTES or self.may_finish_log)

    @property
    def may_finish_log(self) -> bool:
        """Whether the next ``flush`` may have the write-ahead log start over, which no reader may hold up."""
        return self._wal.is_to_finish(self._limits.wal_frames, self._limits.wal_frames_max, BATCH_FRAMES)

    def apply(self, entry: Entry, *, repeat: bool, applied_ms: int) -> None:
        """Put an entry into the journal and, unless it is a repeat, its changes into the tables, in the open batch.

        Args:
            entry: the next of its timeline.
            repeat: whether its transaction was applied already, under another label.
            applied_ms: the wall clock, in milliseconds since 1970.

        Raises:
            EntryMismatchError: it does not fit the tables; nothing of it was applied, and the batch is what it was.
            DamagedError: the file failed; the node must stop.
        """
        leader, tick = entry.place
        assert tick == self.applied.get(leader, 0) + 1, f"{leader}{tick} follows {leader}{self.applied.get(leader, 0)}"
        assert entry.prev == self._heads.get(leader, GENESIS), f"{leader}{tick} does not continue its timeline"
        self._journal.grows(entry.txid.clock)
        if self.is_long(entry):
            self.pages.widen()
        build = self.build
        touched = () if build is None or repeat else build.touched(entry.transaction, self.schema_version)
        if build is not None and touched:
            self._apply_with_build(build, entry, touched, applied_ms)
        else:
            self._write(self._apply, entry, repeat, applied_ms)
        self._weight += len(entry.transaction.body)
        self.applied[leader] = tick
        self._heads[leader] = entry.hash

    def _apply_with_build(self, build: Build, entry: Entry, touched: Collection[int], applied_ms: int) -> None:
        """Apply an entry to a table, and to what is built beside it.

        What becomes of that is noted as rows, since an open batch may have to be written again when the building is
        further.
        """
        self._leave()
        removed = build.before(touched)
        self._write(self._apply, entry, False, applied_ms)
        added = build.after(touched)
        if removed or added:
            self._write(build.edit, removed, added)

    # -- what is built beside its table ----------------------------------------------------------------------------

    def plan_build(self, transaction: Transaction) -> IndexPlan | DropPlan | None:
        """Return how to build what a change of the schema makes beside its table; None if that cannot be."""
        given = decode_steps(transaction.changes), self.tables, self._prepare
        return plan_index(*given) or plan_drop(*given)

    def begin_build(self, plan: IndexPlan | DropPlan, txid: Txid) -> Build:
        """Begin to build what a change makes that is scheduled. All that was applied must be flushed.

        Raises:
            UnavailableError: there is no room for another connection, or on the disk.
        """
        assert not self.dirty
        check_room(self._file, os.stat(self._file).st_size)  # a full disk ends the node, and it can be done without
        build: Build
        if isinstance(plan, IndexPlan):
            build = IndexBuild(self._db, plan, txid, self.schema_version)
        else:
            build = ColumnDrop(self._db, plan, txid, self.schema_version)
        try:
            build.begin(self.open_reader)
        except apsw.Error as error:
            build.close()
            raise UnavailableError(f"the file cannot be opened once more: {error}") from error
        self.build = build
        self._is_changed = True
        self._write(build.create)
        return build

    def go_on_with_build(self) -> bool:
        """Do the next slice of what is built; False if there is nothing to do for now."""
        build = self.build
        assert build is not None
        self._leave()
        edit = build.next_edit()
        if edit is None:
            return False
        if edit != ([], []):
            self._write(build.edit, *edit)
        return True

    def activate(self, txid: Txid) -> str:
        """Put the scheduled change of the schema in force, in the open batch; return why the data forbids it, or ''.

        What is nearly built is finished first. Of less, SQLite makes all in a shorter time than the rest would take.
        """
        versions, build = self.versions, self.build
        self.pages.widen()
        if build is not None and build.txid == txid:
            build.hurry()
            while build.is_at_work and self.go_on_with_build():
                pass
        return versions.activate(txid, build)

    def _end_build(self, build: Build) -> None:
        """Forget the building of what is in force, for good."""
        if build.version != self.schema_version:
            build.close(wait=False)  # if a thread still reads, whoever has begun it closes it
            self.build = None

    def why_rows_differ(self, transaction: Transaction) -> str:
        """Return why a transaction was not made of the rows that are applied here; empty if it was."""
        if transaction.kind != ROWS or transaction.schema != self.schema_version:
            return ""  # on a schema that is not in force here yet there is nothing to compare
        self._leave()
        try:
            if len(transaction.changes) > COMPARED_BYTES:
                return self._applier.compare(decode_changes_in_pieces(transaction.changes))
            changes = self._compared[transaction.changes] = decode_changes(transaction.changes)
            if len(self._compared) > COMPARED_MAX:
                del self._compared[next(iter(self._compared))]
            return self._applier.compare((changes,))
        except EntryMalformedError as error:
            return f"its changes cannot be read: {error}"
        except apsw.Error as error:
            raise self._broken(error) from error

    def rebuild_indexes(self, names: Sequence[str]) -> None:
        """Rebuild FTS5 indexes on tables' rows from these rows, in the open batch."""
        self._write(self._applier.indexes.rebuild, names)

    def save_vote(self, vote: Vote, parts: tuple[Part, ...] | None = None) -> None:
        """Keep a vote in the open batch, instead of an earlier one on the same transaction.

        ``parts``: of its transaction's body, whose pieces are saved; they are kept instead of it.
        """
        # A copy: the core goes on to change its own, and the batch may have to be done again as it was.
        kept = Vote(vote.txid, vote.transaction, vote.held, vote.promised, vote.accepted)
        self._write(system.save_vote, self._db, kept, parts)
        if parts is None and vote.transaction is not None:
            self._weight += len(vote.transaction.body)

    def drop_vote(self, txid: Txid) -> None:
        """Forget a vote in the open batch."""
        self._write(system.drop_vote, self._db, txid)

    def save_piece(self, digest: bytes, data: bytes) -> None:
        """Keep a piece of a transaction in the open batch."""
        self._write(system.save_piece, self._db, digest, data)
        self._weight += len(data)

    def drop_pieces(self, digests: tuple[bytes, ...]) -> None:
        """Forget pieces in the open batch."""
        self._write(system.drop_pieces, self._db, digests)

    def assemble(self, parts: tuple[Part, ...]) -> bytes:
        """Return the bytes that parts stand for, of which the pieces are saved.

        Raises:
            DamagedError: a piece is not there; the node must stop.
        """
        self.come_back()
        try:
            return system.assemble(self._db, parts)
        except apsw.Error as error:
            raise broken(error) from error

    def assemble_apart(self, parts: tuple[Part, ...]) -> bytes:
        """Return the same as ``assemble``, of pieces in batches that are committed; in a helper thread.

        Raises:
            DamagedError: a piece is not there; the node must stop.
            UnavailableError: there is no room for another connection.
        """
        with self._apart() as reader:
            return system.assemble(reader, parts)

    def get_meta(self, prefix: str) -> dict[str, Any]:
        """Return the values that are kept under all names that begin so."""
        self.come_back()
        return system.meta_under(self._db, prefix)

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a value of the node's own, such as ``clock_ceiling``, in the open batch."""
        self._write(system.set_meta, self._db, key, value)

    def flush(self) -> bool:
        """Commit the batch and begin the next; it is durable after the next ``sync``. False if it was empty.

        Raises:
            DamagedError: the file failed; the node must stop.
        """
        if self.failed:
            raise DamagedError("the node's file failed, and nothing more is written to it; start the node again")
        if not self._batch:
            return False
        db = self._db
        self._leave()
        self._keep_to_ourselves()
        try:
            system.set_meta(db, "batches", self.batches + 1)
            self.publication.write(self.batches + 1, self.applied, self.applied_clock, self.schema_version)
            self._is_begun = False
            self._control("COMMIT")
            self.batches += 1
            self.publication.wrote(self.batches, self.schema_version, is_log_ending=self.may_finish_log)
            self._batch.clear()
            if self.staged.attached:
                self.staged.detach()
            if self.build is not None:
                self._end_build(self.build)
            self._weight = 0
            self._is_changed = False
            if self.pages.is_wide:
                self.pages.narrow()
            self.flushed = self._left()
            if self._wal.is_to_finish(self._limits.wal_frames, self._limits.wal_frames_max):
                self._wal.finish(db, self._limits.wal_frames_max)
            self._control("BEGIN IMMEDIATE")
            self._is_begun = True
            if self._wal.is_overtaken():
                # Between two batches the file is free for a moment; our own writes do not count here.
                self.failed = True
                raise DamagedError("another program has written to the node's file; stop it, and fill this node again")
        except apsw.Error as error:
            raise self._broken(error) from error
        return True

    def _left(self) -> Flushed:
        """Return what the batch that has just been committed has left in the file."""
        return Flushed(dict(self.applied), self.schema_version, self.applied_clock, self.batches, self._members)

    @property
    def has_new_members(self) -> bool:
        """Whether the members or the users are others than those in the file after the last flush."""
        return self._members != self.flushed.members

    def sync(self) -> None:
        """Return when everything flushed before this call is durable. May be called in a helper thread.

        Raises:
            DamagedError: it cannot be made durable; the node must stop.
        """
        flushed = self.flushed
        self._wal.sync()
        self.durable = flushed.applied
        self.publication.synced(flushed.batches)

    @property
    def wal_frames(self) -> int:
        """How many frames the WAL has."""
        return self._wal.frames

    @property
    def checkpoint_due(self) -> bool:
        """Whether the WAL has grown enough for ``checkpoint`` to be called, in a helper thread."""
        return self._wal.is_to_copy(self._limits.wal_frames, self._limits.wal_frames_max)

    def checkpoint(self) -> tuple[int, int]:
        """Copy the WAL into the database file as far as readers allow. May run in a helper thread, one at a time.

        Returns:
            frames in the WAL, and how many of them are in the database file now.
        """
        return self._wal.checkpoint()

    def find_places(self, txid: Txid) -> list[tuple[str, int]]:
        """Return where a transaction stands in the journal, in the order applied."""
        self.come_back()
        return store.find_places(self._db, txid)

    def read_entries(self, leader: str, first_tick: int, limit_bytes: int) -> list[Entry]:
        """Return consecutive entries of a timeline, up to a size; the first comes whatever its size."""
        self.come_back()
        return store.read(self._db, leader, first_tick, limit_bytes)

    def has_short_entries(self, wants: Mapping[str, int], count: int, size: int) -> bool:
        """Whether each timeline has fewer entries than so many from a tick on, and all of them fewer bytes."""
        self.come_back()
        found = [store.size(self._db, leader, tick, count) for leader, tick in wants.items()]
        return all(entries < count for entries, _ in found) and sum(taken for _, taken in found) < size

    @contextmanager
    def reading_apart(self) -> Iterator[Callable[[str, int, int], list[Entry]]]:
        """Give what reads as ``read_entries``, of batches that are committed; in a helper thread.

        Raises:
            DamagedError: the file cannot be read; the node must stop.
            UnavailableError: there is no room for another connection.
        """
        with self._apart() as reader:
            yield partial(store.read, reader)

    @contextmanager
    def _apart(self) -> Iterator[apsw.Connection]:
        try:
            reader = self.open_reader()
        except apsw.Error as error:
            raise UnavailableError(f"the file cannot be opened once more: {error}") from error
        try:
            yield reader
        except apsw.Error as error:
            raise broken(error) from error
        finally:
            reader.close()

    def snapshot_to(self, path: str | os.PathLike[str], go_on: Callable[[], None] = lambda: None) -> None:
        """Copy the database as of the last flush into a new file, page by page, so that rowids stay what they are.

        May run in a helper thread. The last flush need not be durable yet: let nobody have the copy before it is.
        ``go_on`` is called all the time; what it raises ends it.

        Raises:
            ConfigError: the file is there already, or cannot be written.
            UnavailableError: there is no room for it: a disk that is full would end the node.
        """
        with closing(self.open_reader()) as source:
            check_room(path, size_of(source))
            copy_file(source, Path(path), go_on)
        remove_copied(Path(path))

    def close(self) -> None:
        """Give up what was not flushed, and close the file. Closing it twice is fine."""
        if self._closed:
            return
        self._closed = True
        self.publication.end()
        if self.build is not None:
            self.build.interrupt()
        self.come_back()
        if self.build is not None:
            self.build.close()
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self.staged.close()
        self._wal.close()
        self._db.close()
        self._lock.close()

    @property
    def applied_clock(self) -> int:
        """A clock that is not before that of anything applied."""
        return self._journal.applied_clock

    def open_reader(self) -> apsw.Connection:
        """Return a connection that only reads, with what plugins add; may be called in a helper thread."""
        reader = apsw.Connection(self._file, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        set_up_reader(reader)
        bound(reader, self._limits.length_bytes)
        self._prepare(reader)
        store.unpack_on(reader)
        return reader

    @property
    def memory(self) -> Memory:
        """What requests may take together."""
        return self._limits.memory

    def _keep_to_ourselves(self) -> None:
        """Let nothing of the user's schema take part in the node's own bookkeeping.

        Nothing can any more, and switching off has every statement compiled again; a file of an earlier release may
        have foreign keys to system tables.
        """
        if self._watched:
            self._applier.quiet()

    def _write(self, action: Callable[..., None], *arguments: Any) -> None:
        self._leave()
        self._keep_to_ourselves()
        try:
            action(*arguments)
        except EntryMismatchError:
            raise  # the batch is as it was
        except DamagedError:
            self.failed = True
            raise
        except apsw.Error as error:
            raise self._broken(error) from error
        self._batch.append((action, arguments))

    def _broken(self, error: apsw.Error) -> DamagedError:
        """Return the error with which the node stops; what the open batch holds now is never committed."""
        self.failed = True
        return broken(error, self._db.system_errno)

    def _redo(self) -> None:
        """Write the batch again: it was rolled back because of one request, or of one entry that did not fit."""
        self._db.execute("BEGIN IMMEDIATE")
        self._wal.rolled_back()
        self._versions.reload()
        self._learn_schema()
        self._is_redoing = True
        for action, arguments in self._batch:
            self._keep_to_ourselves()
            try:
                action(*arguments)
            except DamagedError:
                self.failed = True
                raise
            except apsw.Error as error:
                raise self._broken(error) from error
        self._is_redoing = False

    def _apply(self, entry: Entry, repeat: bool, applied_ms: int) -> None:
        """Apply an entry whole, its rows and its place in the journal, or nothing of it."""
        db, changes = self._db, [] if repeat else self._few_changes(entry)
        if changes is not None and len(changes) <= 1:
            # SQLite does one change whole or not at all, and a savepoint has it copy every page that is written.
            self._applier.apply(entry, (changes,))
            try:
                store.append(db, entry, repeat=repeat, applied_ms=applied_ms)
            except BaseException:  # the file failed: no row stays without its entry, and nothing of the batch is kept
                self.failed = True
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return
        if self._take_staged(entry, applied_ms):
            return
        db.execute("SAVEPOINT entry")
        try:
            self._make(entry, changes)
            self._keep_to_ourselves()  # a change of the schema ran with everything on
            store.append(db, entry, repeat=repeat, applied_ms=applied_ms)
        except BaseException:
            if db.in_transaction:  # else SQLite gave up the whole batch: the disk is full, or failed
                db.execute("ROLLBACK TO entry")
                db.execute("RELEASE entry")
            raise
        db.execute("RELEASE entry")

    def _few_changes(self, entry: Entry) -> list[Change] | None:
        """Return the changes that an entry makes, if it is one of rows and they are short; None if it is another.

        Raises:
            EntryMismatchError: they cannot be read.
        """
        transaction = entry.transaction
        if transaction.kind != ROWS or entry.txid in self.void or len(transaction.changes) > FEW_BYTES:
            return None
        known = self._compared.pop(transaction.changes, None) if self._compared else None
        if known is not None:
            return known
        try:
            return decode_changes(transaction.changes)
        except EntryMalformedError as error:
            raise unreadable(entry, error) from error

    def _make(self, entry: Entry, changes: list[Change] | None) -> None:
        transaction = entry.transaction
        if entry.txid in self.void:
            assert transaction.kind == ROWS, f"{entry.txid} may not be void: it is no change of rows"
        elif transaction.kind == ROWS:
            try:
                known = None if changes is None else (changes,)
                self._applier.apply(entry, known or decode_changes_in_pieces(transaction.changes))
            except EntryMalformedError as error:
                raise unreadable(entry, error) from error
        elif transaction.kind == SCHEMA:
            self.publication.forget_schema()
            self._versions.apply(entry)
        else:
            assert transaction.kind == MEMBERS
            system.set_meta(self._db, "membership", transaction.changes)
            self._learn_members()

    def _take_staged(self, entry: Entry, applied_ms: int) -> bool:
        """Apply an entry whose changes are unpacked; False, and the batch is what it was, if that cannot be.

        A savepoint has SQLite copy every page that is written, a third of the time of a large one. So there is none:
        what does not fit ends the whole batch, which is then done again without it. Nearly everything fits.
        """
        transaction = entry.transaction
        if transaction.kind != ROWS or entry.txid in self.void:
            return False
        staged = self.staged.attach(transaction.changes, self.tables, self.schema_version, unpack=self.is_long(entry))
        if staged is None or not self._applier.knows(staged):
            return False
        db = self._db
        try:
            with self._capture.put_away():
                fits = self._applier.apply_staged(staged)
            if fits:
                store.append(db, entry, repeat=False, applied_ms=applied_ms)
                return True
        except BaseException:  # the file failed: a part of it may be there, and nothing of the batch is kept
            self.failed = True
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        staged.fits = False
        if db.in_transaction:
            db.execute("ROLLBACK")
        if self._is_redoing:
            raise DamagedError(f"{entry.leader}{entry.tick} fitted the tables, and does not when it is written again")
        self._redo()
        return False

    def _learn_schema(self, statements: Sequence[str] = (), changed: Collection[str] = ()) -> None:
        before, tables = self.tables.virtual, Tables(self._db, self._executor.known.tables)
        self._capture.use(tables)
        self._applier.use(tables)
        self._executor.use(tables)
        self._ids.use(tables)
        self._watched, self._is_changed = tables.watched, True
        self.publication.forget_schema()
        self._applier.indexes.rebuild(stale_indexes(before, tables.virtual, changed, statements))

    def _learn_members(self) -> None:
        membership = decode_membership(system.get_meta(self._db, "membership"))
        self._ids.use_members(system.get_meta(self._db, "node"), membership)
        self.access.learn(membership.users, membership.nodes)
        self.precision.learn(membership.level)
        self.void |= system.follow_resolutions(self._db, membership.void)
        self._members += 1
        self.publication.members = membership.version
