"""The trio client. Many tasks may use one client at once; their calls share one link."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import trio

from bedrockish.api.requests import Params, Rows
from bedrockish.api.url import NEAREST, Address
from bedrockish.api.wire import NODES, Ask, Told
from bedrockish.client.credentials import ClientCredentials, credentials_of
from bedrockish.client.discovery import in_dial_order, members_of
from bedrockish.client.driver import Driver
from bedrockish.client.local_file import open_local
from bedrockish.client.request_builder import URL_VARIABLE as URL_VARIABLE
from bedrockish.client.request_builder import Statements as Statements
from bedrockish.client.request_builder import Where
from bedrockish.client.request_builder import target_of as target_of
from bedrockish.client.session import Session
from bedrockish.common.machine import threads_or_unavailable
from bedrockish.common.pauses import monotonic
from bedrockish.errors import BedrockishError, ClientClosedError

T = TypeVar("T")
AT_ONCE_S = 0.02  # how long a read of the node's file may block the loop; a longer read is repeated in a thread
# How long tasks may run short statements in the loop before other tasks run; at least how long each of many may.
TASK_S, TASK_MIN_S = 0.001, 0.0001
STOP_S = 0.005  # pause between two attempts to stop the statement of a cancelled task
LEARN_S = 30.0  # how often a client in use asks for the members of the cluster


class _Turns(threading.local):
    """The turns of the tasks of one loop, which is that of the thread, in running short statements."""

    until = 0.0  # when the next statement first lets other tasks run, in seconds of ``monotonic``
    waiting = 0  # the tasks that let others run now


_turns = _Turns()


class Client(Driver, Session):
    """A session with a cluster. Get one from ``open_client``."""

    async def _read_here(self, statements: Sequence[tuple[str, Params]], read: str | None) -> list[Rows] | None:
        """Run statements in this process, in a thread if they take longer than ``AT_ONCE_S``; see ``Session``."""
        local, level, token = self._file(), read or self.target.read, self._core.token
        statements = self.as_written(statements)
        await self._give_way()
        try:
            return self.note_read(local.read_at_once(statements, level, token, AT_ONCE_S))
        except TimeoutError:
            left = threading.Event()
            found = await _in_thread(lambda: local.read_until(statements, level, token, left.is_set), left.set)
            return self.note_read(found)

    @asynccontextmanager
    async def snapshot(self, *, read: str | None = None, timeout: float | None = None) -> AsyncIterator[None]:
        """Let all reads in the block use one snapshot of the node's file. See ``blocking.Connection.snapshot``."""
        local, seconds = self._file(), self._seconds(timeout)
        level, pin = read or self.target.read, local.new_pin()
        await _threaded(local.pin, pin, level, lambda: self._core.token, seconds)
        try:
            yield
        finally:
            if not local.unpin_at_once(pin):
                with trio.CancelScope(shield=True):
                    await _threaded(local.unpin, pin)

    def _close(self) -> None:
        super()._close()
        self._close_file()

    async def _in_place(
        self,
        method: Callable[..., T],
        *arguments: Any,
        stop: Callable[[], None] | None = None,
        at_once: Callable[..., T | None] | None = None,
    ) -> T:
        """Run, in a thread, a method that may take as long as a statement; return its result.

        If the task is cancelled, ``stop`` is called, which ends the statement.
        """
        if at_once is not None:
            await self._give_way()
            found = at_once(*arguments)
            if found is not None:
                return found
        if stop is None:
            return await _threaded(method, *arguments)
        return await _in_thread(lambda: method(*arguments), stop)

    async def _give_way(self) -> None:
        """Let other tasks run, and notice that this one is cancelled, if the last wait was ``TASK_S`` ago.

        Short statements run in the loop: without this, a task that runs one after the other would stop all others.
        Tasks that run such statements at the same time share ``TASK_S``, because trio runs all of them in one round.
        """
        if monotonic() > _turns.until:
            _turns.waiting += 1
            try:
                await trio.lowlevel.checkpoint()
            finally:
                _turns.waiting -= 1
            _turns.until = monotonic() + max(TASK_S / (1 + _turns.waiting), TASK_MIN_S)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The nodes that may be asked now: those of the URL, and members that were learnt from them."""
        return self._core.route.addresses

    async def _keep_learning(self) -> None:
        """Ask for the members of the cluster at once, then every ``LEARN_S`` if calls were made since."""
        calls = -1
        while True:
            if self._calls_made != calls:
                with suppress(BedrockishError):
                    reply = await self._call(Ask(0, NODES), LEARN_S)
                    if isinstance(reply, Told):
                        self._core.route.learn(members_of(reply.value), trio.current_time())
                calls = self._calls_made
            await trio.sleep(LEARN_S)


async def _threaded(method: Callable[..., T], *arguments: Any, abandon_on_cancel: bool = False) -> T:
    """Run a method in a thread of trio.

    Raises:
        UnavailableError: the machine gives no further thread.
    """
    with threads_or_unavailable():
        return await trio.to_thread.run_sync(method, *arguments, abandon_on_cancel=abandon_on_cancel)


async def _in_thread(method: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run a method in a thread and return its result; if the task is cancelled, stop the method and wait for its end.

    Trio alone would deliver the cancellation only after the method has ended.
    """
    lock, is_cancelled, is_running = threading.Lock(), False, False

    def run() -> T:
        nonlocal is_running
        with lock:
            if is_cancelled:
                raise ClientClosedError("the task that made the call was cancelled")  # no task gets this error
            is_running = True
        try:
            return method()
        finally:
            is_running = False

    try:
        return await _threaded(run, abandon_on_cancel=True)
    except trio.Cancelled:
        with lock:
            is_cancelled = True
        with trio.CancelScope(shield=True):
            while is_running:
                stop()
                await trio.sleep(STOP_S)
        raise


@asynccontextmanager
async def open_client(
    url: Where | None = None, *, token: bytes | None = None, entry: ClientCredentials | None = None
) -> AsyncIterator[Client]:
    """Open a session with a cluster and close it at the end of the block.

    Args:
        url: such as ``bedrockish://localhost:7373,localhost:7374/?read=session&timeout=10``; by default the environment
            variable BEDROCKISH_URL; or the path of a node's file.
        token: the ``token`` of another session, whose commits the new session sees.
        entry: the credentials; by default the password and the TLS of the URL.

    Raises:
        ConfigError: the URL cannot be understood, or a file that it names cannot be used.
        AuthenticationError: the nodes refuse the credentials.
        UnavailableError: no node can be reached.
        ProtocolMismatchError: a program other than a node answers, or a node of another version or cluster.
    """
    target = target_of(url)
    entry = entry or credentials_of(target)
    measures = target.choice == NEAREST
    addresses = await _threaded(in_dial_order, target, entry) if measures else in_dial_order(target, entry)
    target = replace(target, addresses=addresses)
    body: BaseException | None = None
    file = open_local(target)
    async with trio.open_nursery() as nursery:
        client = Client(target, token, nursery, entry)
        nursery.start_soon(client._alarm.run)
        try:
            if file is not None:
                client.local, client.local_steps = file.reads, file.steps(client)
            await client._reach(file)
            if target.discover:
                nursery.start_soon(client._keep_learning)
            yield client
        except GeneratorExit:
            raise
        except BaseException as error:
            body = error  # raised again below, outside of the nursery, so that it is not wrapped in a group
        client._close()
        nursery.cancel_scope.cancel()
    if body is not None:
        raise body
