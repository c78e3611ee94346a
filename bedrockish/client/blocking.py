"""The blocking client: the calling thread itself waits for the socket. Any number of threads may use a client.

Its methods are the trio client's methods on another driver (``socket_driver``), so that failover, retries and deadlines
are implemented once.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from bedrockish.api.requests import SERIALIZABLE, Params, Rows, check_params, check_timeout
from bedrockish.api.url import Target
from bedrockish.client.blocking_transaction import BlockingTransaction, commit_at_end
from bedrockish.client.credentials import ClientCredentials, credentials_of
from bedrockish.client.cursor import BlockingRowStream
from bedrockish.client.discovery import in_dial_order
from bedrockish.client.in_thread import blocking, run
from bedrockish.client.local_file import open_local
from bedrockish.client.request_builder import Statements, Where, target_of
from bedrockish.client.session import Session
from bedrockish.client.socket_driver import KEEPER, SocketDriver
from bedrockish.common.pauses import Pauses
from bedrockish.errors import BedrockishError, UnsupportedError, UsageError
from bedrockish.sqltext.session_values import SessionValues
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, Control, parse_control, refuse_values

if TYPE_CHECKING:
    from bedrockish.local.open_results import OpenResult
    from bedrockish.local.reads import LocalReads

T = TypeVar("T")


class SocketClient(SocketDriver, Session):
    """A session whose methods run in the thread that calls them; see ``socket_driver``."""

    _clean_up_scope = staticmethod(nullcontext)

    def _close(self) -> None:
        super()._close()
        self._close_file()

    async def _in_place(
        self,
        method: Callable[..., T],
        *arguments: Any,
        stop: Callable[[], None] | None = None,  # noqa: ARG002  other threads call ``interrupt``
        at_once: Callable[..., T | None] | None = None,  # noqa: ARG002  no other task waits for this thread
    ) -> T:
        """Run a method in this thread, and return its result. The method may take as long as a statement."""
        return method(*arguments)

    def interrupt(self) -> None:
        """End all calls for which other threads wait, and the statements that they run in this process."""
        super().interrupt()
        if self.local is not None:
            self.local.interrupt()
        if self.local_steps is not None:
            self.local_steps.transactions.stop()


class Connection:
    """A session with a cluster, for programs without an event loop. Get one from ``connect``; close it after use.

    Attributes:
        closed: whether ``close`` was called.
    """

    def __init__(self, client: SocketClient, *, is_lent: bool = False) -> None:
        self._client = client
        self._current: BlockingTransaction | None = None  # the transaction that the statement BEGIN has opened
        # Closes the client at the end of the program, too; a pool closes its lent clients itself.
        self._finalizer = weakref.finalize(self, _keep_open if is_lent else client._close)
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session; a second close does nothing."""
        self.closed = True
        self._finalizer()

    def interrupt(self) -> None:
        """End the calls that other threads are making on this connection, if any.

        An ended call raises ``DeadlineError`` if nothing was committed, or ``OutcomeUnknownError`` if the transaction
        may have been. Both errors have ``details["interrupted"]``. An open transaction whose statement is interrupted
        is lost, and can only be rolled back.
        """
        self._client.interrupt()

    @property
    def token(self) -> bytes:
        """The token of this session. A client that gets this token sees all commits that this session has seen."""
        return self._client.token

    @token.setter
    def token(self, token: bytes) -> None:
        self._client.token = token

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that this session is bound to, or has reached; empty if it has reached none."""
        return self._client.cluster_id

    def belong(self, what: str, cluster_id: str) -> None:
        """Bind the session to the cluster with this id; see ``Client.belong``."""
        self._client.belong(what, cluster_id)

    @property
    def values(self) -> SessionValues:
        """The values of ``last_insert_rowid()``, ``changes()`` and ``total_changes()`` in this session."""
        return self._client.values

    def leave_node(self) -> None:
        """Move to another node, if there is one."""
        self._client.leave_node()

    def execute(
        self,
        sql: str,
        params: Params = None,
        *,
        timeout: float | None = None,
        read: str | None = None,
        isolation: str = SERIALIZABLE,
        command: str | None = None,
        resend: bool = False,
    ) -> Rows:
        """Run one statement as a transaction of its own, or in the transaction that BEGIN has opened.

        BEGIN, COMMIT, ROLLBACK and savepoints work as in SQLite. After a conflict, each further statement of the open
        transaction raises its ``ConflictError`` until ROLLBACK. Arguments and errors are those of ``Client.execute``.
        """
        control = parse_control(sql)
        if control is not None and control.kind in (BEGIN, COMMIT, ROLLBACK):
            refuse_values(check_params(params))
            return self._control(control, timeout=timeout, read=read, isolation=isolation)
        if self._current is not None:
            return self._current.execute(sql, params, timeout=timeout)
        modes = {"timeout": timeout, "read": read, "isolation": isolation}
        return run(self._client.execute, sql, params, **modes, command=command, resend=resend)

    def transact(
        self,
        statements: Statements,
        *,
        timeout: float | None = None,
        read: str | None = None,
        isolation: str = SERIALIZABLE,
        command: str | None = None,
        resend: bool = False,
    ) -> list[Rows]:
        """Run statements as one transaction: either all of them are committed, or none. See ``Client.transact``.

        After BEGIN they belong to the open transaction. If one fails, the statements before it keep their changes.
        """
        if self._current is not None:
            return self._current.run([statements] if isinstance(statements, str) else statements, timeout=timeout)
        modes = {"timeout": timeout, "read": read, "isolation": isolation}
        return run(self._client.transact, statements, **modes, command=command, resend=resend)

    def stream(
        self, sql: str, params: Params = None, *, timeout: float | None = None, read: str | None = None
    ) -> AbstractContextManager[BlockingRowStream]:
        """Open a result of any size: ``with connection.stream(sql) as rows: for row in rows``. See ``Client.stream``.

        Raises:
            UnsupportedError: BEGIN has opened a transaction, whose own changes a stream would not see.
        """
        if self._current is not None:
            raise UnsupportedError("a stream does not see what the open transaction has changed; COMMIT it first")
        return closing(self.open_stream(sql, params, timeout=timeout, read=read))

    def open_stream(
        self, sql: str, params: Params = None, *, timeout: float | None = None, read: str | None = None
    ) -> BlockingRowStream:
        """Open a stream, for the caller to close; also while a transaction is open. See ``stream``."""
        return BlockingRowStream(self._client.new_stream(sql, params, timeout, read))

    def read_here(self, sql: str, params: Params, read: str, *, in_parts: bool = False) -> Rows | None:
        """Run a statement in this process, outside of the open transaction; return None if it needs ``execute``.

        ``execute`` is needed if the statement may write, if this connection has no node's file, or if the file may lack
        commits that the session has seen. With ``in_parts``, the result may be the first part of a long one, whose
        attribute ``rest`` reads the other rows.
        """
        local, core = self._client.local, self._client._core
        if local is None or core.temporary.name:
            return None
        found = local.read(self._client.as_written(((sql, params),)), read, core.token, in_parts=in_parts)
        rows = self._client.note_read(found)
        return None if rows is None else rows[0]

    def read_again(
        self, sql: str, params: tuple[Any, ...] | dict[str, Any], read: str
    ) -> "tuple[tuple[str, ...], list[Any], OpenResult | None] | None":
        """Run the statement of the last ``read_here`` again, faster than it; return None if it needs ``read_here``."""
        client = self._client
        if client.local is None or client._core.temporary.name or client._core.values.settings:
            return None
        return client.local.read_again(sql, params, read, client._core.token)

    @property
    def has_temporary(self) -> bool:
        """Return whether this session has made TEMP objects."""
        return bool(self._client._core.temporary.name)

    @property
    def has_own(self) -> bool:
        """Return whether this session has functions, collations or attached files, which no node has."""
        steps = self._client.local_steps
        return steps is not None and steps.transactions.pool.has_own

    @property
    def file(self) -> "LocalReads | None":
        """The node's file that this connection reads in this process; None for a connection without a file."""
        return self._client.local

    def snapshot(self, *, read: str | None = None, timeout: float | None = None) -> AbstractContextManager[None]:
        """Let all reads in the block use one snapshot of the node's file: ``with db.snapshot(): …``.

        The block's reads do not see the block's writes. A snapshot that is not read for a minute is released, and the
        next read raises ``ResultLostError``.

        Args:
            read: ``stale``, ``session`` or ``strict``: how new the snapshot must be; by default the value in the URL.
            timeout: seconds to wait until the file is new enough.

        Raises:
            UnsupportedError: this connection has no node's file.
            UnavailableError: the file was not new enough in time.
        """
        client = self._client
        level = read or client.target.read
        return client._file().snapshot(level, lambda: client._core.token, client._seconds(timeout))

    @property
    def in_transaction(self) -> bool:
        """Whether BEGIN has opened a transaction that neither COMMIT nor ROLLBACK has ended."""
        return self._current is not None

    def _control(self, control: Control, *, timeout: float | None, read: str | None, isolation: str) -> Rows:
        if control.kind == BEGIN:
            if self._current is not None:
                raise UsageError("cannot start a transaction within a transaction; COMMIT or ROLLBACK first")
            self._current = self.begin(isolation=isolation, read=read, timeout=timeout)
            return Rows((), [])
        if self._current is None:
            raise UsageError(f"there is no open transaction to {control.kind}; BEGIN first")
        if control.kind == ROLLBACK:
            current, self._current = self._current, None
            current.rollback()
            return Rows((), [])
        try:
            return self._current.commit(timeout=timeout)
        finally:
            if not self._current.is_open:
                self._current = None

    def begin(
        self, *, isolation: str = SERIALIZABLE, read: str | None = None, timeout: float | None = None
    ) -> BlockingTransaction:
        """Open a transaction that the caller commits or rolls back. See ``Client.transaction``."""
        opened = run(self._client.begin, isolation=isolation, read=read, timeout=timeout)
        return BlockingTransaction(opened)

    def transaction(
        self, *, isolation: str = SERIALIZABLE, read: str | None = None, timeout: float | None = None
    ) -> AbstractContextManager[BlockingTransaction]:
        """Open a transaction for the block; commit it at the end, roll it back if the block raises."""
        return commit_at_end(self.begin(isolation=isolation, read=read, timeout=timeout))

    def run_transaction(
        self,
        function: Callable[..., T],
        *args: Any,
        isolation: str = SERIALIZABLE,
        read: str | None = None,
        timeout: float | None = None,
    ) -> T:
        """Run ``function(transaction, *args)`` in a transaction, with retries. See ``Client.run_transaction``.

        The function runs in the caller's thread.
        """
        pauses = Pauses(self._client.target.timeout_s if timeout is None else check_timeout(timeout))
        while True:
            try:
                with self.transaction(isolation=isolation, read=read, timeout=pauses.left_s) as opened:
                    return function(opened, *args)
            except BedrockishError as error:
                if not error.retry or not pauses.wait():
                    raise

    settle = blocking("_client", Session.settle)
    status = blocking("_client", Session.status)
    nodes = blocking("_client", Session.nodes)
    explain = blocking("_client", Session.explain)
    columns = blocking("_client", Session.columns)
    hold = blocking("_client", Session.hold)
    ping = blocking("_client", Session.ping)


def connect(url: Where | None = None, *, token: bytes | None = None) -> Connection:
    """Open a session with a cluster.

    Args:
        url: such as ``bedrockish://localhost:7373,localhost:7374/?read=session&timeout=10``; by default the environment
            variable BEDROCKISH_URL; or the path of a node's file, such as ``/var/lib/app/A.sqlite``.
        token: the ``token`` of another session, whose commits the new session sees.

    Raises:
        ConfigError: the URL cannot be understood, or a file that it names cannot be used.
        AuthenticationError: the nodes refuse the credentials.
        UnavailableError: no node can be reached.
        ProtocolMismatchError: a program other than a node answers, or a node of another version or cluster.
    """
    return Connection(open_socket_client(target_of(url), token))


def open_socket_client(target: Target, token: bytes | None, entry: ClientCredentials | None = None) -> SocketClient:
    """Open the client of a connection, for the caller to close. The errors are those of ``connect``."""
    entry = entry or credentials_of(target)
    file, client = open_local(target), None
    try:
        addresses = in_dial_order(target, entry)
        client = SocketClient(replace(target, addresses=addresses), token, entry)
        if file is not None:
            client.local, client.local_steps = file.reads, file.steps(client)
        run(client._reach, file)
        client.learn()
        KEEPER.add(client)
    except BaseException:
        if client is not None:
            client._close()
        if file is not None:
            file.close()
        raise
    return client


def _keep_open() -> None:
    """Do nothing: the pool closes the client."""
