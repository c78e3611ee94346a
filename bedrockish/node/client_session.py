"""A client's session at a node: calls arrive on a link, run at the same time, and are answered in any order.

Back-pressure: while ``in_flight_max`` calls of one link are under way, no further call is begun, except one that
cancels another. If a client disconnects, its reads end. Its commands that write are not cancelled: they run to their
end or their timeout, and their answers are dropped.
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from bedrockish.api import wire
from bedrockish.api.requests import Answer, Statement
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
from bedrockish.node.cluster.donor import Copy, Donor
from bedrockish.node.rights import check_call, check_call_by_token
from bedrockish.node.runtime import Runtime
from bedrockish.node.scheduling.workers import cancelled
from bedrockish.node.transactions.steps import RemainingSteps
from bedrockish_net.errors import Code, LinkClosedError, LocalProtocolError
from bedrockish_net.handshake import is_local
from bedrockish_net.stream import Link

logger = logging.getLogger(__name__)

NODE = "node:"  # prefix of the name of a node that has connected with its certificate
AT_ONCE_S = 0.02  # how long calls that arrived together may run in the reading task; then other links have their turn
AT_ONCE_BYTES = 64 << 10  # a longer answer waits for room on its link
LARGE_BYTES = 1 << 20  # a longer call is refused when all memory is used
LOGIN_CHECK_S = 1.0  # seconds between two checks whether a connected client has to be disconnected
DISCONNECT_CHECKS = 100  # most checks whether the running calls of a client are answered before its link is ended
WAITING_BYTES = 4 << 20  # while more bytes wait for a client, no further call of the client is begun


class Loan:
    """The copy of the node's file that a client fetches on its link: at most one for each link."""

    def __init__(self, donor: Donor) -> None:
        self.donor = donor
        self._lent: Copy | None = None

    async def copy(self) -> dict[str, Any]:
        """Make a copy of the node's file in place of an earlier copy, and return its size and digest."""
        await self.close()
        self._lent = await self.donor.copy()
        return {"size": self._lent.size, "sha256": self._lent.digest}

    async def chunk(self, offset: int) -> bytes:
        """Return a piece of the copy."""
        if self._lent is None:
            raise UsageError("there is no copy on this link; ask for a snapshot first")
        return await self._lent.read(offset)

    async def close(self) -> None:
        """Return the copy to the donor."""
        lent, self._lent = self._lent, None
        if lent is not None:
            await lent.remove()


async def serve_client(
    link: Link,
    node: Runtime,
    donor: Donor,  # gives copies of the file to nodes that join
    *,
    user: str = "",  # the client's user; empty if the node required none when the client connected
    # Returns why the client has to be disconnected, or an empty text; None for a client that may always stay.
    disconnect_reason: Callable[[], str] | None = None,
) -> None:
    """Answer one client until its link ends; its running writes go on after that. Another task must run the link."""
    session = _Session(link, node, donor, user, disconnect_reason)
    try:
        async with trio.open_nursery() as nursery:
            session.begin(nursery)
            link.deliver_to(session.begin_calls)
            if disconnect_reason is not None:
                nursery.start_soon(session.watch_login)
            closed = await link.wait_closed()
            logger.debug("client %s is gone: %s", link.remote.node, closed.reason)
            # Otherwise the nursery would wait for a long statement, whose transaction would keep its row locks.
            node.transactions.interrupt_owner(link)
            node.end_reads(link)
    finally:
        await session.end()


class _Session:
    """The waiting and running calls of one client."""

    def __init__(
        self, link: Link, node: Runtime, donor: Donor, user: str, disconnect_reason: Callable[[], str] | None
    ) -> None:
        self._link, self._node, self._loan, self._user, self._disconnect_reason = (
            link,
            node,
            Loan(donor),
            user,
            disconnect_reason,
        )
        self._in_flight_max = node.config.limits.in_flight_max
        self._memory = node.engine.memory  # counts the bytes that are kept for the link
        # Whether the client reads the rows of large results column by column.
        self._by_column = link.remote.info.get(wire.BY_COLUMN) is True
        self._in_flight = self._kept = 0  # running calls; bytes of answers that wait for room on the link
        self._backlog: deque[bytes] = deque()
        # Calls whose tasks are started and have not run yet, with their sizes and their remaining steps.
        self._begun: deque[tuple[wire.Call, int, Callable[[], Awaitable[Answer]] | None]] = deque()
        self._explaining: dict[int, trio.CancelScope] = {}  # by call
        self._until: float | None = (
            None  # while ``_start_calls`` runs: the time until which steps may run without a task
        )

    def begin(self, nursery: trio.Nursery) -> None:
        """Set the nursery in which calls run."""
        self._nursery = nursery

    async def end(self) -> None:
        """Drop the waiting calls, the transactions and the copy of the client, which has disconnected."""
        while self._backlog:
            self._hold_call(-_long(self._backlog.popleft()))
        self._node.transactions.end_owner(self._link)
        await self._loan.close()

    async def watch_login(self) -> None:
        """End the link, with its transactions and streams, when its client has to be disconnected.

        Calls that had begun are answered first, so that the client need not ask for their outcome.
        """
        assert self._disconnect_reason is not None
        while self._link.closed is None:
            with trio.move_on_after(LOGIN_CHECK_S):
                await self._link.wait_closed()
            if self._disconnect_reason():
                for _ in range(DISCONNECT_CHECKS):
                    if not self._in_flight:
                        break
                    await trio.sleep(LOGIN_CHECK_S / 20)
                self._link.drop(Code.AUTHENTICATION, self._disconnect_reason())

    def begin_calls(self, payloads: list[bytes]) -> None:
        """Begin the calls that were read from the link."""
        self._backlog.extend(payloads)
        for payload in payloads:
            if len(payload) > AT_ONCE_BYTES:
                self._hold_call(len(payload))
        self._start_calls()

    def _start_calls(self) -> None:
        if self._until is not None:
            return  # called by an answer inside the loop below, which starts the next call itself
        self._until = time.monotonic() + AT_ONCE_S
        try:
            while self._backlog and (
                (self._in_flight < self._in_flight_max and self._kept <= WAITING_BYTES)
                or (self._in_flight < 2 * self._in_flight_max and wire.is_cancel(self._backlog[0]))
            ):
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
            call = wire.decode_call(payload, self._user, by_column=self._by_column)
        except wire.MalformedCallError as error:
            logger.warning("client %s sent a malformed call: %s", self._link.remote.node, error.message)
            self._refuse(error.id, error, size)
            return
        try:
            if self._disconnect_reason is not None:
                if why := self._disconnect_reason():
                    raise UnavailableError(why, reason=Code.AUTHENTICATION)  # so the client reconnects with a new token
                check_call_by_token(call)
            access = self._node.engine.access
            if access.users:
                check_call(access, call, self._user)
            if size > LARGE_BYTES:
                self._memory.check_large()
        except (ForbiddenError, MemoryFullError, UnavailableError) as error:
            self._refuse(call.id, error, size)
            return
        if isinstance(call, wire.Execute):
            self._node.begin(call.request, partial(self._done, call.id, size), owner=self._link)
        elif (
            isinstance(call, wire.Step)
            and not self._begun
            and self._until is not None
            and time.monotonic() < self._until
        ):
            self._step_at_once(call, size)
        elif isinstance(call, wire.Ask) and call.op == wire.CANCEL:
            self._cancel(call.asked or {})
            self._hold_call(-size)
            told: list[wire.Reply] = [wire.Told(call.id, {})]
            self._nursery.start_soon(self._send_kept, told, 0)
        else:
            self._start_soon(call, size, None)

    def _cancel(self, asked: Mapping[str, Any]) -> None:
        call, command = asked.get("call"), asked.get("command")
        if type(call) is int and call in self._explaining:
            self._explaining[call].cancel()
        for place, (one, size, rest) in enumerate(self._begun):
            if rest is None and _is_meant(one, call, command):
                self._begun[place] = one, size, partial(self._end_cancelled, one)
        self._node.cancel(self._link, command)

    def _start_soon(self, call: wire.Call, size: int, rest: RemainingSteps[Answer] | None) -> None:
        self._begun.append((call, size, rest))
        self._nursery.start_soon(self._run_next)

    def _step_at_once(self, call: wire.Step, size: int) -> None:
        """Execute a step in the reading task; if it waits for anything but the core, continue it in another task."""
        try:
            found = self._step(call)
        except Exception as error:
            self._end_step(call, size, error)
            return
        if isinstance(found, Answer):
            self._done(call.id, size, found)
        else:
            found.run_without_task(partial(self._end_step, call, size), partial(self._start_soon, call, size))

    def _end_step(self, call: wire.Step, size: int, found: Answer | Exception) -> None:
        self._done(call.id, size, found if isinstance(found, Answer) else self._failed(call, found))

    def _refuse(self, number: int, error: BedrockishError, asked: int) -> None:
        self._hold_call(-asked)
        refused: list[wire.Reply] = [wire.Failed(number, error)]
        self._nursery.start_soon(self._send_kept, refused, 0)

    def _hold_call(self, size: int) -> None:
        """Count the bytes of a call until it is answered; answers that wait for the client are counted separately."""
        if size:
            self._memory.hold(id(self), size)

    def _done(self, number: int, asked: int, answer: Answer | BedrockishError) -> None:
        """Answer a command; short answers leave at once, long ones when the link has room for them."""
        if asked:
            self._hold_call(-asked)
        if self._link.closed is not None:
            return
        reply = wire.Failed(number, answer) if isinstance(answer, BedrockishError) else wire.Answered(number, answer)
        size = len(answer.results) if isinstance(answer, Answer) else 0
        if size > AT_ONCE_BYTES or self._link.waiting_bytes > WAITING_BYTES:
            self._count_answer(size)
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
            self._start_calls()

    async def _run_next(self) -> None:
        """Run the oldest call that has not begun, even if this task was started for another call.

        Trio runs the tasks of one turn in any order. If the end of a stream or a transaction arrives together with its
        beginning and ran first, it would find nothing to end.
        """
        call, asked, rest = self._begun.popleft()
        reply: wire.Reply
        try:
            if isinstance(call, wire.Step):
                found = rest or self._step(call)
                reply = wire.Answered(call.id, found if isinstance(found, Answer) else await found())
            else:
                reply = wire.Told(call.id, await (self._answer_data(call) if rest is None else rest()))
        except Exception as error:
            reply = wire.Failed(call.id, self._failed(call, error))
        finally:
            self._hold_call(-asked)
        size = len(reply.answer.results) if isinstance(reply, wire.Answered) else 0
        self._count_answer(size)
        await self._send_kept([reply], size)

    async def _answer_data(self, call: wire.Execute | wire.AskChunk | wire.Ask) -> Any:
        node = self._node
        match call:
            case wire.AskChunk(_, offset):
                return await self._loan.chunk(offset)
            case wire.Ask(number, wire.EXPLAIN, Statement() as statement, asked):
                return await self._explain(number, statement, asked)
            case wire.Ask(_, wire.UPKEEP, _, asked):
                return await node.upkeep.handle(asked or {})
            case wire.Ask(_, wire.JOIN):
                return await self._loan.donor.facts()
            case wire.Ask(_, wire.SNAPSHOT):
                return await self._loan.copy()
            case wire.Ask(_, wire.PING):
                return {}
            case wire.Ask(_, op):
                status = node.status()
                return status.get("nodes", {}) if op == wire.NODES else status
            case wire.Execute():
                raise AssertionError("a command reached the code for other calls")

    async def _explain(self, number: int, statement: Statement, asked: Mapping[str, Any] | None) -> Any:
        transaction = (asked or {}).get("transaction")
        if transaction:
            return await self._node.transactions.columns(self._link, transaction, statement)
        try:
            with trio.CancelScope() as self._explaining[number]:
                return await self._node.explain(statement, self._user, columns=asked is not None)
            raise cancelled("the explanation")
        finally:
            self._explaining.pop(number, None)  # the client may have used a number twice

    async def _end_cancelled(self, call: wire.Call) -> Answer:
        """End a call that was cancelled before its task ran, and the transaction of its statement."""
        if not isinstance(call, wire.Step):
            raise cancelled("the explanation")
        name = call.request.command
        self._node.transactions.cancel(self._link, name, waits=True)
        raise cancelled(f"transaction {name}")

    def _failed(self, call: wire.Call, error: Exception) -> BedrockishError:
        if isinstance(error, BedrockishError) and not isinstance(error, DamagedError):
            return error
        return self._node.faults.caught(f"{_kind_of(call)} of client {self._link.remote.node}", error)

    def _step(self, call: wire.Step) -> Answer | RemainingSteps[Answer]:
        transactions = self._node.transactions
        is_nodes = False
        if call.owner is not None:
            is_nodes = True
            if not (self._user.startswith(NODE) or not self._user):  # without certificates, nodes have an empty user
                raise UnsupportedError("only a node asks for a program of another user; leave the field 'for' out")
            call = replace(call, request=replace(call.request, user=call.owner))
        if call.prepared:
            if not (is_nodes or is_local(self._link.stream)):
                raise UnsupportedError(
                    "a transaction executed by a program on a node's file can be sent only through the socket next to "
                    "the file; it did not happen: run it again",
                    elsewhere=True,
                )
            return transactions.programs.begin(call.request, call.prepared, is_nodes=is_nodes)
        return transactions.begin(self._link, call.op, call.request)

    def _count_answer(self, size: int) -> None:
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


def _is_meant(call: wire.Call, number: object, command: object) -> bool:
    """Return whether a cancellation with these fields means a call."""
    if isinstance(call, wire.Step):
        return call.op == wire.STATEMENTS and call.request.command == command
    return isinstance(call, wire.Ask) and call.op == wire.EXPLAIN and call.id == number


def _long(payload: bytes) -> int:
    """Return the size of a call in bytes if it is large enough to be counted, else 0."""
    return len(payload) if len(payload) > AT_ONCE_BYTES else 0


def _kind_of(call: wire.Call) -> str:
    """Return the kind of a call, as a word for the log."""
    return str(getattr(call, "op", type(call).__name__.lower()))


def _too_large(reply: wire.Reply, error: Exception) -> BedrockishError:
    if isinstance(reply, wire.Answered) and reply.answer.place is not None:
        leader, tick = reply.answer.place
        return OutcomeUnknownError(
            f"the transaction happened as {leader}{tick}, but its result cannot be sent: {error}"
        )
    return TooLargeError(f"the result cannot be sent: {error}; ask for fewer rows at a time")
