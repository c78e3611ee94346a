"""A small scripted node on a real loopback socket."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import trio

from bedrockish.api.requests import Answer, Request, Result, Statement, Token, encode_results
from bedrockish.engine.sqlite.limits import Memory
from bedrockish.engine.statements.rights import Access
from bedrockish.errors import BedrockishError
from bedrockish.node.client_session import serve_client
from bedrockish_net.errors import NetError
from bedrockish_net.events import Hello
from bedrockish_net.stream import Link
from tests.net.links import accept_link

Script = Callable[[Request], Awaitable[Answer]]


def answer(*rows: tuple[Any, ...], tick: int = 1, node: str = "A", statements: int = 1) -> Answer:
    results = [Result(("x",), list(rows), -1, None)] * statements
    return Answer(encode_results(results), Token({node: tick}, tick), (node, tick), 1)


def unexpected(what: str, error: Exception) -> BedrockishError:
    """Take an unexpected message; these tests have none."""
    raise AssertionError(what) from error


class NoTransactions:
    """A node that opens no transactions."""

    def interrupt_owner(self, _owner: object) -> None:
        """Do nothing: no transaction runs a statement."""

    def end_owner(self, _owner: object) -> None:
        """Do nothing: the client has gone."""


async def serve_scripted(link: Link, node: "ScriptedNode") -> None:
    """Answer a client by the node's script."""
    await serve_client(link, cast("Any", node), cast("Any", None))


@dataclass
class ScriptedNode:
    """Answers each command by the next step of its script, and repeats the last step."""

    name: str = "A"
    script: list[Script] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    known: dict[str, Answer] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    transactions: Any = field(default_factory=NoTransactions)
    in_flight_max: int = 128
    raw: Callable[[Link], Awaitable[None]] | None = None
    cluster: str = "bedrockish"
    port: int = 0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def __post_init__(self) -> None:
        self.config = SimpleNamespace(limits=SimpleNamespace(in_flight_max=self.in_flight_max))
        self.engine = SimpleNamespace(memory=Memory(), access=Access())
        self.faults = SimpleNamespace(caught=unexpected)

    def begin(self, request: Request, done: Callable[[Answer | BedrockishError], None], owner: object) -> None:
        """Answer a command of a link by the next step, which continues after the end of the link."""
        assert isinstance(owner, Link)

        async def run() -> None:
            try:
                done(await self.submit(request))
            except BedrockishError as error:
                done(error)

        trio.lowlevel.spawn_system_task(run)

    async def submit(self, request: Request) -> Answer:
        self.requests.append(request)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return await step(request)

    def end_reads(self, owner: object) -> None:
        """Do nothing when a client has gone: each answer of the script is at hand."""

    def status(self) -> dict[str, Any]:
        return {"node": self.name, "nodes": {self.name: {"address": f"127.0.0.1:{self.port}"}}}

    async def explain(self, statement: Statement, user: str, *, columns: bool = False) -> list[dict[str, Any]]:
        return [{"sql": statement.sql, "kind": "read", "ids": False, "reads": ["table t: 1"], "writes": []}]

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
                self.port = listeners[0].socket.getsockname()[1]
                nursery.start_soon(trio.serve_listeners, self._accept, listeners)
                task_status.started()

    async def _accept(self, stream: trio.SocketStream) -> None:
        try:
            link = await accept_link(stream, Hello(self.name, self.cluster))
        except NetError:
            return
        self.links.append(link)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            if self.raw is not None:
                await self.raw(link)
            else:
                await serve_scripted(link, self)
            nursery.cancel_scope.cancel()

    # --- steps of a script ---

    async def succeed(self, request: Request) -> Answer:
        if request.command not in self.known:
            self.known[request.command] = answer((len(self.known) + 1,), tick=len(self.known) + 1, node=self.name)
        return self.known[request.command]

    async def die(self, request: Request) -> Answer:
        """Hang up after the command has come, without GOODBYE."""
        for link in self.links:
            link.drop("lost", "scripted")
        await trio.sleep_forever()
        raise AssertionError

    async def succeed_and_die(self, request: Request) -> Answer:
        await self.succeed(request)
        return await self.die(request)

    async def hang(self, request: Request) -> Answer:
        await trio.sleep_forever()
        raise AssertionError

    @staticmethod
    def refuse(error: BedrockishError) -> Script:
        async def step(request: Request) -> Answer:
            raise error

        return step


@asynccontextmanager
async def running(*nodes: ScriptedNode) -> AsyncIterator[str]:
    """Start the nodes; yield one URL with all of them."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                node.script = node.script or [node.succeed]
                await nursery.start(node.serve)
            yield "bedrockish://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
            nursery.cancel_scope.cancel()
