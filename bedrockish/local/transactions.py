"""Open transactions of a program, executed in its own process on a node's file (``transaction``).

Some statements need the node: changes of the schema, and calls of ``transaction_clock()``, ``cluster_clock()``,
``skip_locked()`` or a function of a plugin. Then the earlier statements are repeated at the node. If each has the same
result as here, the transaction continues at the node; otherwise it fails with a ConflictError.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import apsw

from bedrockish.api.requests import Request, Result, Token
from bedrockish.api.temporary import FRESH
from bedrockish.common.forks import FORKING, Lock, stand_still, wait_at_forks, watch_forks
from bedrockish.common.pauses import monotonic
from bedrockish.core.protocol.records import Prepared
from bedrockish.engine.execution.temporary import TemporaryWorkspace
from bedrockish.engine.storage.moment_row import FileMoment
from bedrockish.errors import BedrockishError, DeadlineError, TemporaryLostError, UnavailableError, UnsupportedError
from bedrockish.local import connections
from bedrockish.local.program_functions import ProgramError, Registration
from bedrockish.local.reads import LocalReads, closed
from bedrockish.local.thread_turn import TURN
from bedrockish.local.transaction import LocalTransaction
from bedrockish.local.workspace_pool import FileWorkspace, WorkspacePool

OPEN_S = 60.0  # a transaction is rolled back after this time, because its snapshot blocks the node's checkpoints

BeginWith = Callable[
    ["LocalTransactions", FileWorkspace, Request, FileMoment, LocalTransaction | None], LocalTransaction
]


class LocalTransactions:
    """Begins, keeps and ends the open transactions of one session of a program.

    Args:
        reads: the session's reads, which hold the file and its page.
        begin_with: begins a transaction with TEMP objects.
        pool: the pool of a closed session, if there is one.
    """

    def __init__(self, reads: LocalReads, begin_with: "BeginWith", pool: WorkspacePool | None = None) -> None:
        self._reads, self._begin_with = reads, begin_with
        self.pool = pool or WorkspacePool(reads)
        self.pool.reads = reads
        self._beginning = threading.RLock()  # held by the thread that opens a connection or takes a snapshot
        self._temporary: FileWorkspace | None = None
        self._temporary_name = ""
        self.is_closed = False  # whether the session is closed
        self._open: dict[str, LocalTransaction] = {}
        self._inherited: frozenset[str] = frozenset()  # commands of the transactions that are open in the parent
        reads.on_tick, reads.on_registration = self.end_late, self._register
        watch_forks(self)
        wait_at_forks(self)

    def _register(self, given: Registration) -> None:
        """Register a function of the program on open transactions; close idle workspaces, which lack the function."""
        self.pool.close_idle()
        if self._temporary is not None:
            self._temporary.workspace.register(given)
        for one in list(self._open.values()):
            one.register(given)

    def begin_at_once(self, request: Request) -> LocalTransaction | None:
        """Begin a transaction as ``begin`` does if a workspace and a durable snapshot are ready; otherwise return None.

        Wait for no other thread, connect to no file, and read no schema.
        """
        if self.pool.has_own or not self._reads.lock.acquire(blocking=False):
            return None
        try:
            if not self._beginning.acquire(blocking=False):
                return None
            try:
                return self.begin(request, may_wait=False)
            finally:
                self._beginning.release()
        finally:
            self._reads.lock.release()

    def begin(self, request: Request, *, may_wait: bool = True) -> LocalTransaction | None:
        """Begin a transaction on the newest durable snapshot; return None if it must begin at the node.

        With ``may_wait`` False, also return None if that would take long; see ``begin_at_once``.
        """
        if request.user != self._reads.user:
            request = replace(request, user=self._reads.user)
        if self.is_closed:
            return None
        self.forget(request.command)  # an earlier attempt, ended by a signal, may have left it open
        with TURN, self._beginning:
            made = self._begin(request, may_wait=may_wait)
        if self.is_closed:
            self._lose_at_close()
        return made

    def _begin(self, request: Request, *, may_wait: bool) -> LocalTransaction | None:
        if FORKING:
            stand_still()
        file_workspace = None
        try:
            published, facts = self.pool.serving()
            if published is None or facts is None:
                return None
            file_workspace = self.pool.take(published, facts, may_connect=may_wait)
            if file_workspace is None:
                return None
            file_workspace.attach()
            moment = self.pool.snapshot(file_workspace, published, facts.durable, request, may_wait=may_wait)
            if moment is None:
                self.pool.give_back(file_workspace)
                return None
            made = LocalTransaction(self.pool, file_workspace, request, moment)
        except BaseException as error:
            if file_workspace is not None:
                self.pool.close(file_workspace)
            if not isinstance(error, BedrockishError | apsw.Error | OSError):
                raise
            return None  # the transaction begins at the node, which raises the error if it remains
        self._open[request.command] = made
        if self.is_closed:  # another thread has closed the session before this transaction was in ``_open``
            made.end(closed())
        return made

    def read(self, request: Request) -> tuple[list[Result], Prepared, Token] | None:
        """Run statements that only read, as one transaction; return None if the node must run them or reject them.

        Return the results, the transaction for certification by the node, and the session's token after the read.

        Raises:
            ProgramError: a function of the program has raised an error.
            DeadlineError: the program has interrupted the read.
        """
        one = self.begin(request)
        if one is None:
            return None
        try:
            return [one.read(statement) for statement in request.statements], one.finish(), one.seen
        except ProgramError:
            raise
        except BedrockishError as error:
            if error.details.get("interrupted"):
                raise
            return None
        finally:
            self.forget(request.command)

    def is_served(self) -> bool:
        """Return whether the node of the file leads transactions now, according to its page."""
        return self.pool.serving()[0] is not None

    def is_at_learner(self) -> bool:
        """Return whether the node of the file is a learner, by the membership that the last transaction has read."""
        if self.pool.known_schema is None:
            one = self.begin(Request("", ()))
            if one is None:
                return False
            self.forget("")
        schema = self.pool.known_schema
        assert schema is not None
        return schema.is_learner

    @property
    def has_functions(self) -> bool:
        """Whether the program has registered functions, collations or a progress handler."""
        return bool(self._reads.registrations)

    def has_temporary(self, name: str) -> bool:
        """Return whether this process holds the TEMP objects of this name."""
        return self._temporary is not None and self._temporary_name == name.removeprefix(FRESH)

    def begin_with_temporary(self, request: Request, before: LocalTransaction | None = None) -> bool:
        """Begin a transaction that uses the session's TEMP objects; return False if they must be made at the node.

        Args:
            request: the transaction's BEGIN.
            before: the same transaction, if it began before the session had TEMP objects.

        Raises:
            TemporaryLostError: the TEMP objects are gone.
            UnavailableError: the file was not new enough for the session in time.
            ConflictError: see ``temporary.WithTemporary``.
        """
        try:
            with self._beginning:
                return self._begin_with_temporary(replace(request, user=self._reads.user), before)
        finally:
            if self.is_closed:
                self._lose_at_close()

    def _begin_with_temporary(self, request: Request, before: LocalTransaction | None) -> bool:
        published, facts = (None, None) if self.is_closed else self.pool.serving()
        file_workspace = self._temporary if self.has_temporary(request.temporary) else None
        if file_workspace is not None and (
            published is None or facts is None or not file_workspace.has_opened(facts) or file_workspace.is_broken
        ):
            self.lose_temporary()
            raise TemporaryLostError(
                "the TEMP objects of the session are gone: the node has stopped, or has exchanged its file, or their "
                "connection has failed; the transaction did not happen: make the objects again"
            )
        if published is None or facts is None:
            return False
        if file_workspace is None:
            self.lose_temporary()
            file_workspace = self._temporary = FileWorkspace(self.pool, published, facts, has_temporary=True)
            self._temporary_name = request.temporary.removeprefix(FRESH)
        assert isinstance(file_workspace.workspace, TemporaryWorkspace)
        if file_workspace.workspace.transaction is not None:
            if any(one.keeps_rows for one in list(self._open.values())):
                raise UnsupportedError(
                    "another open transaction of the session uses its TEMP objects; end that transaction first"
                )
            self.lose_temporary()
            raise TemporaryLostError(
                "the TEMP objects of the session are gone: the program has interrupted the beginning of a transaction; "
                "this transaction did not happen: make the objects again"
            )
        try:
            file_workspace.attach()
            moment = self.pool.snapshot(file_workspace, published, facts.durable, request)
            if moment is None:
                file_workspace.workspace.end()
                raise UnavailableError(f"{published.database} does not have the session's commits; try again")
            made = self._begin_with(self, file_workspace, request, moment, before)
            if before is not None:
                before.end()
        except BaseException as error:
            if not isinstance(error, BedrockishError | apsw.Error | OSError):
                self.lose_temporary()  # the handler of a signal has raised, and may have left a snapshot
            raise
        self._open[request.command] = made
        if self.is_closed:
            made.end(closed())
        return True

    def lose_temporary(self) -> None:
        """Drop the TEMP objects of the session."""
        file_workspace, self._temporary = self._temporary, None
        if file_workspace is not None:
            self.pool.close(file_workspace)

    def find(self, command: str) -> LocalTransaction | None:
        """Return the open transaction of a command; None if it is not open in this process."""
        return self._open.get(command)

    def is_inherited(self, command: str) -> bool:
        """Return whether the parent of this process has opened the transaction of a command before a fork."""
        return command in self._inherited

    def forget(self, command: str) -> None:
        """End the open transaction of a command in this process, if there is one."""
        found = self._open.get(command)
        if found is not None:
            found.end()
            self._open.pop(command, None)  # last: after an exception of a signal's handler, a later call ends it

    def end_late(self) -> None:
        """End transactions that have been open for ``OPEN_S``, because each blocks the node's checkpoints."""
        late = monotonic() - OPEN_S
        for one in [one for one in list(self._open.values()) if one.since < late]:
            why = f"the transaction was open for {OPEN_S:g} s; it did not happen: divide it, and commit each part"
            one.end_late(DeadlineError(why))

    @property
    def has_any(self) -> bool:
        """Whether the session has an open transaction in this process."""
        return bool(self._open)

    def stop(self) -> None:
        """Interrupt the statements that other threads run; their transactions are lost."""
        for one in list(self._open.values()):
            one.interrupt()

    def stop_one(self, command: str) -> None:
        """Interrupt the statement of one transaction, which is lost; do nothing if it has ended."""
        found = self.find(command)
        if found is not None:
            found.interrupt()

    def close(self) -> None:
        """End all transactions, even those in which another thread runs a statement, and close their connections."""
        pool = self.leave()
        if pool is not None:
            pool.close_all()

    def leave(self) -> WorkspacePool | None:
        """Close the transactions as ``close`` does, but return their pool if another session can use it."""
        self.is_closed = True
        for one in list(self._open.values()):
            one.end(closed())
        self._open.clear()
        left = None
        # Otherwise a thread that has not noticed the end of the session is taking a workspace.
        if not (self.pool.has_own or self.pool.attached.version) and self._beginning.acquire(blocking=False):
            try:
                left, self.pool = self.pool, WorkspacePool(self._reads)
            finally:
                self._beginning.release()
        self.pool.close_all()
        self._lose_at_close()
        return left

    def _lose_at_close(self) -> None:
        """Drop the TEMP objects of a closed session, or leave that to a thread that is beginning a transaction."""
        if self._beginning.acquire(blocking=False):
            try:
                self.lose_temporary()
            finally:
                self._beginning.release()

    def fork_locks(self) -> Iterable[Lock]:
        """Return the locks of the threads that begin transactions, run statements or close idle workspaces."""
        yield self._beginning
        for one in list(self._open.values()):
            yield one.lock
        yield self.pool.closing

    def after_fork(self) -> None:
        """Leave the transactions to the parent, without closing its connections."""
        self.pool.after_fork()
        connections.abandon((self._open, self._temporary))
        self._inherited |= self._open.keys()
        for one in self._open.values():
            one.abandon()
        self._open, self._temporary = {}, None
        self._beginning = threading.RLock()
