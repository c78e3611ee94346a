"""A bounded number of sessions for many tasks or threads. Each session is used by one task or thread at a time.

Tasks may also share one client, whose concurrent calls go over one link. A pool is for work that needs a session of its
own, such as BEGIN and COMMIT on a blocking connection, and for limiting how many requests a program makes at a time.
When the pool lends a session, this session sees all commits that any returned session has seen.
"""

import queue
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import trio

from bedrockish.api.requests import check_timeout
from bedrockish.api.url import Target
from bedrockish.client.blocking import Connection, SocketClient, open_socket_client
from bedrockish.client.credentials import ClientCredentials, credentials_of
from bedrockish.client.in_thread import run
from bedrockish.client.request_builder import Where
from bedrockish.client.trio_client import Client, open_client, target_of
from bedrockish.common.forks import notice_fork, watch_forks
from bedrockish.common.pauses import monotonic
from bedrockish.errors import BedrockishError, ClientClosedError, DeadlineError, UsageError

SIZE = 10
IDLE_S = 10.0  # a session that was idle for this long is pinged before it is lent again
ALIVE_S = 2.0  # timeout of the ping


@dataclass(slots=True, eq=False)
class PooledSession:
    """A session of the pool. A task keeps it open until ``closing`` is set."""

    client: Client
    closing: trio.Event
    idle_since: float = 0.0


class Pool:
    """Sessions of one program. Get one from ``open_pool``.

    Attributes:
        size: how many sessions there are at most.
    """

    def __init__(
        self, url: Where | None, entry: ClientCredentials, nursery: trio.Nursery, size: int, token: bytes | None
    ) -> None:
        self.size = size
        self._target = target_of(url)
        self._url, self._credentials, self._nursery, self._token = url, entry, nursery, token
        self._slots = trio.Semaphore(size)
        self._free: list[PooledSession] = []  # the session that was returned last is at the end, and is lent first
        self.is_closed = False

    @asynccontextmanager
    async def client(self, *, timeout: float | None = None) -> AsyncIterator[Client]:
        """Lend a session for the block.

        Args:
            timeout: seconds to wait for a free session; by default the value in the URL.

        Raises:
            DeadlineError: all sessions were in use for that time.
            BedrockishError: see ``open_client``.
        """
        kept = await self.take(timeout)
        try:
            yield kept.client
        finally:
            self.give(kept)

    async def take(self, timeout: float | None = None) -> PooledSession:
        """Lend a session, which the caller must ``give`` back. The errors are those of ``client``."""
        seconds = self._target.timeout_s if timeout is None else check_timeout(timeout)
        if self.is_closed:
            raise ClientClosedError("this pool is closed; open another")
        with trio.move_on_after(seconds) as scope:
            await self._slots.acquire()
        if scope.cancelled_caught:
            raise _all_in_use(self.size, seconds)
        try:
            kept = await self._take_usable() or await self._nursery.start(self._hold_open)
        except BaseException:
            self._slots.release()
            raise
        assert isinstance(kept, PooledSession)
        kept.client.values.reset()
        if self._token is not None:
            kept.client.token = self._token
        return kept

    def give(self, kept: PooledSession, *, usable: bool = True) -> None:
        """Take a session back; close it if it is broken or has a transaction or result open."""
        self._slots.release()
        with suppress(BedrockishError):
            self._token = self._merge_token(kept.client)
        if usable and not kept.client.is_closed and not kept.client.has_open_transactions and not self.is_closed:
            kept.idle_since = trio.current_time()
            self._free.append(kept)
        else:
            kept.closing.set()

    def _merge_token(self, client: Client) -> bytes:
        if self._token is not None:
            client.token = self._token
        return client.token

    async def _take_usable(self) -> PooledSession | None:
        while self._free:
            kept = self._free.pop()
            if trio.current_time() - kept.idle_since < IDLE_S:
                return kept
            try:
                await kept.client.ping(timeout=ALIVE_S)
            except BedrockishError:
                kept.closing.set()
            except BaseException:
                kept.closing.set()
                raise
            else:
                return kept
        return None

    async def _hold_open(self, task_status: trio.TaskStatus[PooledSession]) -> None:
        async with open_client(self._url, token=self._token, entry=self._credentials) as client:
            kept = PooledSession(client, trio.Event())
            task_status.started(kept)
            await kept.closing.wait()


@asynccontextmanager
async def open_pool(
    url: Where | None = None, *, size: int = SIZE, token: bytes | None = None, entry: ClientCredentials | None = None
) -> AsyncIterator[Pool]:
    """Open a pool of sessions and close it at the end of the block. The first session is opened at once.

    Args:
        url: see ``open_client``.
        size: how many sessions there are at most.
        token: the ``token`` of another session, whose commits these sessions see, too.
        entry: see ``open_client``.

    Raises:
        UsageError: the size is not a positive number.
        BedrockishError: see ``open_client``.
    """
    _check_size(size)
    entry = entry or credentials_of(target_of(url))
    body: BaseException | None = None
    async with trio.open_nursery() as nursery:
        pool = Pool(url, entry, nursery, size, token)
        try:
            pool.give(await pool.take())
            yield pool
        except GeneratorExit:
            raise
        except BaseException as error:
            body = error  # raised again below, outside of the nursery, so that it is not wrapped in a group
        pool.is_closed = True
        nursery.cancel_scope.cancel()
    if body is not None:
        raise body


class ConnectionPool:
    """Connections for threads. Get one from ``connect_pool``; close it after use.

    Attributes:
        size: how many connections there are at most.
    """

    def __init__(self, target: Target, entry: ClientCredentials, size: int, token: bytes | None) -> None:
        self.size = size
        self._target, self._credentials, self._token = target, entry, token
        self._slots = _slots(size)
        self._lock = threading.Lock()  # guards the fields below
        self._free: list[tuple[SocketClient, float]] = []  # with the time of return; the last client is lent first
        self._clients: set[SocketClient] = set()  # all clients, lent or idle
        self._is_closed = False
        self._finalizer = weakref.finalize(self, _close_all, self._clients, self._lock)
        watch_forks(self)

    def after_fork(self) -> None:
        """Forget all clients, which belong to the parent process."""
        self._free.clear()
        self._clients.clear()
        self._slots, self._lock = _slots(self.size), threading.Lock()
        if self._finalizer.detach() is not None:
            self._finalizer = weakref.finalize(self, _close_all, self._clients, self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, also lent ones; a second close does nothing."""
        notice_fork()
        self._is_closed = True
        self._finalizer()

    @contextmanager
    def connection(self, *, timeout: float | None = None) -> Iterator[Connection]:
        """Lend a connection for the block. A transaction that the block leaves open is rolled back.

        Args:
            timeout: seconds to wait for a free connection; by default the value in the URL.

        Raises:
            DeadlineError: all connections were in use for that time.
            BedrockishError: see ``connect``.
        """
        client = self._lend(timeout)
        is_usable = False
        try:
            lent = Connection(client, is_lent=True)
            try:
                yield lent
            finally:
                is_usable = not lent.closed and _is_clean(lent)
        finally:  # even if the handler of a signal ends the ROLLBACK: otherwise the pool would lose a connection
            self._take_back(client, usable=is_usable)

    def _lend(self, timeout: float | None) -> SocketClient:
        notice_fork()
        seconds = self._target.timeout_s if timeout is None else check_timeout(timeout)
        self._check_open()
        try:
            self._slots.get(timeout=seconds)
        except queue.Empty:
            raise _all_in_use(self.size, seconds) from None
        try:
            self._check_open()
            client = self._take_usable() or self._open()
            client.values.reset()
            with self._lock:
                token = self._token
            if token is not None:
                client.token = token
        except BaseException:
            self._slots.put(None)
            raise
        return client

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("this pool is closed; open another")

    def _take_usable(self) -> SocketClient | None:
        while True:
            with self._lock:
                if not self._free:
                    return None
                client, since = self._free.pop()
            if monotonic() - since < IDLE_S:
                return client
            try:
                run(client.ping, timeout=ALIVE_S)
            except BedrockishError:
                self._drop(client)
            except BaseException:
                self._drop(client)
                raise
            else:
                return client

    def _open(self) -> SocketClient:
        client = open_socket_client(self._target, self._token, self._credentials)
        with self._lock:
            self._clients.add(client)
        if self._is_closed:  # the pool was closed while the client was opened
            self._drop(client)
        return client

    def _drop(self, client: SocketClient) -> None:
        with self._lock:
            self._clients.discard(client)
        client._close()

    def _take_back(self, client: SocketClient, *, usable: bool) -> None:
        """Take a client back; close it if it is broken or has a transaction or result open."""
        notice_fork()
        if client not in self._clients:  # the client was lent before a fork, or the pool is closed
            client._close()
            if self._is_closed:
                self._slots.put(None)
            return
        try:
            with self._lock:
                if self._token is not None:
                    client.token = self._token
                self._token = client.token
            if usable and not client.is_closed and not client.has_open_transactions and not self._is_closed:
                with self._lock:
                    self._free.append((client, monotonic()))
            else:
                self._drop(client)
        finally:
            self._slots.put(None)


def _slots(size: int) -> "queue.SimpleQueue[None]":
    """Return a queue with an item for each connection that may be lent.

    ``threading.Semaphore`` would stay locked if the handler of a signal raised in its methods, which are Python code.
    """
    found: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(size):
        found.put(None)
    return found


def _close_all(clients: set[SocketClient], lock: threading.Lock) -> None:
    with lock:
        found = list(clients)
        clients.clear()
    for client in found:
        client._close()


def _is_clean(lent: Connection) -> bool:
    try:
        if lent.in_transaction:
            lent.execute("ROLLBACK")
    except BedrockishError:
        return False
    return True


def _all_in_use(size: int, seconds: float) -> DeadlineError:
    return DeadlineError(
        f"all {size} sessions of the pool were in use for {seconds:g} s; return them sooner, or make the pool larger"
    )


def connect_pool(url: Where | None = None, *, size: int = SIZE, token: bytes | None = None) -> ConnectionPool:
    """Open a pool of connections for threads. The first connection is opened at once.

    Args:
        url: see ``connect``.
        size: how many connections there are at most.
        token: the ``token`` of another session, whose commits these sessions see, too.

    Raises:
        UsageError: the size is not a positive number.
        BedrockishError: see ``connect``.
    """
    _check_size(size)
    target = target_of(url)
    pool = ConnectionPool(target, credentials_of(target), size, token)
    with pool.connection():
        pass
    return pool


def _check_size(size: Any) -> None:
    if type(size) is not int or size < 1:
        raise UsageError(f"the size of a pool should be a positive whole number, not {size!r}")
