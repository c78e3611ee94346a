"""The trio client: the core on real links. One client may be used by many tasks at once; they share one link."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import trio

from bedrockish.api.requests import Params, Rows
from bedrockish.api.wire import NODES, Ask, Told
from bedrockish.client.credentials import Entry, entry_of
from bedrockish.client.discovery import in_order, members_of
from bedrockish.client.driver import Driver
from bedrockish.client.local_file import local_steps, open_local
from bedrockish.client.request_builder import URL_VARIABLE as URL_VARIABLE
from bedrockish.client.request_builder import Statements as Statements
from bedrockish.client.request_builder import Where
from bedrockish.client.request_builder import target_of as target_of
from bedrockish.client.session import Session
from bedrockish.errors import BedrockishError

T = TypeVar("T")
AT_ONCE_S = 0.02  # how long a read of the node's file may hold the loop; then it goes on in a thread
LEARN_S = 30.0  # how often a client in use asks who belongs to the cluster


class Client(Driver, Session):
    """A session with a cluster. Get one from ``open_client``."""

    async def _read_here(self, statements: Sequence[tuple[str, Params]], read: str | None) -> list[Rows] | None:
        """Run statements in this process, those that take long in a thread; see ``Session``."""
        local, level, token = self._file(), read or self.target.read, self._core.token
        statements = self.as_written(statements)
        try:
            return self.take_read(local.read(statements, level, token, AT_ONCE_S))
        except TimeoutError:
            found = await trio.to_thread.run_sync(local.read, statements, level, token)
            return self.take_read(found)

    @asynccontextmanager
    async def snapshot(self, *, read: str | None = None, timeout: float | None = None) -> AsyncIterator[None]:
        """Let all reads in the block see one moment of the node's file. See ``blocking.Connection.snapshot``."""
        local, seconds = self._file(), self._seconds(timeout)
        level = read or self.target.read
        await trio.to_thread.run_sync(local.pin, level, lambda: self._core.token, seconds)
        try:
            yield
        finally:
            local.unpin()

    def _close(self) -> None:
        super()._close()
        self._close_file()

    async def _in_place(self, method: Callable[..., T], *arguments: Any) -> T:
        """Do something that takes as long as a statement: in a thread, so that the loop goes on."""
        return await trio.to_thread.run_sync(method, *arguments)

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction or a result is open, at a node or here."""
        here = self.local_steps is not None and self.local_steps.transactions.has_any
        return here or super().has_open_transactions

    async def _keep_learning(self) -> None:
        """Ask who belongs to the cluster, at once and then as long as this client is in use."""
        calls = -1
        while True:
            if self._calls_made != calls:
                with suppress(BedrockishError):
                    reply = await self._call(Ask(0, NODES), LEARN_S)
                    if isinstance(reply, Told):
                        self._core.route.learn(members_of(reply.value), trio.current_time())
                calls = self._calls_made
            await trio.sleep(LEARN_S)


@asynccontextmanager
async def open_client(
    url: Where | None = None, *, token: bytes | None = None, entry: Entry | None = None
) -> AsyncIterator[Client]:
    """Open a session with a cluster and close it at the end of the block.

    Args:
        url: such as ``bedrockish://localhost:7373,localhost:7374/?read=session&timeout=10``; by default the environment
            variable BEDROCKISH_URL; or the path of a node's file.
        token: the ``token`` of another session, of which this one sees at least as much.
        entry: how to come in; by default with the password and the TLS that the URL says.

    Raises:
        ConfigError: the URL cannot be understood, or a file that it names cannot be used.
        AuthenticationError: the nodes do not let us in.
        UnavailableError: no node can be reached.
        ProtocolMismatchError: a program other than a node answers, or a node of another version or cluster.
    """
    target = target_of(url)
    entry = entry or entry_of(target)
    target = replace(target, addresses=await in_order(target, entry))
    body: BaseException | None = None
    local = open_local(target)
    async with trio.open_nursery() as nursery:
        client = Client(target, token, nursery, entry)
        client.local, client.local_steps = local, local_steps(client, local)
        nursery.start_soon(client._alarm.run)
        try:
            await client.ping()
            client._bind_file()
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
