"""The blocking client: the thread that calls waits for the socket itself. Use it from any thread.

Its methods are those of the trio client, on another driver (``socket_driver``): one implementation of failover, sending
again and deadlines is enough.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from bedrockish.api.requests import SERIALIZABLE, Params, Rows, check_params, check_timeout
from bedrockish.api.url import Target
from bedrockish.client.blocking_transaction import BlockingTransaction, held
from bedrockish.client.credentials import Entry, entry_of
from bedrockish.client.cursor import BlockingRowStream, held_stream
from bedrockish.client.discovery import in_order_now
from bedrockish.client.local_file import local_steps, open_local
from bedrockish.client.questions import SchemaVersion
from bedrockish.client.request_builder import Statements, Where, target_of
from bedrockish.client.session import Session
from bedrockish.client.socket_driver import KEEPER, SocketDriver, run
from bedrockish.common.pauses import Pauses
from bedrockish.errors import BedrockishError, UnsupportedError, UsageError
from bedrockish.sqltext.session_values import SessionValues
from bedrockish.sqltext.transaction_control import BEGIN, COMMIT, ROLLBACK, Control, parse_control, refuse_values

if TYPE_CHECKING:
    from bedrockish.local.reads import LocalReads

T = TypeVar("T")


class SocketClient(SocketDriver, Session):
    """A session whose methods run in the thread that calls them; see ``socket_driver``."""

    _farewell = staticmethod(nullcontext)

    def _close(self) -> None:
        super()._close()
        self._close_file()

    async def _in_place(self, method: Callable[..., T], *arguments: Any) -> T:
        """Do something that takes as long as a statement: in this thread."""
        return method(*arguments)

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction or a result is open, at a node or here."""
        here = self.local_steps is not None and self.local_steps.transactions.has_any
        return here or super().has_open_transactions

    def interrupt(self) -> None:
        """Have all calls that other threads wait for end now, and the statements that they run here."""
        super().interrupt()
        if self.local is not None:
            self.local.interrupt()
        if self.local_steps is not None:
            self.local_steps.transactions.stop()


class Connection:
    """A session with a cluster, for programs without an event loop. Get one from ``connect``; close it after use.

    Why so large: It is the whole blocking interface, with a method for each thing that a program can ask of a cluster.

    Attributes:
        closed: whether ``close`` was called.
    """

    def __init__(self, client: SocketClient, *, is_lent: bool = False) -> None:
        self._client = client
        self._current: BlockingTransaction | None = None  # begun by BEGIN
        # Also at the end of the program. A pool closes what it has lent by itself.
        self._finalizer = weakref.finalize(self, _leave_it if is_lent else client._close)
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the session. Closing twice is fine."""
        self.closed = True
        self._finalizer()

    def interrupt(self) -> None:
        """Have the calls that other threads make on this connection end now; nothing happens without one.

        They raise ``DeadlineError``: it did not happen; or ``OutcomeUnknownError``: it may have. Either has
        ``details["interrupted"]``. An open transaction in which it happens is lost, and can only be rolled back.
        """
        self._client.interrupt()

    @property
    def token(self) -> bytes:
        """The token of this session. A client to which it is assigned sees at least as much."""
        return self._client.token

    @token.setter
    def token(self, token: bytes) -> None:
        self._client.token = token

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that this session is bound to, or has reached; empty if it has reached none."""
        return self._client.cluster_id

    def belong(self, what: str, cluster_id: str) -> None:
        """Bind the session to a cluster, because of a cursor of it. See ``ClientCore.belong``."""
        self._client.belong(what, cluster_id)

    def copy_values(self) -> SessionValues:
        """Return a copy of the values of ``last_insert_rowid()`` and its like in this session."""
        return replace(self._client.values)

    def restore_values(self, values: SessionValues) -> None:
        """Set the values of ``last_insert_rowid()`` and its like to those of a copy."""
        own = self._client.values
        own.last_insert_rowid, own.changes = values.last_insert_rowid, values.changes
        own.total_changes, own.settings = values.total_changes, values.settings

    def leave_node(self) -> None:
        """Go on at another node, if there is one."""
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
        """Run one statement as a transaction of its own, or in the one that BEGIN has opened.

        BEGIN, COMMIT, ROLLBACK and the savepoints work as in SQLite. When an open transaction is lost to another one,
        each statement says so until ROLLBACK. Arguments and errors are those of ``Client.execute``.
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
        """Run statements as one transaction: all of them or none. See ``Client.transact``.

        After BEGIN they belong to the open transaction, and those before one that fails stay.
        """
        if self._current is not None:
            return self._current.run([statements] if isinstance(statements, str) else statements, timeout=timeout)
        modes = {"timeout": timeout, "read": read, "isolation": isolation}
        return run(self._client.transact, statements, **modes, command=command, resend=resend)

    def call(
        self,
        name: str,
        args: Sequence[Any] | Mapping[str, Any] = (),
        *,
        timeout: float | None = None,
        read: str | None = None,
        isolation: str = SERIALIZABLE,
        command: str | None = None,
        resend: bool = False,
    ) -> Any:
        """Call a command of the application by name and return what it returns. See ``Client.call``.

        It is a transaction of its own, so it is refused after BEGIN.
        """
        if self._current is not None:
            raise UnsupportedError("a command is a transaction of its own; COMMIT or ROLLBACK first")
        modes = {"timeout": timeout, "read": read, "isolation": isolation}
        return run(self._client.call, name, args, **modes, command=command, resend=resend)

    def stream(
        self, sql: str, params: Params = None, *, timeout: float | None = None, read: str | None = None
    ) -> AbstractContextManager[BlockingRowStream]:
        """Open a result of any size: ``with connection.stream(sql) as rows: for row in rows``. See ``Client.stream``.

        Raises:
            UnsupportedError: BEGIN has opened a transaction, whose own changes a stream would not see.
        """
        if self._current is not None:
            raise UnsupportedError("a stream does not see what the open transaction has changed; COMMIT it first")
        return held_stream(self.open_stream(sql, params, timeout=timeout, read=read))

    def open_stream(
        self, sql: str, params: Params = None, *, timeout: float | None = None, read: str | None = None
    ) -> BlockingRowStream:
        """Open what ``stream`` opens, for the caller to close, whatever transaction is open."""
        return BlockingRowStream(run, self._client.new_stream(sql, params, timeout, read))

    def read_here(self, sql: str, params: Params, read: str) -> Rows | None:
        """Run a statement outside of the open transaction, in this process; None: it is for ``execute``.

        That is so if it does more than read, if this connection has no node's file, or the file may not show what the
        session has seen.
        """
        local, core = self._client.local, self._client._core
        if local is None or core.temporary.name:
            return None
        found = local.read(self._client.as_written(((sql, params),)), read, core.token)
        rows = self._client.take_read(found)
        return None if rows is None else rows[0]

    def read_again(self, sql: str, params: tuple[Any, ...], read: str) -> tuple[tuple[str, ...], list[Any]] | None:
        """Do what ``read_here`` does, for a statement with which this connection has just read; None: ``read_here``."""
        client = self._client
        if client.local is None or client._core.temporary.name or client._core.values.settings:
            return None
        return client.local.read_again(sql, params, read, client._core.token)

    @property
    def has_temporary(self) -> bool:
        """Return whether this session has made TEMP objects."""
        return bool(self._client._core.temporary.name)

    @property
    def file(self) -> "LocalReads | None":
        """The node's file that this connection reads in this process; None for one by URL."""
        return self._client.local

    def snapshot(self, *, read: str | None = None, timeout: float | None = None) -> AbstractContextManager[None]:
        """Let all reads in the block see one moment of the node's file: ``with db.snapshot(): …``.

        The block's reads do not see the block's writes. A snapshot that is not read for a minute is released, and the
        next read raises ``ResultLostError``.

        Args:
            read: ``stale``, ``session`` or ``strict``: how new the moment must be; by default what the URL says.
            timeout: seconds to wait for a moment that the session may see.

        Raises:
            UnsupportedError: this connection has no node's file.
            UnavailableError: no such moment came in time.
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
        return BlockingTransaction(run, opened)

    def transaction(
        self, *, isolation: str = SERIALIZABLE, read: str | None = None, timeout: float | None = None
    ) -> AbstractContextManager[BlockingTransaction]:
        """Open a transaction for the block: committed at its end, rolled back if the block raises."""
        return held(self.begin(isolation=isolation, read=read, timeout=timeout))

    def run_transaction(
        self,
        function: Callable[..., T],
        *args: Any,
        isolation: str = SERIALIZABLE,
        read: str | None = None,
        timeout: float | None = None,
    ) -> T:
        """Run ``function(transaction, *args)`` in a transaction, and again if it lost. See ``Client.run_transaction``.

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

    def settle(self, command: str, *, timeout: float | None = None) -> bool:
        """Make sure that a transaction has happened (True), or never will (False). See ``Client.settle``."""
        return run(self._client.settle, command, timeout=timeout)

    def outcome(self, command: str, *, timeout: float | None = None) -> list[Rows] | None:
        """Return the results of a command that happened, None if the node knows nothing of it."""
        return run(self._client.outcome, command, timeout=timeout)

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what the connected node says about itself and the cluster."""
        return run(self._client.status, timeout=timeout)

    def nodes(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the members of the cluster as the connected node knows them."""
        return run(self._client.nodes, timeout=timeout)

    def events(self, after: int = 0, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what the connected node lately said and heard of transactions. See ``Client.events``."""
        return run(self._client.events, after, timeout=timeout)

    def explain(self, sql: str, params: Params = None, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return what each statement of a text would read and write at the connected node; nothing happens."""
        return run(self._client.explain, sql, params, timeout=timeout)

    def columns(self, sql: str, *, timeout: float | None = None) -> list[tuple[str, str | None]]:
        """Return name and declared type of each column that a statement returns. See ``Client.columns``."""
        return run(self._client.columns, sql, timeout=timeout)

    def schema_history(self, *, timeout: float | None = None) -> list[SchemaVersion]:
        """Return the versions of the schema, oldest first. See ``Client.schema_history``."""
        return run(self._client.schema_history, timeout=timeout)

    def try_schema(self, sql: str, *, timeout: float | None = None) -> list[str]:
        """Run schema statements and roll them back; return what each failed with. See ``Client.try_schema``."""
        return run(self._client.try_schema, sql, timeout=timeout)

    def cluster_clock(self, *, timeout: float | None = None) -> int:
        """Return a new value of the connected node's clock."""
        return run(self._client.cluster_clock, timeout=timeout)

    def transaction_clock(self, *, timeout: float | None = None) -> int:
        """Return a clock later than everything acknowledged anywhere before this call."""
        return run(self._client.transaction_clock, timeout=timeout)

    def safe_clock(self, *, timeout: float | None = None) -> int:
        """Return the clock up to which nothing can appear any more."""
        return run(self._client.safe_clock, timeout=timeout)

    def hold(
        self, name: str, after: str | None = None, *, release: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        """Have the journal kept after a cursor, for a reader of this name. See ``Client.hold``."""
        return run(self._client.hold, name, after, release=release, timeout=timeout)

    def ping(self, *, timeout: float | None = None) -> None:
        """Make sure that some node answers."""
        run(self._client.ping, timeout=timeout)


def connect(url: Where | None = None, *, token: bytes | None = None) -> Connection:
    """Open a session with a cluster.

    Args:
        url: such as ``bedrockish://localhost:7373,localhost:7374/?read=session&timeout=10``; by default the environment
            variable BEDROCKISH_URL; or the path of a node's file, such as ``/var/lib/app/A.sqlite``.
        token: the ``token`` of another session, of which this one sees at least as much.

    Raises:
        ConfigError: the URL cannot be understood, or a file that it names cannot be used.
        AuthenticationError: the nodes do not let us in.
        UnavailableError: no node can be reached.
        ProtocolMismatchError: a program other than a node answers, or a node of another version or cluster.
    """
    return Connection(open_socket_client(target_of(url), token))


def open_socket_client(target: Target, token: bytes | None, entry: Entry | None = None) -> SocketClient:
    """Open what a connection stands on; whoever gets it closes it. Raises what ``connect`` says."""
    entry = entry or entry_of(target)
    local = open_local(target)
    client = SocketClient(replace(target, addresses=in_order_now(target, entry)), token, entry)
    client.local, client.local_steps = local, local_steps(client, local)
    try:
        run(client.ping)
        client._bind_file()
        client.learn()
    except BaseException:
        client._close()
        raise
    KEEPER.add(client)
    return client


def _leave_it() -> None:
    """Do nothing."""
