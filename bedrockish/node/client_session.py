"""A client's session at a node: calls arrive on a link, run at the same time, and are answered in any order.

Back-pressure: while ``in_flight_max`` calls of one link are under way, no further call is read from the link. If a
client disconnects, its commands are not cancelled: they run to their end or their timeout, and their answers are
dropped.
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, assert_never

import trio

from bedrockish.api import wire
from bedrockish.api.requests import Answer, Request, Statement
from bedrockish.engine.sqlite.limits import Memory
from bedrockish.engine.statements.rights import Access
from bedrockish.errors import (
    BedrockishError,
    DamagedError,
    ForbiddenError,
    MemoryFullError,
    OutcomeUnknownError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from bedrockish.node.admin.retention import Upkeep
from bedrockish.node.cluster.donor import Copy, Donor
from bedrockish.node.rights import check_call, check_call_by_token
from bedrockish_net.errors import Code, LinkClosedError, LocalProtocolError
from bedrockish_net.handshake import is_local
from bedrockish_net.stream import Link

logger = logging.getLogger(__name__)

Done = Callable[[Answer | BedrockishError], None]
Rest = Callable[[], Awaitable[Answer]]
NODE = "node:"  # prefix of the name of a node that has connected with its certificate
IN_FLIGHT_MAX = 128
AT_ONCE_S = 0.02  # how long the calls of one read may run in the reading task; then other links have their turn
AT_ONCE_BYTES = 64 << 10  # a longer answer waits for room on its link
LARGE_BYTES = 1 << 20  # a longer call is refused when all memory is used
STAY_S = 1.0  # between two checks of the token of a connected client
LEAVE_LOOKS = 100  # checks, at most, for answers to the calls of such a client; then its link ends
WAITING_BYTES = 4 << 20  # while more bytes wait for a client, no further call of the client is begun


class Submits(Protocol):
    """A session's interface to its node."""

    async def submit(self, request: Request) -> Answer:
        """Run a command to its end.

        Raises:
            BedrockishError: the command did not happen, or (OutcomeUnknownError, DamagedError) its outcome is unknown.
        """

    def status(self) -> dict[str, Any]:
        """Return the node's status; its ``nodes`` maps each member's name to the facts about it."""

    async def explain(self, statement: Statement, user: str, *, columns: bool = False) -> list[dict[str, Any]]:
        """Return the reads and writes of a text's statements; with ``columns``, the first one's result columns only.

        Raises:
            BedrockishError: the text cannot run.
        """


class Transacts(Protocol):
    """A session's interface to interactive transactions."""

    def begin(self, owner: object, op: str, request: Request) -> Answer | Rest:
        """Execute one step of a transaction of ``owner``; return the answer, or an awaitable for it.

        The errors are those of ``Transactions.handle``.
        """

    async def columns(self, owner: object, command: str, statement: Statement) -> list[dict[str, Any]]:
        """Return the columns of a statement's result, as an open transaction sees the tables."""

    def end_owner(self, owner: object) -> None:
        """End the transactions that belong to ``owner``."""


class CommitPrepared(Protocol):
    """Commits a transaction that a program has executed; ``is_nodes``: a node sends it for a program of its machine."""

    def __call__(self, request: Request, data: bytes, *, is_nodes: bool) -> Answer | Rest:
        """Return the answer, or an awaitable for it."""


class Loan:
    """The copy of the node's file that a client fetches on its link; a link has at most one copy."""

    def __init__(self, donor: Donor | None) -> None:
        self._donor = donor
        self._lent: Copy | None = None

    @property
    def donor(self) -> Donor:
        """Return the donor.

        Raises:
            UsageError: this node does not admit new nodes.
        """
        if self._donor is None:
            raise UsageError("this node takes no new ones in")
        return self._donor

    async def copy(self) -> dict[str, Any]:
        """Make a copy that replaces an earlier one, and return its size and digest."""
        self.close()
        self._lent = await self.donor.copy()
        return {"size": self._lent.size, "sha256": self._lent.digest}

    async def chunk(self, offset: int) -> bytes:
        """Return a piece of the copy."""
        if self._lent is None:
            raise UsageError("there is no copy on this link; ask for a snapshot first")
        return await self._lent.read(offset)

    def close(self) -> None:
        """Return the copy to the donor."""
        if self._lent is not None:
            self._lent.close()
            self._lent = None


Begin = Callable[[Request, Done], None]
Caught = Callable[[str, Exception], BedrockishError]  # takes an unexpected exception, and returns the error to answer


async def serve_client(
    link: Link,
    node: Submits,  # answers the client
    *,
    in_flight_max: int = IN_FLIGHT_MAX,  # calls that run at the same time
    donor: Donor | None = None,  # gives copies of the file to nodes that join
    # Runs a command and calls back, without a task for each command; None: ``node.submit`` is awaited.
    begin: Begin | None = None,
    transactions: Transacts | None = None,  # keeps interactive transactions, which end with the link
    upkeep: Upkeep | None = None,  # performs an operator's orders
    caught: Caught,  # takes damage or an unexpected exception of a call, and returns the error to answer
    memory: Memory | None = None,  # counts the bytes that are kept for the link
    user: str = "",  # the client's user; empty if the node required none when the client connected
    access: Access | None = None,
    # Returns why the client has to be disconnected, or an empty text; None: it may always stay.
    why_out: Callable[[], str] | None = None,
    # Commits a transaction that a program of the machine has executed on the node's file.
    commit_prepared: "CommitPrepared | None" = None,
) -> None:
    """Answer one client until its link ends, after which running commands go on. Another task must run the link."""
    loan = Loan(donor)
    session = _Session(link, node, loan, begin, in_flight_max, transactions, upkeep, caught)
    session.user, session.access, session.why_out = user, access or Access(), why_out
    session.commit_prepared = commit_prepared
    session.by_column = link.remote.info.get(wire.BY_COLUMN) is True
    session.count_by(memory or Memory())
    try:
        async with trio.open_nursery() as nursery:
            session.begin(nursery)
            link.deliver_to(session.take)
            if why_out is not None:
                nursery.start_soon(session.watch_stay)
            closed = await link.wait_closed()
            logger.debug("client %s is gone: %s", link.remote.node, closed.reason)
    finally:
        loan.close()
        session.forget()
        if transactions is not None:
            transactions.end_owner(link)


class _Session:
    """The waiting and running calls of one client.

    Why so large: Ten attributes are parts of the node that a call may need; the others count the calls that are
    under way.
    """

    user = ""  # the client's user; empty if the node required none when the client connected
    by_column = False  # whether the client reads the rows of large results by column
    commit_prepared: "CommitPrepared | None" = None  # commits a transaction that a program of the machine has executed
    access: Access  # the users' rights
    why_out: Callable[[], str] | None = None  # returns why the client has to be disconnected, or an empty text

    def __init__(
        self,
        link: Link,
        node: Submits,
        loan: Loan,
        begin: Begin | None,
        in_flight_max: int,
        transactions: Transacts | None,
        upkeep: Upkeep | None,
        caught: Caught,
    ) -> None:
        self._transactions, self._upkeep = transactions, upkeep
        self._link, self._node, self._loan, self._begin = link, node, loan, begin
        self._in_flight_max, self._caught = in_flight_max, caught
        self._in_flight = self._kept = 0  # calls; bytes of answers that wait for room on the link
        self._backlog: deque[bytes] = deque()
        # Calls whose tasks are started and have not run yet.
        self._begun: deque[tuple[wire.Call, int, Rest | None]] = deque()
        self._until: float | None = None  # while calls are being started: until when they may run without a task

    def begin(self, nursery: trio.Nursery) -> None:
        """Set the nursery in which calls run."""
        self._nursery = nursery

    def forget(self) -> None:
        """Drop the calls that have not begun, because the client has disconnected."""
        while self._backlog:
            self._hold_call(-_long(self._backlog.popleft()))

    def count_by(self, memory: Memory) -> None:
        """Let ``memory`` count the bytes that this session keeps."""
        self._memory = memory

    async def watch_stay(self) -> None:
        """End the link, with its transactions and streams, when its client has to be disconnected.

        Calls that had begun are answered first, so that the client need not ask for their outcome.
        """
        assert self.why_out is not None
        while self._link.closed is None:
            with trio.move_on_after(STAY_S):
                await self._link.wait_closed()
            if self.why_out():
                for _ in range(LEAVE_LOOKS):
                    if not self._in_flight:
                        break
                    await trio.sleep(STAY_S / 20)
                self._link.drop(Code.AUTHENTICATION, self.why_out())

    def take(self, payloads: list[bytes]) -> None:
        """Begin the calls that were read from the link."""
        self._backlog.extend(payloads)
        for payload in payloads:
            if len(payload) > AT_ONCE_BYTES:
                self._hold_call(len(payload))
        self._go_on()

    def _go_on(self) -> None:
        if self._until is not None:
            return  # a call was answered while calls are being started: the loop below starts the next
        self._until = time.monotonic() + AT_ONCE_S
        try:
            while self._backlog and self._in_flight < self._in_flight_max and self._kept <= WAITING_BYTES:
                self._in_flight += 1
                self._start(self._backlog.popleft())
        finally:
            self._until = None
        if self._backlog:
            self._link.pause()
        else:
            self._link.resume()

    def _start(self, payload: bytes) -> None:
        size = _long(payload)
        try:
            call = wire.decode_call(payload, self.user, by_column=self.by_column)
        except wire.MalformedCallError as error:
            logger.warning("client %s sent a malformed call: %s", self._link.remote.node, error.message)
            self._refuse(error.id, error, size)
            return
        try:
            if self.why_out is not None:
                if why := self.why_out():
                    raise UnavailableError(why, reason=Code.AUTHENTICATION)  # a client reconnects with a valid token
                check_call_by_token(call)
            if self.access.users:
                check_call(self.access, call, self.user)
            if size > LARGE_BYTES:
                self._memory.check_large()
        except (ForbiddenError, MemoryFullError, UnavailableError) as error:
            self._refuse(call.id, error, size)
            return
        if self._begin is not None and isinstance(call, wire.Execute):
            self._begin(call.request, partial(self._done, call.id, size))
        elif (
            isinstance(call, wire.Step)
            and not self._begun
            and self._until is not None
            and time.monotonic() < self._until
        ):
            self._step_at_once(call, size)
        else:
            self._start_soon(call, size, None)

    def _start_soon(self, call: wire.Call, size: int, rest: Rest | None) -> None:
        self._begun.append((call, size, rest))
        self._nursery.start_soon(self._run_next)

    def _step_at_once(self, call: wire.Step, size: int) -> None:
        """Execute a step of a transaction in the reading task; a step that has to wait continues in another task."""
        found: Answer | Rest | BedrockishError
        try:
            found = self._step(call)
        except Exception as error:
            found = self._failed(call, error)
        if isinstance(found, (Answer, BedrockishError)):
            self._done(call.id, size, found)
        else:
            self._start_soon(call, size, found)

    def _refuse(self, number: int, error: BedrockishError, asked: int) -> None:
        self._hold_call(-asked)
        refused: list[wire.Reply] = [wire.Failed(number, error)]
        self._nursery.start_soon(self._send_kept, refused, 0)

    def _hold_call(self, size: int) -> None:
        """Count the bytes of a client's call until the call is answered; they do not count as waiting for the
        client.
        """
        if size:
            self._memory.hold(id(self), size)

    def _done(self, number: int, asked: int, answer: Answer | BedrockishError) -> None:
        """Answer a command; short answers leave at once, long ones when there is room for them."""
        if asked:
            self._hold_call(-asked)
        if self._link.closed is not None:
            return
        reply = wire.Failed(number, answer) if isinstance(answer, BedrockishError) else wire.Answered(number, answer)
        size = len(answer.results) if isinstance(answer, Answer) else 0
        if size > AT_ONCE_BYTES or self._link.waiting_bytes > WAITING_BYTES:
            self._keep(size)
            kept: list[wire.Reply] = [reply]
            self._nursery.start_soon(self._send_kept, kept, size)
            return
        try:  # noqa: SIM105  a context manager for each answer would cost time
            self._link.send_nowait(wire.encode_reply(reply))
        except LinkClosedError:
            pass
        self._release()

    def _release(self) -> None:
        self._in_flight -= 1
        if self._backlog:
            self._go_on()

    async def _run_next(self) -> None:
        """Run the oldest call that has not begun, whichever call this task was started for.

        Trio runs the tasks of one turn in any order, but one read may have both the beginning and the end of a stream
        or transaction. If the end ran first, it would find nothing to end.
        """
        call, asked, rest = self._begun.popleft()
        reply: wire.Reply
        try:
            if isinstance(call, wire.Step):
                found = rest or self._step(call)
                reply = wire.Answered(call.id, found if isinstance(found, Answer) else await found())
            elif (
                isinstance(call, wire.Ask)
                and (name := (call.asked or {}).get("transaction"))
                and call.op == wire.EXPLAIN
            ):
                reply = wire.Told(call.id, await self._columns(name, call.statement))
            elif isinstance(call, wire.Ask) and call.op == wire.UPKEEP:
                reply = wire.Told(call.id, await self._do_upkeep(call.asked or {}))
            else:
                reply = await _reply(self._node, self._loan, call, self.user)
        except Exception as error:
            reply = wire.Failed(call.id, self._failed(call, error))
        finally:
            self._hold_call(-asked)
        size = len(reply.answer.results) if isinstance(reply, wire.Answered) else 0
        self._keep(size)
        await self._send_kept([reply], size)

    def _failed(self, call: wire.Call, error: Exception) -> BedrockishError:
        """Return the error with which to answer a failed call."""
        if isinstance(error, BedrockishError) and not isinstance(error, DamagedError):
            return error
        return self._caught(f"{_what(call)} of client {self._link.remote.node}", error)

    def _step(self, call: wire.Step) -> Answer | Rest:
        if self._transactions is None:
            raise UsageError("this node keeps no interactive transactions")
        is_nodes = False
        if call.owner is not None:
            is_nodes = True
            if not (self.user.startswith(NODE) or not self.user):  # without certificates, nodes have an empty user
                raise UnsupportedError("only a node asks for a program of another user; leave the field 'for' out")
            call = replace(call, request=replace(call.request, user=call.owner))
        if call.prepared:
            if not (is_nodes or is_local(self._link.stream)):
                raise UnsupportedError(
                    "a transaction executed by a program on a node's file can be sent only through the socket next to "
                    "the file; it did not happen: run it again",
                    elsewhere=True,
                )
            assert self.commit_prepared is not None, "a node that listens on a Unix socket commits them"
            return self.commit_prepared(call.request, call.prepared, is_nodes=is_nodes)
        return self._transactions.begin(self._link, call.op, call.request)

    async def _columns(self, transaction: str, statement: Statement | None) -> list[dict[str, Any]]:
        if self._transactions is None or statement is None:
            raise UsageError("this node keeps no interactive transactions")
        return await self._transactions.columns(self._link, transaction, statement)

    async def _do_upkeep(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if self._upkeep is None:
            raise UsageError("this node takes no orders on links")
        return await self._upkeep.handle(asked)

    def _keep(self, size: int) -> None:
        """Count the bytes of an answer that waits for room on its link."""
        self._kept += size
        self._memory.hold(self._link, size)

    async def _send_kept(self, replies: list[wire.Reply], size: int) -> None:
        """Send an answer, the only item of ``replies``, as soon as there is room for it.

        The answer is taken out of the list and encoded only then, so that the memory never holds two copies of it.
        """
        number = replies[0].id
        is_out = False
        try:
            await self._link.wait_for_room(size, WAITING_BYTES)
            if self._link.closed is None:
                self._send_now(replies.pop())
                is_out = True
        except LinkClosedError:
            logger.debug("client %s did not wait for the reply to call %d", self._link.remote.node, number)
        finally:
            self._kept -= size
            if is_out:
                self._memory.move(self._link, size)
            else:
                self._memory.hold(self._link, -size)
            self._release()

    def _send_now(self, reply: wire.Reply) -> None:
        try:
            if isinstance(reply, wire.Answered) and len(reply.answer.results) > AT_ONCE_BYTES:
                self._link.send_parts_nowait(wire.encode_reply_parts(reply))
            else:
                self._link.send_nowait(wire.encode_reply(reply))
        except LocalProtocolError as error:  # the answer is longer than a frame
            self._link.send_nowait(wire.encode_reply(wire.Failed(reply.id, _too_large(reply, error))))


def _long(payload: bytes) -> int:
    """Return the size of a call in bytes if it is large enough to be counted, else 0."""
    return len(payload) if len(payload) > AT_ONCE_BYTES else 0


def _what(call: wire.Call) -> str:
    """Return the kind of a call, as a word for the log."""
    return str(getattr(call, "op", type(call).__name__.lower()))


async def _reply(node: Submits, loan: Loan, call: wire.Execute | wire.AskChunk | wire.Ask, user: str) -> wire.Reply:
    match call:
        case wire.Execute(number, request):
            return wire.Answered(number, await node.submit(request))
        case wire.AskChunk(number, offset):
            return wire.Told(number, await loan.chunk(offset))
        case wire.Ask(number, op, statement, asked):
            if op == wire.EXPLAIN and statement is not None:
                return wire.Told(number, await node.explain(statement, user, columns=asked is not None))
            if op == wire.JOIN:
                return wire.Told(number, await loan.donor.facts())
            if op == wire.SNAPSHOT:
                return wire.Told(number, await loan.copy())
            if op == wire.PING:
                return wire.Told(number, {})
            status = node.status()
            return wire.Told(number, status.get("nodes", {}) if op == wire.NODES else status)
        case _:
            assert_never(call)


def _too_large(reply: wire.Reply, error: Exception) -> BedrockishError:
    if isinstance(reply, wire.Answered) and reply.answer.place is not None:
        leader, tick = reply.answer.place
        return OutcomeUnknownError(
            f"the transaction happened as {leader}{tick}, but its result cannot be sent: {error}"
        )
    return TooLargeError(f"the result cannot be sent: {error}; ask for fewer rows at a time")
