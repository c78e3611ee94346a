"""A client's session at a node: calls come in on a link, run at the same time, and are answered in any order.

Back-pressure is not reading: while ``in_flight_max`` calls of one link are under way, nothing more is taken from it. A
client that goes away takes nothing back: what it began ends by itself (a command has a timeout), and nobody is told.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, assert_never

import trio

from bedrockish.errors import BedrockishError, OutcomeUnknownError, TooLargeError, UsageError
from bedrockish.requests import Answer, Request, Statement
from bedrockish.wire import (
    EVENTS,
    EXPLAIN,
    JOIN,
    NODES,
    PING,
    SNAPSHOT,
    UPKEEP,
    Answered,
    Ask,
    AskChunk,
    AskOutcome,
    Call,
    Execute,
    Failed,
    MalformedCallError,
    Reply,
    Step,
    Told,
    decode_call,
    encode_reply,
)
from net.errors import LinkClosedError, LocalProtocolError
from net.stream import Link

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 128
AT_ONCE_BYTES = 64 << 10  # a longer answer waits for room on its link


class Upkeeps(Protocol):
    """What a session needs in order to serve an operator."""

    async def handle(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Do what an operator asks.

        Raises:
            UsageError: it cannot be done.
        """


class Submits(Protocol):
    """What a session needs of its node."""

    async def submit(self, request: Request) -> Answer:
        """Run a command to its end.

        Raises:
            BedrockishError: it did not happen, or (OutcomeUnknownError, DamagedError) it cannot be told.
        """

    def status(self) -> dict[str, Any]:
        """Return what the node says about itself; ``nodes`` in it maps each member's name to what is known of it."""

    def events(self, after: int) -> dict[str, Any]:
        """Return what the node lately said and heard, after a number that an earlier reply had."""

    async def explain(self, statement: Statement, *, columns: bool = False) -> list[dict[str, Any]]:
        """Tell what each statement of a text would read and write; with ``columns``, only what the first one returns.

        Raises:
            BedrockishError: it cannot run.
        """

    async def outcome(self, command: str) -> Answer | None:
        """Return the answer of a command that happened, None if this node does not know of it.

        Raises:
            BedrockishError: the node cannot tell now.
        """


class Lent(Protocol):
    """A copy of the node's file, lent to one client."""

    size: int
    digest: bytes

    async def read(self, offset: int) -> bytes:
        """Return the piece at an offset."""

    def close(self) -> None:
        """Remove the copy."""


class Donates(Protocol):
    """What a session needs in order to serve a node that joins."""

    async def facts(self) -> dict[str, Any]:
        """Return what a new node has to know."""

    async def copy(self) -> Lent:
        """Make a copy of the node's file."""


class Transacts(Protocol):
    """What a session needs in order to serve interactive transactions."""

    async def handle(self, owner: object, op: str, request: Request) -> Answer:
        """Do one step of a transaction that belongs to ``owner``."""

    def end_owner(self, owner: object) -> None:
        """End the transactions that belong to ``owner``."""


class Loan:
    """The copy, one at most, that a client has on its link."""

    def __init__(self, donor: Donates | None) -> None:
        self._donor = donor
        self._lent: Lent | None = None

    @property
    def donor(self) -> Donates:
        """Who gives.

        Raises:
            UsageError: nobody.
        """
        if self._donor is None:
            raise UsageError("this node takes no new ones in")
        return self._donor

    async def copy(self) -> dict[str, Any]:
        """Have a copy made, instead of an earlier one."""
        self.close()
        self._lent = await self.donor.copy()
        return {"size": self._lent.size, "sha256": self._lent.digest}

    async def chunk(self, offset: int) -> bytes:
        """Return a piece of the copy."""
        if self._lent is None:
            raise UsageError("there is no copy on this link; ask for a snapshot first")
        return await self._lent.read(offset)

    def close(self) -> None:
        """Give the copy back."""
        if self._lent is not None:
            self._lent.close()
            self._lent = None


Done = Callable[[Answer | BedrockishError], None]
Begin = Callable[[Request, Done], None]


async def serve_client(
    link: Link,
    node: Submits,
    *,
    in_flight_max: int = IN_FLIGHT_MAX,
    donor: Donates | None = None,
    begin: Begin | None = None,
    transactions: Transacts | None = None,
    upkeep: Upkeeps | None = None,
) -> None:
    """Answer one client until its link is over; what it began goes on. Somebody else runs the link.

    Args:
        link: to the client.
        node: what answers it.
        in_flight_max: calls that run at the same time.
        donor: gives copies of the file to nodes that join.
        begin: runs a command and calls back, without a task for each; None: ``node.submit`` is awaited.
        transactions: keeps interactive transactions, which end with the link.
        upkeep: does what an operator asks.
    """
    loan = Loan(donor)
    try:
        async with trio.open_nursery() as nursery:
            session = _Session(link, node, loan, begin, nursery, in_flight_max, transactions, upkeep)
            link.deliver_to(session.take)
            closed = await link.wait_closed()
            logger.debug("client %s is gone: %s", link.remote.node, closed.reason)
    finally:
        loan.close()
        if transactions is not None:
            transactions.end_owner(link)


class _Session:
    """One client's calls."""

    def __init__(
        self,
        link: Link,
        node: Submits,
        loan: Loan,
        begin: Begin | None,
        nursery: trio.Nursery,
        in_flight_max: int,
        transactions: Transacts | None,
        upkeep: Upkeeps | None,
    ) -> None:
        self._transactions, self._upkeep = transactions, upkeep
        self._link, self._node, self._loan, self._begin = link, node, loan, begin
        self._nursery, self._in_flight_max = nursery, in_flight_max
        self._in_flight = 0
        self._backlog: deque[bytes] = deque()

    def take(self, payloads: list[bytes]) -> None:
        """Take calls as they are read."""
        self._backlog.extend(payloads)
        self._go_on()

    def _go_on(self) -> None:
        while self._backlog and self._in_flight < self._in_flight_max:
            self._in_flight += 1
            self._start(self._backlog.popleft())
        if self._backlog:
            self._link.pause()
        else:
            self._link.resume()

    def _start(self, payload: bytes) -> None:
        try:
            call = decode_call(payload)
        except MalformedCallError as error:
            logger.warning("client %s sent what is no call: %s", self._link.remote.node, error.message)
            self._nursery.start_soon(self._send, Failed(error.id, error))
            return
        if self._begin is not None and isinstance(call, Execute):
            self._begin(call.request, partial(self._done, call.id))
        else:
            self._nursery.start_soon(self._run, call)

    def _done(self, number: int, answer: Answer | BedrockishError) -> None:
        """Answer a command; short answers leave at once, long ones when there is room for them."""
        if self._link.closed is not None:
            return
        reply = Failed(number, answer) if isinstance(answer, BedrockishError) else Answered(number, answer)
        if isinstance(answer, Answer) and len(answer.results) > AT_ONCE_BYTES:
            self._nursery.start_soon(self._send, reply)
            return
        with suppress(LinkClosedError):
            self._link.send_nowait(encode_reply(reply))
        self._release()

    def _release(self) -> None:
        self._in_flight -= 1
        if self._backlog:
            self._go_on()

    async def _run(self, call: Call) -> None:
        reply: Reply
        try:
            if isinstance(call, Step):
                reply = Answered(call.id, await self._step(call))
            elif isinstance(call, Ask) and call.op == UPKEEP:
                reply = Told(call.id, await self._do_upkeep(call.asked or {}))
            else:
                reply = await _reply(self._node, self._loan, call)
        except BedrockishError as error:
            reply = Failed(call.id, error)
        await self._send(reply)

    async def _step(self, call: Step) -> Answer:
        if self._transactions is None:
            raise UsageError("this node keeps no interactive transactions")
        return await self._transactions.handle(self._link, call.op, call.request)

    async def _do_upkeep(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if self._upkeep is None:
            raise UsageError("this node takes no orders on links")
        return await self._upkeep.handle(asked)

    async def _send(self, reply: Reply) -> None:
        try:
            try:
                await self._link.send(encode_reply(reply))
            except LocalProtocolError as error:  # longer than a frame
                await self._link.send(encode_reply(Failed(reply.id, _too_large(reply, error))))
        except LinkClosedError:
            logger.debug("client %s did not wait for the reply to call %d", self._link.remote.node, reply.id)
        finally:
            self._release()


async def _reply(node: Submits, loan: Loan, call: Execute | AskOutcome | AskChunk | Ask) -> Reply:
    match call:
        case Execute(number, request):
            return Answered(number, await node.submit(request))
        case AskOutcome(number, command):
            answer = await node.outcome(command)
            return Told(number, None) if answer is None else Answered(number, answer)
        case AskChunk(number, offset):
            return Told(number, await loan.chunk(offset))
        case Ask(number, op, after, statement, asked):
            if op == EXPLAIN and statement is not None:
                return Told(number, await node.explain(statement, columns=asked is not None))
            if op == EVENTS:
                return Told(number, node.events(after))
            if op == JOIN:
                return Told(number, await loan.donor.facts())
            if op == SNAPSHOT:
                return Told(number, await loan.copy())
            if op == PING:
                return Told(number, {})
            status = node.status()
            return Told(number, status.get("nodes", {}) if op == NODES else status)
        case _:
            assert_never(call)


def _too_large(reply: Reply, error: Exception) -> BedrockishError:
    if isinstance(reply, Answered) and reply.answer.place is not None:
        leader, tick = reply.answer.place
        return OutcomeUnknownError(
            f"the transaction happened as {leader}{tick}, but its result cannot be sent: {error}"
        )
    return TooLargeError(f"the result cannot be sent: {error}; ask for fewer rows at a time")
