"""The database of one node: executes requests, applies decided entries, and makes both durable.

One connection writes, and is always inside a transaction, the *batch*. Requests run in the batch and are rolled back;
entries and votes are written into it. ``flush`` commits the batch and opens the next one, and ``sync`` makes it
durable. No message may leave the node before the batches that it depends on are durable.

SQLite sometimes rolls back a whole transaction because one statement failed. The batch is then written again from the
list of all writes since the last commit, so that no request can undo decided entries.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import apsw

from bedrockish.access_sets.catalog import Prepare
from bedrockish.access_sets.change_capture import Capture
from bedrockish.access_sets.table_layout import Tables
from bedrockish.api.requests import Request, Statement
from bedrockish.core.protocol.records import Prepared, Recovered
from bedrockish.engine.background_reads import BackgroundReads
from bedrockish.engine.batch import LONG_BYTES, Batch, Hooks, WriterState
from bedrockish.engine.derived.index_keeper import stale_indexes
from bedrockish.engine.entry_applier import EntryApplier
from bedrockish.engine.execution import group_execution as together
from bedrockish.engine.execution.ddl_execution import execute_mixed
from bedrockish.engine.execution.executor import Executor, MixesError, OneByOneError
from bedrockish.engine.execution.explain import explain
from bedrockish.engine.execution.interfaces import Connector, EngineParts, Flushed, Guest
from bedrockish.engine.online_builds import OnlineBuilds
from bedrockish.engine.sqlite.limits import Limits, Memory, TakesLongError
from bedrockish.engine.statements.changes_vtab import give_functions
from bedrockish.engine.statements.clock_functions import ClockNeededError, Holder, Scope
from bedrockish.engine.statements.guard import Guard
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.statements.row_locks import RowLocks
from bedrockish.engine.statements.rowid_allocator import AutoIds
from bedrockish.engine.storage import system_tables as system
from bedrockish.engine.storage.database_file import FileLock, Founding, PageCache, connect, database_path
from bedrockish.engine.storage.journal_tables import DamagedEntries, Journal
from bedrockish.engine.storage.overlay_vfs import FileState, salt_of
from bedrockish.engine.storage.publication import Publication
from bedrockish.engine.storage.row_applier import RowApplier
from bedrockish.engine.storage.schema_versions import Versions
from bedrockish.engine.storage.wal import Wal
from bedrockish.engine.stored_votes import StoredVotes
from bedrockish.errors import BedrockishError, DamagedError
from bedrockish_journal.model.entry import GENESIS, Entry
from bedrockish_journal.model.membership import read_membership
from bedrockish_journal.model.transaction import Txid
from bedrockish_journal.storage import packing, store

__all__ = ["Engine", "Founding", "Limits"]

T = TypeVar("T")
CEILING = "clock_ceiling"  # the key of the ceiling of the node's clock in ``bedrockish_meta``
WINDOW_MS = 60_000  # the default of the conflict window


class Engine:
    """The database of one node. Used from one thread, except ``sync``, ``wal.checkpoint`` and ``background``.

    Why so large: It wires the parts that work on one file; each part is an attribute. Short methods forward to them, so
    that a caller need not know the parts of a part.
    """

    def __init__(self, db: apsw.Connection, lock: FileLock, limits: Limits, prepare: Prepare) -> None:
        self._db, self._lock, self._limits, self._prepare = db, lock, limits, prepare
        self._capture = Capture(db, limits.changes_bytes)
        self._ids = AutoIds()
        self._ids.register(db)
        # The rows that transactions open at this node have locked.
        self.locks = RowLocks(lambda: self._executor.analysis.schema)
        # The values that the clock's SQL functions return on the writing connection; the node sets its clock.
        self.scope = Scope(locks=self.locks)
        give_functions(db, Holder(self.scope))
        packing.unpack_on(db)
        self.access = Access()  # the users' rights under the applied membership
        self._executor = Executor(db, Guard(db), self._capture, limits, self._ids, prepare, None, self.access)
        self._executor.scope = self.scope
        self._applier = RowApplier(db)
        self.wal = Wal(db)  # the write-ahead log
        self._ceiling: int = system.get_meta(db, CEILING) or 0
        self._members = 0  # how often the members and users were read from the file
        self._has_schema_change = False  # whether the open batch changes the schema
        self.publication = Publication(db, self.wal)  # tells other programs which batches are written and durable
        self.pages = PageCache(db, limits.memory.max_bytes)  # the writer's page cache
        self.damaged = DamagedEntries(system.get_meta(db, "node"))
        self.bootstrap: bytes = system.get_meta(db, "bootstrap")  # the encoded membership of the founding
        hooks = Hooks(self._capture.discard_changes, self._reload, self._seal, self._committed)
        self.batch = batch = Batch(db, self.wal, limits, hooks, system.get_meta(db, "batches"))
        self._journal = Journal(db, batch.write, self.damaged)
        versions = Versions(db, batch.write, self._applier.switch_on, self._learn_schema, self._capture.changed_tables)
        self._versions = versions
        self.votes = StoredVotes(db, batch)  # the stored votes and pieces
        # Reads of committed batches in other threads.
        self.background = reads = BackgroundReads(db.filename, prepare, limits)
        self.builds = OnlineBuilds(
            db, batch, versions, lambda: self.tables, prepare, reads.open_reader, self._note_change
        )
        forget = self.publication.forget_schema
        self.entries = EntryApplier(db, batch, self._applier, self._capture, versions, self._learn_members, forget)
        self._executor.encode_changes = self.entries.encode
        heads = store.heads(db)
        # The last applied tick of each timeline, including entries in the open batch.
        self.applied: dict[str, int] = {leader: tick for leader, (tick, _) in heads.items()}
        self._heads: dict[str, bytes] = {leader: digest for leader, (_, digest) in heads.items()}
        self._learn_schema()
        self._learn_members()
        self.flushed = self._flushed()  # the contents of the file after the last flush, which a new reader sees
        self.durable: Mapping[str, int] = {}  # the last durable tick of each timeline, as of the last ``sync``
        self.durable_ceiling = 0  # the durable ceiling of the node's clock, as of the last ``sync``
        self._ids.note_votes(system.votes(db))
        self._has_schema_change = False
        batch.open()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],  # the database file. Its directory must be writable and local.
        *,
        # The facts that a new file gets, and with which an existing file must agree. None: the file must exist.
        founding: Founding | None,
        limits: Limits | None = None,
        prepare: Prepare = lambda _db: None,  # registers the functions and collations of plugins on every connection
    ) -> "Engine":
        """Open a node's file, and create it if it is new.

        Raises:
            ConfigError: the file cannot be used; the text says why and what to do.
            DamagedError: the file is a node's, and is damaged.
        """
        file = database_path(path, may_be_new=founding is not None)
        limits = limits or Limits()
        lock = FileLock(file)
        try:
            db = connect(file, founding, limits, prepare)
            try:
                return cls(db, lock, limits, prepare)
            except BaseException:
                db.close()
                raise
        except BaseException:
            lock.close()
            raise

    def recover(self, window_ms: int = WINDOW_MS) -> Recovered:
        """Return the state with which the core starts, read from the file.

        Args:
            window_ms: the returned entries begin at the settled clock minus these milliseconds; see
                ``Journal.recover``.
        """
        return self.journal.recover(dict(self.applied), dict(self._heads), self.batch.number, window_ms)

    def execute(self, request: Request, budget_s: float = float("inf"), clock: int = 0) -> Prepared:
        """Execute a request on the present database, roll it back, and return its results and effects.

        ``clock`` is the value of ``transaction_clock()`` in the request, and later than the clock of every applied
        entry; 0: the request has no clock yet.

        Raises:
            ClockNeededError: the request calls ``transaction_clock()``, and ``clock`` is 0.
            TakesLongError: the request has used ``budget_s`` and has not ended.
            SqlError: SQLite does not accept a statement or a value.
            ConstraintError: the data forbids it.
            UnsupportedError: the request cannot be replicated.
            TooLargeError: the request exceeds a limit of size or time.
            DamagedError: the file failed; the node must stop.
        """
        base, version = dict(self.applied), self.schema_version
        self.scope.begin(request.command, clock, base)
        try:
            try:
                prepared = self._roll_back(self._execute, request, base, version, budget_s, at_once=True)
            except OneByOneError:
                self.scope.begin(request.command, clock, base)
                prepared = self._roll_back(self._execute, request, base, version, budget_s, at_once=False)
        finally:
            if self.locks.held:
                self.locks.release(request.command)  # from now on, the coordinator reports the written rows as taken
        return replace(prepared, clock=clock) if self.scope.used else prepared

    def _execute(
        self, request: Request, base: dict[str, int], version: int, budget_s: float, *, at_once: bool
    ) -> Prepared:
        try:
            return self._executor.execute(request, base, version, budget_s, at_once=at_once)
        except MixesError:
            return execute_mixed(self._executor, request, base, version, budget_s)

    def read(self, request: Request, budget_s: float) -> bytes | None:
        """Execute a request on the present database without computing its read set; return its encoded results.

        Return None if ``execute`` must run the request, because it writes, has already happened, fails, or takes longer
        than ``budget_s`` seconds.

        Raises:
            DamagedError: the file failed; the node must stop.
        """
        self.batch.evict_guest()
        self._applier.switch_on()
        self.scope.begin(request.command, 0, dict(self.applied))
        try:
            if store.command_txid(self._db, request.command) is not None:
                return None
            found = self._executor.read(request, budget_s)
            return None if self.scope.used or self.scope.locked else found
        except DamagedError:
            self.batch.failed = True
            raise
        except apsw.CorruptError as error:
            raise self.batch.broken(error) from error
        except (apsw.Error, BedrockishError, TakesLongError, ClockNeededError):
            return None
        finally:
            self._executor.governor.release()
            if self.locks.held:
                self.locks.release(request.command)
            if not self._db.in_transaction:  # SQLite has rolled back the whole batch, for example for lack of memory
                self.batch.redo()

    def only_writes(self, texts: Sequence[str]) -> bool:
        """Return whether each of these SQL texts, or one with other literals, has run before, and only writes rows."""
        return self._executor.texts.all_only_write(texts)

    def execute_together(self, requests: Sequence[Request], budget_s: float) -> Prepared:
        """Run the longest prefix of the requests that can share a transaction, roll it back, and return the
        transaction.

        The errors are those of ``execute``.
        """
        run = partial(together.execute, self._executor, dict(self.applied), self.schema_version, budget_s, self.scope)
        try:
            found = together.run_longest_prefix(requests, partial(self._roll_back, run))
        finally:
            for request in requests:
                self.locks.release(request.command)
        return found or self.execute(requests[0], budget_s)

    def explain(self, statement: Statement, user: str = "", *, columns: bool = False) -> list[dict[str, Any]]:
        """Run a text, roll it back, and return the reads and writes of each statement, as ``explain.explain``."""
        self.scope.begin("", 0, dict(self.applied))
        try:
            return self._roll_back(partial(explain, self._executor, statement, user, columns=columns))
        finally:
            self.locks.release("")

    def _roll_back(self, action: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run an action in the open batch, roll it back in any case, and return its result."""
        db, control = self._db, self.batch.control
        self.batch.evict_guest()
        self._applier.switch_on()
        control("SAVEPOINT request")
        try:
            return action(*arguments, **options)
        except DamagedError:
            self.batch.failed = True
            raise
        finally:
            self._capture.discard_changes()
            try:
                if self._executor.needs_full_rollback and db.in_transaction:
                    db.execute("ROLLBACK")
                self._executor.needs_full_rollback = False
                if db.in_transaction:
                    control("ROLLBACK TO request")
                    control("RELEASE request")
                else:
                    self.batch.redo()
            except apsw.Error as error:  # a part of the request may be left in the batch
                raise self.batch.broken(error) from error

    def lend(self, guest: Guest) -> EngineParts:
        """Lend the writing connection to open transactions, and return the parts of the engine that they need.

        The guest rolls its rows back when the engine needs the connection.
        """
        batch, reader = self.batch, self.background.open_reader
        batch.guest = guest
        writer = self._db, self._executor, self._capture, self._applier, self._limits
        return EngineParts(*writer, reader, batch.control, batch.redo)

    def connector(self) -> Connector:
        """Return the functions and objects with which other threads open connections in parallel with the writer's."""
        wal = self.wal.descriptor
        shared = self.locks, lambda: self._executor.known, self.access
        return Connector(self.background.open_reader, self._prepare, wal, self._ids, self._limits, *shared)

    def file_state(self) -> FileState:
        """Return the state of the file after the last flush."""
        return FileState(self.wal.frames, salt_of(self.wal.descriptor), self.batch.number)

    @property
    def schema_version(self) -> int:
        """The version of the schema in force: the number of schema changes that were activated."""
        return self._versions.current

    @property
    def tables(self) -> Tables:
        """The tables of the schema in force, as far as they have been read."""
        return self._executor.known.tables

    @property
    def versions(self) -> Versions:
        """The versions of the schema: the version in force and the changes that are scheduled."""
        self.batch.wait_for_writer()
        return self._versions

    @property
    def journal(self) -> Journal:
        """The journal: its size and its readers. Waits until no other thread has the writer."""
        self.batch.wait_for_writer()
        return self._journal

    def wait_for_writer(self) -> None:
        """Wait until no other thread has the writer."""
        self.batch.wait_for_writer()

    @property
    def is_slow_to_roll_back(self) -> bool:
        """Whether a rollback of a request takes long, because it makes SQLite read thousands of definitions again.

        That is so from a change of the schema until the commit of its batch.
        """
        return self._has_schema_change and self.tables.definitions.are_many

    def apply(self, entry: Entry, *, repeat: bool, applied_ms: int) -> None:
        """Append an entry to the journal and, unless it is a repeat, make its changes in the tables, in the open batch.

        Args:
            entry: the next entry of its timeline.
            repeat: whether its transaction was applied already, under another label.
            applied_ms: the wall clock, in milliseconds since 1970.

        Raises:
            EntryMismatchError: the entry does not fit the tables; the batch is unchanged.
            DamagedError: the file failed; the node must stop.
        """
        leader, tick = entry.place
        assert tick == self.applied.get(leader, 0) + 1, f"{leader}{tick} follows {leader}{self.applied.get(leader, 0)}"
        assert entry.prev == self._heads.get(leader, GENESIS), f"{leader}{tick} does not continue its timeline"
        self._journal.note_clock(entry.txid.clock)
        if self.entries.is_long(entry):
            self.pages.widen()
        write = partial(self.batch.write, self.entries.apply, entry, repeat, applied_ms)
        if repeat:
            write()
        else:
            self.builds.apply(entry, write)
        self.batch.size += len(entry.transaction.body)
        self.applied[leader] = tick
        self._heads[leader] = entry.hash

    def rebuild_indexes(self, names: Sequence[str]) -> None:
        """Rebuild FTS5 indexes from the rows of their content tables, in the open batch."""
        self.batch.write(self._applier.indexes.rebuild, names)

    def activate(self, txid: Txid) -> str:
        """Put the scheduled schema change in force, in the open batch; return why the data forbids it, or ''."""
        self.pages.widen()
        # The change may rewrite a table. If that does not fit into the page cache, COMMIT reads the batch's part of the
        # log again, for its checksums.
        self.batch.size += LONG_BYTES + 1
        return self.builds.activate(txid)

    def get_meta(self, prefix: str) -> dict[str, Any]:
        """Return the values of ``bedrockish_meta`` whose keys begin with a prefix, by key."""
        self.batch.wait_for_writer()
        return system.meta_under(self._db, prefix)

    def set_meta(self, key: str, value: Any) -> None:
        """Write a value of ``bedrockish_meta``, such as ``clock_ceiling``, in the open batch."""
        self.batch.write(system.set_meta, self._db, key, value)
        if key == CEILING:
            self._ceiling = value

    def flush(self) -> bool:
        """Commit the batch and open the next one; see ``Batch.flush``."""
        return self.batch.flush()

    def _seal(self, number: int) -> None:
        """Write the rows that every batch ends with: its number, and the row ``moment``."""
        system.set_meta(self._db, "batches", number)
        self.publication.write(number, self.applied, self.applied_clock, self.schema_version)

    def _committed(self) -> None:
        """Publish a committed batch and release its resources, before the next batch is open."""
        self.publication.wrote(self.batch.number, self.schema_version, is_log_ending=self.batch.may_finish_log)
        if self.entries.staged.attached:
            self.entries.staged.detach()
        self.builds.end()
        self._has_schema_change = False
        if self.pages.is_wide:
            self.pages.narrow()
        self.flushed = self._flushed()

    def _flushed(self) -> Flushed:
        """Return the state of the file after the batch that was just committed."""
        counts = self.applied_clock, self.batch.number, self._members, self._ceiling
        return Flushed(dict(self.applied), self.schema_version, *counts)

    @property
    def has_new_members(self) -> bool:
        """Whether the members or the users have changed since the last flush."""
        return self._members != self.flushed.members

    def sync(self) -> None:
        """Sync the WAL, so that everything flushed before this call is durable. May be called in a helper thread.

        Raises:
            DamagedError: the file cannot be synced; the node must stop.
        """
        flushed = self.flushed
        self.wal.sync()
        self.durable, self.durable_ceiling = flushed.applied, flushed.ceiling
        self.publication.synced(flushed.batches)

    @property
    def checkpoint_due(self) -> bool:
        """Whether the WAL has grown enough to call ``wal.checkpoint``, in a helper thread."""
        return self.wal.is_to_copy(self._limits.wal_frames, self._limits.wal_frames_max)

    @property
    def is_log_held(self) -> bool:
        """Whether a reader kept the last checkpoint from copying a WAL that should restart."""
        return self.wal.is_held(self._limits.wal_frames_max)

    def read_entries(self, leader: str, first_tick: int, limit_bytes: int) -> list[Entry]:
        """Return consecutive entries of a timeline, up to a size in bytes; the first entry may be larger."""
        self.batch.wait_for_writer()
        return store.read(self._db, leader, first_tick, limit_bytes)

    def has_short_entries(self, wants: Mapping[str, int], count: int, size: int) -> bool:
        """Return whether the wanted entries are few and short.

        From its tick in ``wants`` on, each timeline must have fewer than ``count`` entries, and all of them together
        fewer than ``size`` bytes.
        """
        self.batch.wait_for_writer()
        found = [store.size(self._db, leader, tick, count) for leader, tick in wants.items()]
        return all(entries < count for entries, _ in found) and sum(taken for _, taken in found) < size

    def keep_lock(self) -> bool:
        """Make the file of the node's lock again if it was removed; return whether it was. See ``FileLock.restore``."""
        return self._lock.restore()

    def close(self) -> None:
        """Roll back the open batch, and close the file. A second call does nothing."""
        if self.batch.state is WriterState.CLOSED:
            return
        self.publication.end()
        self.builds.interrupt()
        self.batch.close()
        self.builds.close()
        self.background.close()
        self.batch.discard()
        self.entries.staged.close()
        self.wal.close()
        self._db.close()
        self._lock.close()

    @property
    def applied_clock(self) -> int:
        """A clock at or after the clock of every applied entry."""
        return self._journal.applied_clock

    @property
    def memory(self) -> Memory:
        """The memory that all requests share."""
        return self._limits.memory

    def _note_change(self) -> None:
        """Mark the open batch as one that changes the schema."""
        self._has_schema_change = True

    def _reload(self) -> None:
        """Read the schema again after SQLite has rolled back the batch."""
        self._versions.reload()
        self._learn_schema()

    def _learn_schema(self, statements: Sequence[str] = (), changed: Collection[str] = ()) -> None:
        before = self.tables.virtual
        self.entries.tables = tables = Tables(self._db, self._executor.known.tables)
        self._capture.use(tables)
        self._applier.use(tables)
        self._executor.use(tables)
        self._ids.use(tables)
        self.publication.forget_schema()
        self._has_schema_change = True
        self._applier.indexes.rebuild(stale_indexes(before, tables.virtual, changed, statements))

    def _learn_members(self) -> None:
        membership = read_membership(system.get_meta(self._db, "membership"))
        self._ids.use_members(system.get_meta(self._db, "node"), membership)
        self.access.learn(membership.users, membership.nodes, membership.version)
        self.entries.void |= system.follow_resolutions(self._db, membership.void)
        self._members += 1
        self.publication.members = membership.version
