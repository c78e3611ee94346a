"""The workspaces of a session on the file of its node, and the durable snapshots on which its transactions begin."""

import io
import threading
import time
import weakref
from typing import TypeGuard

import apsw

from bedrockish.api.requests import STALE, Request
from bedrockish.common.pauses import monotonic
from bedrockish.engine.execution.interfaces import Connector, Flushed
from bedrockish.engine.execution.temporary import TemporaryWorkspace
from bedrockish.engine.execution.workspace import Workspace
from bedrockish.engine.sqlite.limits import Limits
from bedrockish.engine.statements.rights import Access
from bedrockish.engine.statements.row_locks import RowLocks
from bedrockish.engine.storage import moment_row
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.engine.storage.overlay_vfs import FileState
from bedrockish.errors import BedrockishError, UnavailableError, UsageError
from bedrockish.local import connections
from bedrockish.local.attached import Attached
from bedrockish.local.file_schema import FILE_SCHEMAS, FileSchema
from bedrockish.local.leased_ids import LeasedIds
from bedrockish.local.page import SERVING, Published, PublishedFacts
from bedrockish.local.program_functions import leave_to_plugins
from bedrockish.local.reads import LocalReads
from bedrockish.local.snapshots import may_see
from bedrockish.local.thread_turn import TURN

IDLE_MAX = 8  # the most workspaces that are kept for later transactions
DURABLE_S = 1.0  # how long to wait until the newest snapshot is durable
PAUSE_S, PAUSE_MAX_S = 0.0002, 0.001  # first and longest pause between two polls of the page; each is twice the last
TEMPORARY_BYTES = 1 << 40  # limit for TEMP tables; practically none, because they take the program's own space


def leads(facts: PublishedFacts | None) -> TypeGuard[PublishedFacts]:
    """Return whether the node leads transactions now, according to its page."""
    return facts is not None and facts.mode == SERVING and not facts.why_not


class NodeNeededError(UsageError):
    """Raised internally when a statement needs the node, so that the transaction must move there."""

    code = "node_needed"


class FileWorkspace:
    """A workspace and its connections, which were opened under one generation of the node's page."""

    def __init__(
        self, pool: "WorkspacePool", published: Published, facts: PublishedFacts, *, has_temporary: bool = False
    ) -> None:
        self._published, self.facts, self._pool = published, facts, pool
        self._dbs: list[apsw.Connection] = []
        self._wal: io.FileIO | None = None
        self._attached = pool.attached.version
        reader = self._connect()
        try:
            self._wal = io.FileIO(published.database + "-wal")
            # If the handler of a signal raises here, no other code closes the log.
            weakref.finalize(self, self._wal.close)
            self.schema = pool.schema(reader, facts, -1)  # read before the ROLLBACK, and so from one snapshot
            reader.execute("ROLLBACK")
            self._first: apsw.Connection | None = reader
            locks = RowLocks(lambda: self.schema.known.schema)
            schema = lambda: self.schema.known  # noqa: E731
            limits = Limits(changes_bytes=published.changes_bytes() or Limits().changes_bytes)
            connector = Connector(
                self._reader, pool.prepare, self._wal.fileno(), pool.ids, limits, locks, schema, pool.access
            )
            self.workspace = TemporaryWorkspace(connector, TEMPORARY_BYTES) if has_temporary else Workspace(connector)
            self.workspace.scope.locks = None  # only the node knows which rows are locked
            self.workspace.scope.tick = raise_node_needed
        except BaseException:
            self._release()
            raise

    def _connect(self) -> apsw.Connection:
        db = connections.connect(self._published, self.facts)
        self._dbs.append(db)
        self._pool.prepare(db)
        return db

    def _reader(self) -> apsw.Connection:
        """Return the workspace's reader, which was opened and checked before."""
        found, self._first = self._first, None
        assert found is not None
        return found

    @property
    def reader(self) -> apsw.Connection:
        """The connection that holds the snapshot."""
        return self._dbs[0]

    def attach(self) -> None:
        """Attach the session's files to the workspace's connections, before a transaction begins."""
        attached = self._pool.attached
        if self._attached != attached.version:
            self.workspace.register(attached.apply_to)
            self._attached = attached.version

    def has_opened(self, facts: PublishedFacts) -> bool:
        """Return whether the workspace's files are those of the page's present generation."""
        return (self.facts.generation, self.facts.process_start) == (facts.generation, facts.process_start)

    @property
    def is_broken(self) -> bool:
        """Return whether the workspace's connections have failed."""
        return self.workspace.is_broken

    def close(self) -> None:
        """Close the files."""
        try:
            self.workspace.close()
        finally:
            self._release()

    def _release(self) -> None:
        for db in self._dbs:
            connections.close(db)
        self._dbs.clear()
        if self._wal is not None:
            self._wal.close()


def raise_node_needed() -> int:
    """Raise NodeNeededError, because only the node gives values of the cluster's clock."""
    raise NodeNeededError("only the node gives values of the cluster's clock")


class WorkspacePool:
    """Lends workspaces to the transactions of one session; idle ones are kept for its next transactions.

    Args:
        reads: the session's reads, which hold the file and its page.
    """

    def __init__(self, reads: LocalReads) -> None:
        self.reads = reads
        self.access = Access()  # the rights of the cluster's users
        self.access.bootstrap = ("",)  # a program that names no user may do everything, because it may open the file
        self.ids = LeasedIds()  # the row ids leased by the node
        self.known_schema: FileSchema | None = None  # the schema that was read last
        self._lock = threading.Lock()
        self.closing = threading.RLock()  # held by the thread that closes idle workspaces
        self._idle: list[FileWorkspace] = []
        self._is_closed = False

    @property
    def attached(self) -> Attached:
        """The files that the session has attached."""
        return self.reads.attached

    @property
    def has_own(self) -> bool:
        """Whether the session has functions or attached files, which the node does not have."""
        return bool(self.reads.registrations) or self.attached.has_any

    @property
    def may_call_program(self) -> bool:
        """Whether statements without function calls may call the program: its collations, or its progress handler."""
        registrations = self.reads.registrations
        return bool(registrations) and any(one.key[0] != "function" for one in list(registrations.values()))

    def knows_read(self, sql: str, *, only_brief: bool) -> bool:
        """Return whether a text is a known read in the workspace that the next transaction takes.

        With ``only_brief``, return whether it also takes some microseconds with any rows.
        """
        return not self.has_own and any(one.workspace.knows_read(sql, only_brief=only_brief) for one in self._idle[-1:])

    def prepare(self, db: apsw.Connection) -> None:
        """Register the program's functions on a connection, and attach the session's files to it."""
        leave_to_plugins(db)
        for given in list(self.reads.registrations.values()):  # another thread may register one
            given(db)
        self.attached.apply_to(db)

    def serving(self) -> tuple[Published | None, PublishedFacts | None]:
        """Return the page, and its facts if the node leads transactions now."""
        with self.reads.lock:
            facts = self.reads.facts()
            published = self.reads.published
        return (published, facts) if published is not None and leads(facts) else (None, None)

    def take(self, published: Published, facts: PublishedFacts, *, may_connect: bool = True) -> FileWorkspace | None:
        """Return an idle workspace on the page's present file, or open one; return None if it may not open one."""
        while True:
            with self._lock:
                file_workspace = self._idle.pop() if self._idle else None
            if file_workspace is None:
                return FileWorkspace(self, published, facts) if may_connect else None
            if file_workspace.has_opened(facts):
                return file_workspace
            self.close(file_workspace)

    def snapshot(
        self,
        file_workspace: FileWorkspace,
        published: Published,
        durable: int,
        request: Request,
        *,
        may_wait: bool = True,
    ) -> FileMoment | None:
        """Take the newest snapshot and wait until it is durable; return its moment.

        Return None if no snapshot is durable and new enough for the session within ``DURABLE_S``. ``durable`` is the
        number of a batch that is known to be durable. With ``may_wait`` False, also return None if the snapshot is not
        durable now, or if its schema must be read.
        """
        workspace, until, pause = file_workspace.workspace, monotonic() + DURABLE_S if may_wait else 0.0, PAUSE_S
        while True:
            moment = moment_row.read(workspace.begin_with(moment_row.QUERY))
            if moment is None:
                return None
            while moment.batch > durable and moment.batch > (durable := published.facts_for_any_thread().durable):
                if monotonic() > until:
                    return None
                TURN.leave()
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
            batch = published.batch(moment.batch)
            # Try again: so many newer batches were written that the page has no record of this one, or a commit that
            # the session has seen is not applied here yet.
            if batch is None or (request.read != STALE and not may_see(moment, request.token)):
                workspace.end()
                if monotonic() > until:
                    return None
                TURN.leave()
                time.sleep(PAUSE_S)
                continue
            if not (may_wait or self._knows(moment)):
                return None
            file_workspace.schema = self.schema(
                file_workspace.reader, file_workspace.facts, moment.schema, moment.members
            )
            flushed = Flushed(moment.vector, moment.schema, moment.clock)
            workspace.move_to(flushed, FileState(batch.frames, batch.salts, moment.batch))
            return moment

    def _knows(self, moment: FileMoment) -> bool:
        """Return whether the schema and the members of a snapshot are those that were read last."""
        known = self.known_schema
        return known is not None and (known.version, known.membership.version) == (moment.schema, moment.members)

    def schema(self, db: apsw.Connection, facts: PublishedFacts, version: int, members: int = -1) -> FileSchema:
        """Return the schema and the membership of a connection's snapshot, from the cache if their versions are equal.

        ``version`` -1 accepts any cached schema.
        """
        known = self.known_schema
        if known is not None and (version < 0 or (known.version, known.membership.version) == (version, members)):
            return known
        made = self.known_schema = FILE_SCHEMAS.read(db, facts)
        if known is not None and known.version != made.version:
            self.ids.forget_leases()
        self.access.learn(made.membership.users, made.membership.nodes, made.membership.version)
        self.ids.use_members(made.node, made.membership)
        return made

    def still_serves(self, facts: PublishedFacts) -> bool:
        """Return whether the node still serves the file on which a transaction has run.

        Wait for no other thread: the loop of a trio client calls this while a thread may run a long read.
        """
        published = self.reads.published
        try:
            now = None if published is None else published.facts_for_any_thread()
        except UnavailableError:
            return False
        return leads(now) and (now.generation, now.process_start) == (facts.generation, facts.process_start)

    def check_generation(self, facts: PublishedFacts) -> None:
        """Check that the node still serves the file on which a transaction has run.

        Raises:
            UnavailableError: the node has stopped or exchanged its file; the transaction was not committed.
        """
        if not self.still_serves(facts):
            raise UnavailableError(
                "the node has stopped, or has exchanged its file, since the transaction began; the transaction did "
                "not happen: run it again"
            )

    def give_back(self, file_workspace: FileWorkspace) -> None:
        """Keep a workspace for the next transaction, or close it."""
        try:
            self._keep(file_workspace)
        except BaseException:  # the handler of a signal has raised: no caller will give the workspace back again
            with self._lock:
                self._idle = [one for one in self._idle if one is not file_workspace]
            self.close(file_workspace)
            raise

    def _keep(self, file_workspace: FileWorkspace) -> None:
        try:
            file_workspace.workspace.leave_work()
            file_workspace.workspace.end()
        except (BedrockishError, apsw.Error):
            file_workspace.workspace.is_broken = True
        with self._lock:
            if not (self._is_closed or file_workspace.workspace.is_broken or len(self._idle) >= IDLE_MAX):
                self._idle.append(file_workspace)
                return
        self.close(file_workspace)

    @staticmethod
    def close(file_workspace: FileWorkspace) -> None:
        """Close a workspace; ignore errors of its connections."""
        try:
            file_workspace.close()
        except (BedrockishError, apsw.Error, OSError):
            return

    def close_idle(self) -> None:
        """Close the workspaces that no transaction uses."""
        with self.closing:
            with self._lock:
                idle, self._idle = self._idle, []
            for file_workspace in idle:
                self.close(file_workspace)

    def close_all(self) -> None:
        """Close the workspaces that no transaction uses, and each other workspace when it is given back."""
        self._is_closed = True
        self.close_idle()

    def after_fork(self) -> None:
        """Leave the workspaces to the parent, without closing its connections."""
        connections.abandon((self._idle,))
        self.ids.forget_leases()  # the leased ids belong to the parent
        self._idle, self._lock, self.closing = [], threading.Lock(), threading.RLock()
